"""The interpreter's settings, borrowed and given back; the loop, uvloop's or asyncio's."""

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from asynccfr import event_loop
from asynccfr.event_loop import collect_garbage, new_event_loop, run, tuned_interpreter


@pytest.fixture(autouse=True)
def _own_settings() -> Iterator[None]:
    collecting, interval = gc.isenabled(), sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    (gc.enable if collecting else gc.disable)()


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("interval", [0.005, 0.001])
def test_settings_hold_within_and_are_given_back(collecting: bool, interval: float):
    (gc.enable if collecting else gc.disable)()
    sys.setswitchinterval(interval)

    with tuned_interpreter():
        assert not gc.isenabled()
        assert sys.getswitchinterval() == pytest.approx(event_loop.SWITCH_INTERVAL_SECONDS)

    assert gc.isenabled() == collecting
    assert sys.getswitchinterval() == pytest.approx(interval)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("collecting", [True, False])
def test_settings_are_given_back_after_an_error(collecting: bool):
    (gc.enable if collecting else gc.disable)()
    interval = sys.getswitchinterval()

    with pytest.raises(KeyError), tuned_interpreter():
        raise KeyError

    assert gc.isenabled() == collecting
    assert sys.getswitchinterval() == interval
    assert gc.get_freeze_count() == 0


def test_an_interval_that_is_shorter_already_stays():
    shorter = event_loop.SWITCH_INTERVAL_SECONDS / 2
    sys.setswitchinterval(shorter)
    with tuned_interpreter():
        assert sys.getswitchinterval() == pytest.approx(shorter, rel=0.1)


def test_one_within_another():
    gc.enable()
    interval = sys.getswitchinterval()
    with tuned_interpreter():
        with tuned_interpreter():
            pass
        assert not gc.isenabled()
        assert sys.getswitchinterval() < interval

    assert gc.isenabled()
    assert sys.getswitchinterval() == interval


def test_garbage_made_within_can_be_collected():
    with tuned_interpreter():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        collect_garbage()

        assert gc.collect() == 0


def test_run_gives_back_the_result():
    async def main() -> int:
        await asyncio.sleep(0)
        return 42

    assert run(main()) == 42
    assert run(main()) == 42  # And again, in a loop of its own.


def test_run_passes_an_error_on():
    async def main() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run(main())


def test_uvloop_is_taken_where_there_is_one():
    uvloop = pytest.importorskip("uvloop")
    loop = new_event_loop()
    loop.close()

    assert isinstance(loop, uvloop.Loop)


def test_without_uvloop_asyncio_serves(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)  # Makes the import fail.

    async def main() -> type:
        return type(asyncio.get_running_loop())

    assert run(main()).__module__.startswith("asyncio")
