"""The types that everything in `inference` shares."""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from torch import nn

from asynccfr.errors import InferenceClosedError, InferenceError, NonFiniteOutputError
from asynccfr.games.base import FloatArray
from asynccfr.inference.heads import Head


@dataclass(frozen=True)
class Statistics:
    """What an inferer has done since it was made or since `reset_statistics`.

    Attributes:
        requests: how many requests left for a forward, and how many a policy cache answered.
        batches: how many forwards answered them.
        batch_sizes: rows in a batch -> how many batches had that many.
        reasons: why batches left, `size`, `deadline`, `idle` or `load` -> how many.
        wait_us: percentile (50, 90, 99) -> microseconds from the arrival of a batch's first
            row to its answer, over the latest batches.
        busy_share: the inference thread's busy time over elapsed time, 0 to 1.
        forward_seconds: time inside forwards, the policy arithmetic not counted.
        threads: torch threads as seen from the thread that runs the forwards.
        cache_hits: requests that a policy cache answered without a forward.
    """

    requests: int = 0
    batches: int = 0
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    wait_us: Mapping[int, float] = field(default_factory=dict)
    busy_share: float = 0.0
    forward_seconds: float = 0.0
    threads: int = 0
    cache_hits: int = 0

    @property
    def mean_batch(self) -> float:
        """Rows per forward; 0 before the first."""
        rows = sum(size * count for size, count in self.batch_sizes.items())
        return rows / self.batches if self.batches else 0.0


@runtime_checkable
class Inferer(Protocol):
    """Answers policy requests. Inferers compose: one may stand around another."""

    def infer(
        self, network: str, encoding: bytes, legal: tuple[int, ...]
    ) -> Awaitable[list[float]]:
        """The policy of `network` at one information state.

        Args:
            network: the name that `load` gave it.
            encoding: the bytes of float32[F].
            legal: the legal actions, ascending.

        Returns:
            An awaitable of A probabilities that sum to 1, 0 for illegal actions.
        """

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """Makes `network` (its weights copied) answer for `name`, after the requests before."""

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""

    def reset_statistics(self) -> None:
        """Starts the counters again from zero."""

    async def aclose(self) -> None:
        """Fails what is pending and releases threads; idempotent. `infer` then raises."""


def unknown_network(name: str, loaded: Iterable[str]) -> InferenceError:
    """The error for a request to a network that was never loaded."""
    known = ", ".join(sorted(loaded)) or "none"
    return InferenceError(f"no network named {name!r} was loaded; loaded: {known}")


def retold(cause: BaseException) -> InferenceError:
    """A fresh error for one more waiter, chained to `cause`.

    One exception object raised in many tasks would gather the tracebacks of all of them.
    """
    kind, message = InferenceError, f"inference failed: {cause!r}"
    if isinstance(cause, InferenceError):
        message = str(cause)
    for known in (InferenceClosedError, NonFiniteOutputError):
        if isinstance(cause, known):
            kind = known
    error = kind(message)
    error.__cause__ = cause
    return error


class InfererContext:
    """Mixed into inferers: `async with` closes them on the way out."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """See `Inferer.aclose`."""


class ForwardEngine(Protocol):
    """Runs the forwards of named networks on a device; the only part that knows torch's device."""

    def load(self, name: str, network: nn.Module) -> None:
        """Takes a copy of `network`'s weights under `name`."""

    def forward(self, name: str, rows: FloatArray) -> FloatArray:
        """float32[B, F] -> the raw outputs, float32[B, A], on the host."""
