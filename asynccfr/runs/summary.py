"""What a finished run says on stdout."""

import shlex
from typing import TYPE_CHECKING, Any

from asynccfr.config import Config
from asynccfr.runs.directory import RunDirectory

if TYPE_CHECKING:
    from asynccfr.evaluation.exact import ExactEvaluation
    from asynccfr.trainer import Trainer, TrainingResult


def summary_record(
    config: Config, result: "TrainingResult", directory: RunDirectory
) -> dict[str, Any]:
    """The closing summary as one JSON object."""
    traversal_seconds = sum(report.metrics["traversal_seconds"] for report in result.reports)
    nodes = sum(report.metrics["decision_nodes"] for report in result.reports)
    return {
        "run_directory": str(directory.path),
        "game": config.game.name,
        "backend": config.inference.backend,
        "iterations": len(result.reports),
        "elapsed_seconds": result.reports[-1].metrics["elapsed_seconds"],
        "decision_nodes": nodes,
        "decision_nodes_per_second": nodes / max(traversal_seconds, 1e-9),
        **evaluation_record(result.evaluation),
        "note": _note(config, result),
    }


def evaluation_record(evaluation: "ExactEvaluation | None") -> dict[str, Any]:
    """An exact evaluation under the names that metrics.jsonl uses; nulls where there is none."""
    return {
        "nash_conv": evaluation and evaluation.nash_conv,
        "exploitability": evaluation and evaluation.exploitability,
        "expected_returns": evaluation and list(evaluation.expected_returns),
    }


def summary_text(config: Config, result: "TrainingResult", directory: RunDirectory) -> str:
    """The closing summary to read: what was reached, where it lies, what to run next."""
    record = summary_record(config, result, directory)
    done, wanted = record["iterations"], config.run.iterations
    early = "" if done == wanted else f" of {wanted} (run.max_minutes was reached)"
    lines = {
        "game": f"{record['game']}, {record['backend']} backend",
        "iterations": f"{done}{early}",
        "time": f"{record['elapsed_seconds']:.1f} s",
        "decisions": f"{record['decision_nodes']:,}, "
        f"{record['decision_nodes_per_second']:,.0f} per second of traversal",
        **evaluation_lines(result.evaluation),
        "note": record["note"],
        "run directory": str(directory.path),
    }
    where = shlex.quote(str(directory.path))
    following = f"python -m asynccfr evaluate {where}"
    if result.note:
        following = f"asynccfr.load_policy({str(directory.path)!r}) in Python"
    table = aligned({key: value for key, value in lines.items() if value})
    return f"{table}\n\nnext: {following}"


def interruption(trainer: "Trainer", directory: RunDirectory) -> str:
    """What a run that was stopped leaves on disk, in one sentence."""
    count = len(directory.read_metrics())
    where = repr(str(directory.path))
    if not count:
        return f"interrupted before the first iteration ended; {where} holds the settings alone"
    text = f"interrupted after iteration {count}; {where} holds the metrics of every iteration"
    if trainer.policy is None or not directory.policy_file.exists():
        return f"{text}, and no policy, for none was due yet"
    return f"{text} and the policy of iteration {trainer.policy.iteration}"


def evaluation_lines(evaluation: "ExactEvaluation | None") -> dict[str, str]:
    """Label -> value for an exact evaluation; empty where there is none."""
    if evaluation is None:
        return {}
    returns = ", ".join(f"{value:+.4f}" for value in evaluation.expected_returns)
    return {
        "NashConv": f"{evaluation.nash_conv:.6f}",
        "exploitability": f"{evaluation.exploitability:.6f} (NashConv / players)",
        "expected returns": f"{returns} (player 0 first)",
    }


def aligned(lines: dict[str, str]) -> str:
    """Labels on the left, values in one column."""
    width = max(map(len, lines)) + 2
    return "\n".join(f"{label:<{width}}{value}" for label, value in lines.items())


def _note(config: Config, result: "TrainingResult") -> str:
    if result.evaluation is not None or result.note:
        return result.note
    return "NashConv is not computed: evaluation.exact is false"
