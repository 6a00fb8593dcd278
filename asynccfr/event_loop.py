"""The interpreter's global settings and the event loop, borrowed and given back."""

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import torch

from asynccfr.torch_threads import use_threads

T = TypeVar("T")

SWITCH_INTERVAL_SECONDS = 1e-4
"""The inference thread takes the interpreter lock a dozen times a batch and waits up to this long
each time; Python's own 5 ms would cost half the speed."""


_scopes = 0
_outermost = contextlib.ExitStack()
_lock = threading.Lock()


@contextlib.contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Within: no automatic garbage collection, and a short thread switch interval.

    Traversal allocates millions of objects a second and makes no cycles, so automatic collection
    only costs time; call `collect_garbage` between phases. The settings belong to the process, so
    scopes are counted: however those of several trainers overlap, the first to be entered changes
    the settings, and the last to be left gives them back.
    """
    global _scopes
    with _lock:
        if not _scopes:
            _outermost.enter_context(_tuned())
        _scopes += 1
    try:
        yield
    finally:
        with _lock:
            _scopes -= 1
            if not _scopes:
                _outermost.close()


@contextlib.contextmanager
def _tuned() -> Iterator[None]:
    collecting = gc.isenabled()
    interval = sys.getswitchinterval()
    threads = torch.get_num_threads()
    thaw = gc.get_freeze_count() == 0  # What somebody else froze stays frozen.
    gc.collect()
    if thaw:
        gc.freeze()
    gc.disable()
    sys.setswitchinterval(min(SWITCH_INTERVAL_SECONDS, interval))
    try:
        yield
    finally:
        use_threads(threads)
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
