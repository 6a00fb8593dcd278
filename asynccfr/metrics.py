"""What one iteration did, as one flat record."""

from dataclasses import dataclass, field
from typing import Any

from asynccfr.evaluation.exact import ExactEvaluation
from asynccfr.fitting import FitReport
from asynccfr.inference.base import Statistics
from asynccfr.traversal.runner import TraversalResult


@dataclass(frozen=True)
class IterationReport:
    """One iteration.

    Attributes:
        iteration: t, from 1.
        metrics: what `metrics.jsonl` holds for it; times in seconds, utilities in game units.
        evaluation: exact evaluation of the average policy, where one was due and possible.
    """

    iteration: int
    metrics: dict[str, Any]
    evaluation: ExactEvaluation | None


@dataclass
class IterationMetrics:
    """Filled while an iteration runs; `report` then turns it into a record."""

    traversal_seconds: float = 0.0
    memory_add_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    traversals: int = 0
    decision_nodes: int = 0
    advantage_fits: list[FitReport] = field(default_factory=list)
    strategy_fit: FitReport | None = None
    inference: Statistics = field(default_factory=Statistics)
    evaluation: ExactEvaluation | None = None

    def add_traversals(self, result: TraversalResult) -> None:
        """Counts one player's traversals."""
        self.traversal_seconds += result.seconds
        self.traversals += result.traversals
        self.decision_nodes += result.decision_nodes

    def report(
        self, iteration: int, iteration_seconds: float, elapsed_seconds: float
    ) -> IterationReport:
        """The record of this iteration, keys as documented in the README."""
        fits = [*self.advantage_fits, *([self.strategy_fit] if self.strategy_fit else [])]
        inference = self.inference
        metrics: dict[str, Any] = {
            "iteration": iteration,
            "elapsed_seconds": elapsed_seconds,
            "iteration_seconds": iteration_seconds,
            "traversal_seconds": self.traversal_seconds,
            "advantage_train_seconds": sum(fitted.seconds for fitted in self.advantage_fits),
            "strategy_train_seconds": self.strategy_fit.seconds if self.strategy_fit else 0.0,
            "memory_add_seconds": self.memory_add_seconds,
            "batch_tensor_seconds": sum(fitted.batch_tensor_seconds for fitted in fits),
            "evaluation_seconds": self.evaluation_seconds,
            "policy_network_seconds": inference.forward_seconds,
            "checkpoint_seconds": 0.0,
            "traversals": self.traversals,
            "decision_nodes": self.decision_nodes,
            "decision_nodes_per_second": self.decision_nodes / max(self.traversal_seconds, 1e-9),
            "advantage_loss": [fitted.loss for fitted in self.advantage_fits],
            "strategy_loss": self.strategy_fit.loss if self.strategy_fit else None,
            "inference": {
                "requests": inference.requests,
                "batches": inference.batches,
                "mean_batch": inference.mean_batch,
                "batch_sizes": {str(k): v for k, v in sorted(inference.batch_sizes.items())},
                "reasons": dict(inference.reasons),
                "wait_us": {f"p{p}": value for p, value in inference.wait_us.items()},
                "busy_share": inference.busy_share,
                "cache_hits": inference.cache_hits,
                "threads": inference.threads,
            },
        }
        if self.evaluation is not None:
            metrics["nash_conv"] = self.evaluation.nash_conv
            metrics["exploitability"] = self.evaluation.exploitability
            metrics["expected_returns"] = list(self.evaluation.expected_returns)
        return IterationReport(iteration, metrics, self.evaluation)
