"""Many coroutines, one forward: the batching inferer."""

import asyncio
import contextlib
import copy
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch import nn

from asynccfr.errors import InferenceClosedError, InferenceError
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

_Row = tuple[bytes, tuple[int, ...], "asyncio.Future[list[float]]"]

BATCHES_IN_FLIGHT = 2
"""An idle batch waits while this many are at the thread: one computes, one stands ready."""

_WAITS_KEPT = 4_096


@dataclass(slots=True)
class _Lane:
    """The open batch of one network: rows that have not left yet, first in, first out."""

    network: str
    rows: list[_Row] = field(default_factory=list)
    opened: float = 0.0
    timer: asyncio.TimerHandle | None = None


class _Counters:
    """The raw numbers behind `Statistics`, replaced whole when they are reset."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.waits: deque[float] = deque(maxlen=_WAITS_KEPT)
        self.forward_seconds = 0.0
        self.busy_seconds = 0.0
        self.since = perf_counter()


class BatchingInferer(InfererContext):
    """Collects the requests of many coroutines and answers each batch with one forward.

    Each network has a lane. A lane's rows leave as one batch, in order of arrival, when there
    are `max_batch` of them (reason `size`), when the first has waited `max_wait_us` (`deadline`),
    when every coroutine is waiting (`idle`), or when the lane's network is about to change
    (`load`). Forward, policy arithmetic and copies run on one thread of the inferer's own,
    batches in the order in which they left, while the loop goes on filling the next.

    Idle is seen from inside the loop: two passes through the loop's ready queue in which no
    request arrived mean that every coroutine that could run has run. An idle batch still waits
    for one of `BATCHES_IN_FLIGHT` batches to come back, because their waiters will fill it; it
    cannot wait for ever, since those batches always come back. So no limit is too large to
    finish under, and the last, partial batch leaves at once.

    Cancelling a waiter drops its answer and touches nobody else. A failure reaches exactly the
    waiters of its batch, as InferenceError chained to the cause. Make it and use it inside one
    running event loop; it is not thread-safe, and it does not limit how much may be pending.

    Args:
        engine: runs the forwards; used from the inferer's thread alone.
        encoding_size: F.
        num_actions: A.
        max_batch: the most rows in a batch.
        max_wait_us: the longest a batch stays open, in microseconds; the loop's clock rounds it
            up (uvloop: to milliseconds).
        threads: torch threads for the forwards.
    """

    def __init__(
        self,
        engine: ForwardEngine,
        *,
        encoding_size: int,
        num_actions: int,
        max_batch: int = 512,
        max_wait_us: float = 2_000.0,
        threads: int = 1,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, not {max_batch}")
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._engine = engine
        self._encoding_size = encoding_size
        self._masks = LegalMasks(num_actions)
        self._max_batch = max_batch
        self._max_wait_seconds = max_wait_us / 1e6
        self._threads = threads
        self._threads_seen = 0
        self._lanes: dict[str, _Lane] = {}
        self._heads: dict[str, Head | BaseException] = {}
        self._in_flight: set[_Batch] = set()
        self._sent = 0
        self._watching = False
        self._closed = False
        self._counters = _Counters()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="asynccfr-inference", daemon=True)
        self._thread.start()

    # On the loop.

    def infer(
        self, network: str, encoding: bytes, legal: tuple[int, ...]
    ) -> "asyncio.Future[list[float]]":
        """See `Inferer.infer`. Raises at once where the inferer is closed or has no `network`."""
        lane = self._lanes.get(network)
        if lane is None:
            raise self._refusal(network)
        future: asyncio.Future[list[float]] = self._create_future()
        rows = lane.rows
        rows.append((encoding, legal, future))
        if len(rows) == 1:
            self._open(lane)
        if len(rows) >= self._max_batch:
            self._send(lane, "size")
        return future

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`. The weights are copied before this returns."""
        if self._closed:
            raise self._refusal(name)
        frozen = copy.deepcopy(network)
        lane = self._lanes.setdefault(name, _Lane(name))
        if lane.rows:
            self._send(lane, "load")

        def job() -> None:
            try:
                self._engine.load(name, frozen)
                self._heads[name] = head
            except BaseException as error:
                # Kept for the lane's later batches: a load has no waiter of its own to tell.
                self._heads[name] = error

        self._jobs.put(job)

    def _refusal(self, network: str) -> InferenceError:
        if self._closed:
            return InferenceClosedError("this inferer is closed; make a new one")
        return unknown_network(network, self._lanes)

    def _open(self, lane: _Lane) -> None:
        lane.opened = perf_counter()
        lane.timer = self._loop.call_later(self._max_wait_seconds, self._send, lane, "deadline")
        self._watch_for_idle()

    def _send(self, lane: _Lane, reason: str) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        batch = _Batch(lane, self._counters)
        lane.rows = []
        self._sent += 1
        batch.counters.sizes[len(batch.rows)] += 1
        batch.counters.reasons[reason] += 1
        self._in_flight.add(batch)
        self._jobs.put(lambda: self._answer(batch))

    def _watch_for_idle(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.call_soon(self._look_for_idle, (-1, -1))

    def _look_for_idle(self, seen: tuple[int, int]) -> None:
        # Callbacks run in the order in which they were scheduled, so between two looks every
        # coroutine that was ready has had its turn. No arrival between them: all are waiting.
        waiting = sum(len(lane.rows) for lane in self._lanes.values())
        now = (self._sent, waiting)
        if waiting and now != seen:
            self._loop.call_soon(self._look_for_idle, now)
            return
        self._watching = False
        if waiting and len(self._in_flight) < BATCHES_IN_FLIGHT:
            for lane in self._lanes.values():
                if lane.rows:
                    self._send(lane, "idle")

    def _deliver(self, batch: "_Batch", outcome: list[list[float]] | BaseException) -> None:
        if batch not in self._in_flight:
            return  # Closed meanwhile: its waiters have been told.
        self._in_flight.discard(batch)
        if isinstance(outcome, BaseException):
            batch.fail(outcome)
        else:
            for (_, _, future), policy in zip(batch.rows, outcome, strict=True):
                if not future.done():  # A cancelled waiter is passed over.
                    future.set_result(policy)
        batch.counters.waits.append(perf_counter() - batch.opened)
        self._watch_for_idle()

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`."""
        counters = self._counters
        waits = np.array(counters.waits) * 1e6
        return Statistics(
            requests=sum(size * count for size, count in counters.sizes.items()),
            batches=counters.sizes.total(),
            batch_sizes=dict(counters.sizes),
            reasons=dict(counters.reasons),
            wait_us={p: float(np.percentile(waits, p)) for p in (50, 90, 99) if len(waits)},
            busy_share=counters.busy_seconds / max(perf_counter() - counters.since, 1e-9),
            forward_seconds=counters.forward_seconds,
            threads=self._threads_seen,
        )

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`."""
        self._counters = _Counters()

    async def aclose(self) -> None:
        """See `Inferer.aclose`. Waits for the forward that is running, and for no other."""
        if not self._closed:
            self._closed = True
            closed = InferenceClosedError("the inferer was closed before it could answer")
            for lane in self._lanes.values():
                if lane.timer is not None:
                    lane.timer.cancel()
                _Batch(lane, self._counters).fail(closed)
            self._lanes.clear()
            while self._in_flight:
                self._in_flight.pop().fail(closed)
            self._jobs.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()

    # On the inference thread.

    def _work(self) -> None:
        use_threads(self._threads)
        self._threads_seen = torch.get_num_threads()
        while (job := self._jobs.get()) is not None:
            if not self._closed:
                job()
        self._tell_loop(self._set_stopped)

    def _set_stopped(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _answer(self, batch: "_Batch") -> None:
        started = perf_counter()
        outcome: list[list[float]] | BaseException
        try:
            outcome = self._policies(batch)
        except BaseException as error:
            outcome = error  # Whatever it is: the waiters are told and the thread lives on.
        batch.counters.busy_seconds += perf_counter() - started
        self._tell_loop(self._deliver, batch, outcome)

    def _policies(self, batch: "_Batch") -> list[list[float]]:
        encodings, legals, _ = zip(*batch.rows, strict=True)
        rows = stack_encodings(encodings, self._encoding_size)
        head = self._heads[batch.network]
        if isinstance(head, BaseException):
            raise InferenceError(f"{batch.network!r} could not be loaded: {head}") from head
        started = perf_counter()
        outputs = self._engine.forward(batch.network, rows)
        batch.counters.forward_seconds += perf_counter() - started
        policies: list[list[float]] = apply_head(head, outputs, self._masks.stack(legals)).tolist()
        return policies

    def _tell_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Batch:
    """Rows that left together, with their waiters; hashed by identity."""

    __slots__ = ("counters", "network", "opened", "rows")

    def __init__(self, lane: _Lane, counters: _Counters) -> None:
        self.network = lane.network
        self.rows = lane.rows
        self.opened = lane.opened
        self.counters = counters
        """Where it counts: those of the moment when it left."""

    def fail(self, cause: BaseException) -> None:
        """Raises in every waiter an error of its own, chained to `cause`."""
        for _, _, future in self.rows:
            if not future.done():
                future.set_exception(retold(cause))
