"""A clock that needs no waiting, an engine that does as it is told, and the inferers to test."""

import asyncio
import contextlib
import selectors
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.games.base import FloatArray
from asynccfr.inference import BatchingInferer, LocalInferer
from asynccfr.inference.engines import EagerEngine
from asynccfr.inference.heads import regret_matching

PATIENCE_SECONDS = 20.0
"""How long a broken test may hang before it fails."""


class AutojumpSelector(selectors.DefaultSelector):
    """Where it would sleep until a timer is due, it moves the clock there instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class MockClockLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a clock that starts at 0 and moves only while every task is waiting."""

    def __init__(self) -> None:
        self._clock = AutojumpSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


LoopFactory = Callable[[], asyncio.AbstractEventLoop]

LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):  # There is no uvloop for Windows.
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Runs each async test here on every loop, or on the mock clock if it is marked so."""
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return {"mock_clock": MockClockLoop}
    return LOOPS


@pytest.fixture(params=LOOPS.values(), ids=LOOPS.keys())
def new_loop(request: pytest.FixtureRequest) -> LoopFactory:
    """For tests that start and close loops themselves."""
    factory: LoopFactory = request.param
    return factory


class GatedEngine:
    """The eager engine with a gate before each forward and a list of what went through.

    Attributes:
        gate: forwards wait for it; open until a test clears it.
        batches: (network, rows) of every forward that began.
        threads: the threads that ran forwards and loads.
        torch_threads: torch's number of threads inside the latest forward.
        before_forward, after_forward, before_load: a test's own code, which may raise.
    """

    def __init__(self) -> None:
        self._engine = EagerEngine(torch.device("cpu"))
        self._began = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[tuple[str, FloatArray]] = []
        self.threads: set[threading.Thread] = set()
        self.torch_threads = 0
        self.before_forward: Callable[[str], None] = lambda name: None
        self.after_forward: Callable[[FloatArray], FloatArray] = lambda outputs: outputs
        self.before_load: Callable[[str], None] = lambda name: None

    def load(self, name: str, network: nn.Module) -> None:
        self.threads.add(threading.current_thread())
        self.before_load(name)
        self._engine.load(name, network)

    def forward(self, name: str, rows: FloatArray) -> FloatArray:
        self.threads.add(threading.current_thread())
        self.torch_threads = torch.get_num_threads()
        with self._began:
            self.batches.append((name, rows.copy()))
            self._began.notify_all()
        if not self.gate.wait(PATIENCE_SECONDS):
            raise TimeoutError("the test never opened the gate")
        self.before_forward(name)
        return self.after_forward(self._engine.forward(name, rows))

    def wait_for_forwards(self, count: int) -> None:
        """Blocks until `count` forwards have begun, those that are over included."""
        with self._began:
            assert self._began.wait_for(lambda: len(self.batches) >= count, PATIENCE_SECONDS)

    async def forwards(self, count: int) -> None:
        """As `wait_for_forwards`, with the loop running on meanwhile."""
        await asyncio.to_thread(self.wait_for_forwards, count)


@pytest.fixture
def engine() -> GatedEngine:
    """An engine to watch and to disturb."""
    return GatedEngine()


@pytest.fixture
def batching(engine: GatedEngine) -> Callable[..., AbstractAsyncContextManager[BatchingInferer]]:
    """`async with batching(max_batch=4) as inferer`: three actions, network "echo" is loaded.

    An encoding is three numbers; "echo" returns them as advantages, and the policy is in
    proportion to their positive parts, so a test can say the answer by looking at the request.
    """

    @contextlib.asynccontextmanager
    async def open_inferer(**settings: float) -> AsyncIterator[BatchingInferer]:
        options = {"max_batch": 512, "max_wait_us": 60e6} | settings
        inferer = BatchingInferer(engine, encoding_size=3, num_actions=3, **options)
        inferer.load("echo", nn.Identity(), regret_matching)
        async with inferer:
            try:
                yield inferer
            finally:
                engine.gate.set()

    return open_inferer


@pytest.fixture(autouse=True)
def _no_error_is_lost(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio logs what nobody could catch, such as a future's exception never retrieved."""
    yield
    assert [r.getMessage() for r in caplog.get_records("call") if r.name == "asyncio"] == []


@pytest.fixture(params=["local", "batching"])
def new_backend(
    request: pytest.FixtureRequest,
) -> Callable[..., LocalInferer | BatchingInferer]:
    """Makes one inferer or the other around an engine; for what both must do alike."""
    if request.param == "local":
        return LocalInferer
    return partial(BatchingInferer, max_batch=64, max_wait_us=60e6)


@pytest.fixture
def random_network() -> Callable[[int, int, int], nn.Module]:
    """(F, A, seed) -> a small network whose outputs differ from row to row."""

    def make(encoding_size: int, num_actions: int, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        network = nn.Sequential(nn.Linear(encoding_size, 32), nn.ReLU(), nn.Linear(32, num_actions))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        return network

    return make


@pytest.fixture
def random_requests() -> Callable[[int, int, int, int], list[tuple[bytes, tuple[int, ...]]]]:
    """(count, F, A, seed) -> random encodings, each with a random set of legal actions."""

    def make(
        count: int, encoding_size: int, num_actions: int, seed: int
    ) -> list[tuple[bytes, tuple[int, ...]]]:
        generator = np.random.default_rng(seed)
        requests = []
        for _ in range(count):
            encoding = generator.normal(size=encoding_size).astype(np.float32).tobytes()
            size = generator.integers(1, num_actions + 1)
            legal = sorted(generator.choice(num_actions, size, replace=False).tolist())
            requests.append((encoding, tuple(legal)))
        return requests

    return make
