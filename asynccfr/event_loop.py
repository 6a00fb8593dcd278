"""The interpreter's global settings and the event loop, borrowed and given back."""

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

SWITCH_INTERVAL_SECONDS = 1e-4
"""The inference thread takes the interpreter lock a dozen times a batch and waits up to this long
each time; Python's own 5 ms would cost half the speed."""


@contextlib.contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Within: no automatic garbage collection, and a short thread switch interval.

    Traversal allocates millions of objects a second and makes no cycles, so automatic collection
    only costs time; call `collect_garbage` between phases. Both settings are given back on the
    way out, whatever happens.
    """
    collecting = gc.isenabled()
    interval = sys.getswitchinterval()
    thaw = gc.get_freeze_count() == 0  # What somebody else froze stays frozen.
    gc.collect()
    if thaw:
        gc.freeze()
    gc.disable()
    sys.setswitchinterval(min(SWITCH_INTERVAL_SECONDS, interval))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if thaw:
            gc.unfreeze()
        if collecting:
            gc.enable()


def collect_garbage() -> None:
    """One full collection of what was made since `tuned_interpreter` began; milliseconds."""
    gc.collect()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where uvloop is installed, asyncio's own elsewhere (Windows has none)."""
    factory: Callable[[], asyncio.AbstractEventLoop]
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = asyncio.new_event_loop
    return factory()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` in a new event loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
