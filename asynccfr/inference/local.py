"""The baseline: every request is one forward, at once, on the caller's thread."""

from time import perf_counter

import torch
from torch import nn

from asynccfr.errors import InferenceClosedError
from asynccfr.games.base import LegalMasks, stack_encodings
from asynccfr.inference.base import (
    ForwardEngine,
    InfererContext,
    Statistics,
    retold,
    unknown_network,
)
from asynccfr.inference.heads import Head, apply_head
from asynccfr.torch_threads import use_threads


class LocalInferer(InfererContext):
    """Answers each request by a forward of one row; the honest other side of the A/B switch.

    `infer` never suspends, so a traversal runs from root to end without yielding to the loop.

    Args:
        engine: runs the forwards.
        encoding_size: F.
        num_actions: A.
        threads: torch threads of the thread that makes the inferer, until it is closed.
    """

    def __init__(
        self, engine: ForwardEngine, *, encoding_size: int, num_actions: int, threads: int = 1
    ) -> None:
        self._threads_before = torch.get_num_threads()
        use_threads(threads)
        self._engine = engine
        self._encoding_size = encoding_size
        self._masks = LegalMasks(num_actions)
        self._heads: dict[str, Head] = {}
        self._closed = False
        self.reset_statistics()

    async def infer(self, network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        """See `Inferer.infer`. A failure is an InferenceError chained to its cause."""
        self._require_open()
        head = self._heads.get(network)
        if head is None:
            raise unknown_network(network, self._heads)
        try:
            rows = stack_encodings((encoding,), self._encoding_size)
            started = perf_counter()
            outputs = self._engine.forward(network, rows)
            self._forward_seconds += perf_counter() - started
            self._requests += 1
            policies = apply_head(head, outputs, self._masks.stack((legal,)))
        except Exception as error:
            raise retold(error) from error
        answer: list[float] = policies[0].tolist()
        return answer

    def _require_open(self) -> None:
        if self._closed:
            raise InferenceClosedError("this inferer is closed; make a new one")

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`."""
        self._require_open()
        self._engine.load(name, network)
        self._heads[name] = head

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`; every batch has one row and left because it was full."""
        return Statistics(
            requests=self._requests,
            batches=self._requests,
            batch_sizes={1: self._requests} if self._requests else {},
            reasons={"size": self._requests} if self._requests else {},
            busy_share=self._forward_seconds / max(perf_counter() - self._since, 1e-9),
            forward_seconds=self._forward_seconds,
            threads=torch.get_num_threads(),
        )

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`."""
        self._requests = 0
        self._forward_seconds = 0.0
        self._since = perf_counter()

    async def aclose(self) -> None:
        """See `Inferer.aclose`; gives the calling thread its torch threads back."""
        if not self._closed:
            self._closed = True
            use_threads(self._threads_before)
