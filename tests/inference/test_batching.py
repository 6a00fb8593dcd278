"""What `BatchingInferer` promises, one section a promise.

In most tests the network is "echo": an encoding is three numbers, read back as advantages, so
`encode(1, 3, 0)` is answered by the policy 1/4, 3/4, 0.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.errors import InferenceClosedError, InferenceError, NonFiniteOutputError
from asynccfr.games.base import BoolArray, FloatArray
from asynccfr.inference import BatchingInferer
from asynccfr.inference.engines import EagerEngine
from asynccfr.inference.heads import masked_softmax, regret_matching

Batching = Callable[..., AbstractAsyncContextManager[BatchingInferer]]

ALL = (0, 1, 2)
mock_clock = pytest.mark.asyncio(loop_factories=["mock_clock"])


def encode(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


def answer(*numbers: float) -> object:
    return pytest.approx(list(numbers), abs=1e-6)


def numbered(engine, lane: str = "echo") -> list[list[int]]:
    """The first number of every row of every batch of `lane`."""
    return [rows[:, 0].astype(int).tolist() for name, rows in engine.batches if name == lane]


async def passes(count: int = 10) -> None:
    """Lets everything that can run do so, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


def chain(error: BaseException | None) -> list[BaseException]:
    """`error`, its cause, the cause of that, and so on."""
    links = []
    while error is not None:
        links.append(error)
        error = error.__cause__
    return links


# 1. A lane per network; first in, first out; a batch holds one lane's rows.


async def test_each_network_has_its_own_batches_in_order_of_arrival(engine, batching: Batching):
    async with batching(max_batch=3) as inferer:
        inferer.load("other", nn.Identity(), regret_matching)
        lanes = ["echo", "other", "other", "echo", "echo", "other", "echo", "echo", "other"]
        await asyncio.gather(
            *(inferer.infer(lane, encode(i, 1, 1), ALL) for i, lane in enumerate(lanes))
        )

    assert numbered(engine, "echo") == [[0, 3, 4], [6, 7]]
    assert numbered(engine, "other") == [[1, 2, 5], [8]]


async def test_answers_go_to_those_who_asked(batching: Batching):
    async with batching(max_batch=7) as inferer:
        policies = await asyncio.gather(
            *(inferer.infer("echo", encode(i, 100 - i, 7), (0, 1)) for i in range(100))
        )

    # Shares i / 100 and (100 - i) / 100; the third action is illegal.
    assert policies == [answer(i / 100, 1 - i / 100, 0) for i in range(100)]


async def test_an_unknown_network_is_refused_at_once_and_the_known_ones_named(batching: Batching):
    async with batching() as inferer:
        inferer.load("another", nn.Identity(), regret_matching)
        with pytest.raises(InferenceError, match=r"no network named 'eco'.*another, echo"):
            inferer.infer("eco", encode(1, 1, 1), ALL)


async def test_without_any_network_the_refusal_says_so(engine):
    async with BatchingInferer(engine, encoding_size=3, num_actions=3) as inferer:
        with pytest.raises(InferenceError, match="loaded: none"):
            inferer.infer("echo", encode(1, 1, 1), ALL)


@pytest.mark.parametrize("max_batch", [0, -1])
async def test_a_batch_limit_below_one_is_refused(engine, max_batch: int):
    with pytest.raises(ValueError, match="max_batch"):
        BatchingInferer(engine, encoding_size=3, num_actions=3, max_batch=max_batch)


# 2. A batch leaves on size, deadline or idle, whichever comes first.


async def test_a_full_batch_leaves_and_the_last_partial_one_follows(engine, batching: Batching):
    async with batching(max_batch=4) as inferer:
        await asyncio.gather(*(inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(10)))
        statistics = inferer.statistics()

    assert numbered(engine) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert statistics.reasons == {"size": 2, "idle": 1}


async def test_one_coroutine_finishes_under_a_limit_that_it_can_never_reach(
    engine, batching: Batching
):
    async with batching(max_batch=4096) as inferer:
        for i in range(5):
            await inferer.infer("echo", encode(i, 1, 1), ALL)
        statistics = inferer.statistics()

    assert numbered(engine) == [[0], [1], [2], [3], [4]]
    assert statistics.reasons == {"idle": 5}


async def test_a_limit_of_one_row_works(engine, batching: Batching):
    async with batching(max_batch=1) as inferer:
        await asyncio.gather(*(inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(3)))
        statistics = inferer.statistics()

    assert numbered(engine) == [[0], [1], [2]]
    assert statistics.reasons == {"size": 3}


async def test_idle_means_that_every_coroutine_has_had_its_turn(engine, batching: Batching):
    async def ask(i: int) -> None:
        for _ in range(3):
            await inferer.infer("echo", encode(i, 1, 1), ALL)

    async with batching() as inferer:
        await asyncio.gather(*(ask(i) for i in range(50)))

    assert numbered(engine) == [list(range(50))] * 3


async def test_a_coroutine_that_can_still_run_is_waited_for(engine, batching: Batching):
    async def ask(i: int) -> None:
        if i == 1:
            await asyncio.sleep(0)  # It asks one pass through the ready queue later.
        await inferer.infer("echo", encode(i, 1, 1), ALL)

    async with batching() as inferer:
        await asyncio.gather(ask(0), ask(1))

    assert numbered(engine) == [[0, 1]]


async def test_two_batches_are_in_flight_and_the_third_fills_until_one_is_back(
    engine, batching: Batching
):
    async with batching() as inferer:
        engine.gate.clear()
        waiting = []
        for i in range(6):
            waiting.append(inferer.infer("echo", encode(i, 1, 1), ALL))
            await passes()

        assert inferer.statistics().batches == 2
        engine.gate.set()
        await asyncio.gather(*waiting)

    assert numbered(engine) == [[0], [1], [2, 3, 4, 5]]


async def test_a_full_batch_leaves_however_many_are_in_flight(engine, batching: Batching):
    async with batching(max_batch=2) as inferer:
        engine.gate.clear()
        waiting = [inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(8)]
        assert inferer.statistics().batches == 4
        engine.gate.set()
        await asyncio.gather(*waiting)


async def two_in_flight(engine, inferer: BatchingInferer) -> list[asyncio.Future[list[float]]]:
    """Holds two batches of lane "held" at the engine, so that no batch leaves for being idle."""
    engine.gate.clear()
    inferer.load("held", nn.Identity(), regret_matching)
    waiting = []
    for _ in range(2):
        waiting.append(inferer.infer("held", encode(0, 1, 1), ALL))
        await passes()
    assert inferer.statistics().reasons == {"idle": 2}
    return waiting


@mock_clock
async def test_a_batch_leaves_when_its_first_row_has_waited_the_longest_wait(
    engine, batching: Batching
):
    async with batching(max_wait_us=1_000) as inferer:
        waiting = await two_in_flight(engine, inferer)

        waiting.append(inferer.infer("echo", encode(1, 1, 1), ALL))
        await asyncio.sleep(0.0006)
        waiting.append(inferer.infer("echo", encode(2, 1, 1), ALL))  # Starts no new wait.
        await asyncio.sleep(0.0003)
        assert inferer.statistics().reasons == {"idle": 2}
        await asyncio.sleep(0.0002)
        assert inferer.statistics().reasons == {"idle": 2, "deadline": 1}

        engine.gate.set()
        await asyncio.gather(*waiting)

    assert numbered(engine) == [[1, 2]]


@mock_clock
async def test_each_lane_has_its_own_deadline(engine, batching: Batching):
    async with batching(max_wait_us=1_000) as inferer:
        inferer.load("other", nn.Identity(), regret_matching)
        waiting = await two_in_flight(engine, inferer)

        waiting.append(inferer.infer("echo", encode(1, 1, 1), ALL))
        await asyncio.sleep(0.0005)
        waiting.append(inferer.infer("other", encode(2, 1, 1), ALL))
        await asyncio.sleep(0.0006)
        assert inferer.statistics().reasons["deadline"] == 1
        await asyncio.sleep(0.0005)
        assert inferer.statistics().reasons["deadline"] == 2

        engine.gate.set()
        await asyncio.gather(*waiting)

    assert [name for name, _ in engine.batches] == ["held", "held", "echo", "other"]


@mock_clock
async def test_a_batch_that_left_full_does_not_leave_again_at_its_deadline(
    engine, batching: Batching
):
    async with batching(max_batch=2, max_wait_us=1_000) as inferer:
        waiting = await two_in_flight(engine, inferer)

        waiting += [inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(2)]
        await asyncio.sleep(0.0009)
        waiting.append(inferer.infer("echo", encode(2, 1, 1), ALL))
        await asyncio.sleep(0.0009)  # Past the first batch's deadline, before the second's.
        assert inferer.statistics().reasons == {"idle": 2, "size": 1}

        engine.gate.set()
        await asyncio.gather(*waiting)

    assert numbered(engine) == [[0, 1], [2]]


@mock_clock
async def test_an_idle_batch_does_not_wait_for_its_deadline(engine, batching: Batching):
    async with batching(max_wait_us=60e6) as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        assert inferer.statistics().reasons == {"idle": 1}


# 3. One dedicated thread does the work while the loop runs on.


async def test_forwards_run_on_one_thread_that_is_not_the_loops(engine, batching: Batching):
    async with batching(max_batch=2) as inferer:
        await asyncio.gather(*(inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(9)))

    assert len(engine.threads) == 1
    assert threading.current_thread() not in engine.threads


async def test_heads_run_on_that_thread_too(engine, batching: Batching):
    threads = set()

    def head(outputs: FloatArray, legal: BoolArray) -> FloatArray:
        threads.add(threading.current_thread())
        return regret_matching(outputs, legal)

    async with batching() as inferer:
        inferer.load("echo", nn.Identity(), head)
        await inferer.infer("echo", encode(1, 1, 1), ALL)

    assert threads == engine.threads


async def test_the_loop_fills_the_next_batch_during_a_forward(engine, batching: Batching):
    async with batching() as inferer:
        engine.gate.clear()
        first = inferer.infer("echo", encode(1, 0, 0), ALL)
        await engine.forwards(1)  # The thread is inside a forward from here on.
        second = inferer.infer("echo", encode(0, 1, 0), ALL)
        await passes()

        assert inferer.statistics().batches == 2
        assert not first.done()
        assert not second.done()
        engine.gate.set()
        assert await first == answer(1, 0, 0)
        assert await second == answer(0, 1, 0)


# 4. A cancelled waiter is passed over; its neighbours get their answers.


@pytest.mark.parametrize("victims", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
async def test_waiters_cancelled_before_the_batch_leaves(
    engine, batching: Batching, victims: set[int]
):
    async with batching() as inferer:
        futures = [inferer.infer("echo", encode(1, i, 0), ALL) for i in range(3)]
        for victim in victims:
            futures[victim].cancel()
        await check_the_others_are_answered(inferer, futures, victims)


@pytest.mark.parametrize("victims", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
async def test_waiters_cancelled_during_the_forward(engine, batching: Batching, victims: set[int]):
    async with batching() as inferer:
        engine.gate.clear()
        futures = [inferer.infer("echo", encode(1, i, 0), ALL) for i in range(3)]
        await engine.forwards(1)
        for victim in victims:
            futures[victim].cancel()
        engine.gate.set()
        await check_the_others_are_answered(inferer, futures, victims)


async def check_the_others_are_answered(
    inferer: BatchingInferer, futures: list[asyncio.Future[list[float]]], victims: set[int]
) -> None:
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for i, outcome in enumerate(outcomes):
        if i in victims:
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert outcome == answer(1 / (1 + i), i / (1 + i), 0)
    assert await inferer.infer("echo", encode(0, 0, 1), ALL) == answer(0, 0, 1)


async def test_a_waiter_cancelled_after_its_answer_was_given_but_before_it_saw_it(
    batching: Batching,
):
    async with batching() as inferer, asyncio.TaskGroup() as group:

        async def ask(i: int) -> list[float]:
            policy = await inferer.infer("echo", encode(i, 1, 0), ALL)
            if i == 0:
                tasks[1].cancel()  # Its answer came with this one; it has yet to wake up.
            return policy

        tasks = [group.create_task(ask(i)) for i in range(3)]

    assert tasks[0].result() == answer(0, 1, 0)
    assert tasks[1].cancelled()
    assert tasks[2].result() == answer(2 / 3, 1 / 3, 0)


async def test_a_waiter_cancelled_as_its_batch_fails_takes_its_error_away(batching: Batching):
    async with batching() as inferer:

        async def ask(i: int) -> None:
            try:
                await inferer.infer("echo", encode(np.nan, 1, 0), ALL)
            finally:
                tasks[1].cancel()

        tasks = [asyncio.ensure_future(ask(i)) for i in range(2)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [NonFiniteOutputError, asyncio.CancelledError]


# 5. A failure reaches exactly its batch's waiters, chained to its cause; the next batch works.


class Broken(Exception):
    """What the tests inject."""


def fail(*_: object) -> FloatArray:
    raise Broken("injected")


def fail_hard(*_: object) -> FloatArray:
    raise SystemExit("injected")


def keep_one(rows: FloatArray) -> FloatArray:
    return rows[:1]


def drop_one(rows: FloatArray) -> FloatArray:
    return rows[:-1]


def one_too_many(rows: FloatArray) -> FloatArray:
    return np.vstack((rows, rows[:1]))


FAULTS = pytest.mark.parametrize(
    ("where", "fault", "cause"),
    [
        ("collation", encode(1, 1), ValueError),
        ("collation", encode(1, 1, 1)[:-1], ValueError),
        ("legal", (0, 3), IndexError),
        ("forward", fail, Broken),
        ("forward", fail_hard, SystemExit),
        ("outputs", keep_one, InferenceError),
        ("outputs", drop_one, InferenceError),
        ("outputs", one_too_many, InferenceError),
        ("head", fail, Broken),
        ("head", keep_one, InferenceError),
        ("head", drop_one, InferenceError),
        ("head", one_too_many, InferenceError),
    ],
)


@FAULTS
async def test_a_fault_fails_its_own_batch_and_no_other(
    engine, batching: Batching, where: str, fault: object, cause: type[BaseException]
):
    def strikes(here: str) -> bool:
        name, rows = engine.batches[-1]
        return where == here and name == "echo" and rows[0, 0] == 13

    def before_forward(name: str) -> None:
        if strikes("forward"):
            fault()

    def after_forward(outputs: FloatArray) -> FloatArray:
        return fault(outputs) if strikes("outputs") else outputs

    def head(outputs: FloatArray, legal: BoolArray) -> FloatArray:
        policies = regret_matching(outputs, legal)
        return fault(policies) if strikes("head") else policies

    engine.before_forward, engine.after_forward = before_forward, after_forward
    encoding = fault if where == "collation" else encode(1, 0, 0)
    legal = fault if where == "legal" else ALL

    async with batching(max_batch=4) as inferer:
        inferer.load("echo", nn.Identity(), head)
        inferer.load("sound", nn.Identity(), regret_matching)
        engine.gate.clear()  # So that every batch below is at the thread at once.
        before = [inferer.infer("echo", encode(2, 0, 0), ALL) for _ in range(4)]
        struck = [inferer.infer("echo", encode(13, 0, 0), ALL) for _ in range(3)]
        struck.append(inferer.infer("echo", encoding, legal))
        beside = [inferer.infer("sound", encode(13, 0, 0), ALL) for _ in range(4)]
        after = [inferer.infer("echo", encode(2, 0, 0), ALL) for _ in range(4)]
        engine.gate.set()

        errors = await asyncio.gather(*struck, return_exceptions=True)
        policies = await asyncio.gather(*before, *beside, *after)

    assert policies == [answer(1, 0, 0)] * len(policies)
    assert all(isinstance(error, InferenceError) for error in errors)
    assert len({id(error) for error in errors}) == 4
    assert all(isinstance(chain(error)[1], cause) for error in errors)


async def test_a_network_that_cannot_be_loaded_fails_who_asks_it_until_one_can(
    engine, batching: Batching
):
    async with batching() as inferer:
        engine.before_load = lambda name: fail() if name == "poor" else None
        inferer.load("poor", nn.Identity(), regret_matching)
        errors = await asyncio.gather(
            *(inferer.infer("poor", encode(1, 1, 1), ALL) for _ in range(3)),
            return_exceptions=True,
        )
        assert await inferer.infer("echo", encode(1, 0, 0), ALL) == answer(1, 0, 0)
        engine.before_load = lambda name: None
        inferer.load("poor", nn.Identity(), regret_matching)
        assert await inferer.infer("poor", encode(1, 0, 0), ALL) == answer(1, 0, 0)

    assert all("'poor' could not be loaded" in str(error) for error in errors)
    assert all(isinstance(chain(error)[-1], Broken) for error in errors)
    assert len({id(error) for error in errors}) == 3


async def test_a_network_that_cannot_be_copied_is_refused_and_changes_nothing(
    batching: Batching,
):
    class Uncopyable(nn.Module):
        def __deepcopy__(self, memo: object) -> "Uncopyable":
            raise Broken("injected")

    async with batching() as inferer:
        with pytest.raises(Broken):
            inferer.load("new", Uncopyable(), regret_matching)
        with pytest.raises(InferenceError, match="no network named 'new'"):
            inferer.infer("new", encode(1, 1, 1), ALL)
        with pytest.raises(Broken):
            inferer.load("echo", Uncopyable(), regret_matching)
        assert await inferer.infer("echo", encode(1, 0, 0), ALL) == answer(1, 0, 0)


# 6. `aclose` is idempotent, fails what is pending, joins the thread; `infer` then raises at once.


async def test_closing_fails_the_open_batch_and_those_in_flight(engine, batching: Batching):
    async with batching() as inferer:
        engine.gate.clear()
        futures = []
        for i in range(4):  # Two in flight, two in the open batch.
            futures.append(inferer.infer("echo", encode(i, 1, 1), ALL))
            await passes()
        await engine.forwards(1)

        closing = asyncio.ensure_future(inferer.aclose())
        await passes()
        errors = [future.exception() for future in futures]
        assert not closing.done()  # It waits for the forward that is running.
        with pytest.raises(InferenceClosedError):
            inferer.infer("echo", encode(1, 1, 1), ALL)
        engine.gate.set()
        await closing

    assert [type(error) for error in errors] == [InferenceClosedError] * 4
    assert len({id(error) for error in errors}) == 4
    assert numbered(engine) == [[0]]  # No forward began after the one that was running.
    assert not any(thread.is_alive() for thread in engine.threads)


async def test_a_closed_inferer_refuses_at_once(batching: Batching):
    async with batching() as inferer:
        pass
    with pytest.raises(InferenceClosedError, match="closed"):
        inferer.infer("echo", encode(1, 1, 1), ALL)
    with pytest.raises(InferenceClosedError, match="closed"):
        inferer.infer("unknown", encode(1, 1, 1), ALL)
    with pytest.raises(InferenceClosedError, match="closed"):
        inferer.load("echo", nn.Identity(), regret_matching)


async def test_closing_again_and_at_the_same_time(engine, batching: Batching):
    async with batching() as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        await asyncio.gather(inferer.aclose(), inferer.aclose(), inferer.aclose())
        await inferer.aclose()

    assert not any(thread.is_alive() for thread in engine.threads)


async def test_closing_can_be_cancelled_and_done_again(engine, batching: Batching):
    async with batching() as inferer:
        engine.gate.clear()
        pending = inferer.infer("echo", encode(1, 1, 1), ALL)
        await engine.forwards(1)
        closing = asyncio.ensure_future(inferer.aclose())
        await passes()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(InferenceClosedError):
            await pending
        engine.gate.set()
        await inferer.aclose()

    assert not any(thread.is_alive() for thread in engine.threads)


async def test_closing_does_not_wait_for_networks_that_were_still_to_be_loaded(
    engine, batching: Batching
):
    async with batching() as inferer:
        engine.gate.clear()
        pending = inferer.infer("echo", encode(1, 1, 1), ALL)
        await engine.forwards(1)
        loaded = []
        engine.before_load = loaded.append
        inferer.load("late", nn.Identity(), regret_matching)
        closing = asyncio.ensure_future(inferer.aclose())
        await passes()
        engine.gate.set()
        await closing
        with pytest.raises(InferenceClosedError):
            await pending

    assert loaded == []


async def test_an_error_inside_the_with_block_closes_the_inferer_and_passes_on(
    engine, batching: Batching
):
    async def ask_and_fail() -> None:
        async with batching() as inferer:
            await inferer.infer("echo", encode(1, 1, 1), ALL)
            raise Broken

    with pytest.raises(Broken):
        await ask_and_fail()

    assert not any(thread.is_alive() for thread in engine.threads)


async def test_cancelled_waiters_are_passed_over_when_closing(batching: Batching):
    async with batching() as inferer:
        cancelled = inferer.infer("echo", encode(1, 1, 1), ALL)
        failed = inferer.infer("echo", encode(1, 1, 1), ALL)
        cancelled.cancel()

    assert cancelled.cancelled()
    with pytest.raises(InferenceClosedError):
        await failed


async def ask_once(engine) -> list[float]:
    async with BatchingInferer(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        return await inferer.infer("echo", encode(1, 3, 0), ALL)


def test_one_event_loop_after_another(engine, new_loop):
    for _ in range(3):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(ask_once(engine)) == answer(1 / 4, 3 / 4, 0)


def test_two_event_loops_at_once_in_two_threads(engine, new_loop):
    answers = []

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            answers.append(runner.run(ask_once(engine)))

    engine.gate.clear()
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    engine.wait_for_forwards(2)  # Both are in the middle of a forward.
    engine.gate.set()
    for thread in threads:
        thread.join()

    assert answers == [answer(1 / 4, 3 / 4, 0)] * 2


def test_answers_for_a_loop_that_is_closed_are_dropped(engine, new_loop):
    async def ask_and_leave() -> None:
        inferer = BatchingInferer(engine, encoding_size=3, num_actions=3, max_batch=1)
        inferer.load("echo", nn.Identity(), regret_matching)
        engine.gate.clear()
        for i in range(2):
            inferer.infer("echo", encode(i, 1, 1), ALL)

    loop = new_loop()
    loop.run_until_complete(ask_and_leave())
    loop.close()
    engine.gate.set()

    engine.wait_for_forwards(2)  # The second begins after the first answer found no loop.
    assert numbered(engine) == [[0], [1]]


# 7. Output that is not finite raises; it never becomes a policy.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("head", [regret_matching, masked_softmax])
@pytest.mark.parametrize("legal", [(0, 1), ALL], ids=["at an illegal action", "at a legal one"])
async def test_output_that_is_not_finite_raises_in_every_waiter_of_the_batch(
    batching: Batching, value: float, head, legal: tuple[int, ...]
):
    async with batching() as inferer:
        inferer.load("net", nn.Identity(), head)
        errors = await asyncio.gather(
            inferer.infer("net", encode(1, 1, 1), ALL),
            inferer.infer("net", encode(1, 1, value), legal),
            return_exceptions=True,
        )
        policy = await inferer.infer("net", encode(0, 0, 0), (0, 1))

    assert [type(error) for error in errors] == [NonFiniteOutputError] * 2
    assert "NaN or infinite in 1 of 2 rows" in str(errors[0])
    assert policy == answer(1 / 2, 1 / 2, 0)


# 8. `statistics` is a frozen snapshot.


async def test_statistics_count_what_happened(engine, batching: Batching):
    async with batching(max_batch=4) as inferer:
        await asyncio.gather(*(inferer.infer("echo", encode(i, 1, 1), ALL) for i in range(10)))
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        statistics = inferer.statistics()

    assert statistics.requests == 11
    assert statistics.batches == 4
    assert statistics.batch_sizes == {4: 2, 2: 1, 1: 1}
    assert statistics.mean_batch == 11 / 4
    assert statistics.reasons == {"size": 2, "idle": 2}
    assert statistics.cache_hits == 0
    assert statistics.forward_seconds > 0
    assert 0 < statistics.busy_share <= 1
    assert set(statistics.wait_us) == {50, 90, 99}
    assert 0 < statistics.wait_us[50] <= statistics.wait_us[90] <= statistics.wait_us[99]


async def test_statistics_before_the_first_request(batching: Batching):
    async with batching() as inferer:
        statistics = inferer.statistics()

    assert (statistics.requests, statistics.batches, statistics.mean_batch) == (0, 0, 0)
    assert statistics.wait_us == {}


async def test_a_snapshot_does_not_change(batching: Batching):
    async with batching() as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        before = inferer.statistics()
        await asyncio.gather(*(inferer.infer("echo", encode(1, 1, 1), ALL) for _ in range(2)))

    assert before.requests == 1
    assert before.batch_sizes == {1: 1}
    assert before.reasons == {"idle": 1}
    with pytest.raises(FrozenInstanceError):
        before.requests = 5


async def test_statistics_can_be_read_after_closing(batching: Batching):
    async with batching() as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)

    assert inferer.statistics().requests == 1


async def test_statistics_start_again_and_a_batch_counts_where_it_left(engine, batching: Batching):
    async with batching() as inferer:
        engine.gate.clear()
        early = inferer.infer("echo", encode(1, 1, 1), ALL)
        await engine.forwards(1)
        inferer.reset_statistics()
        engine.gate.set()
        await early
        empty = inferer.statistics()
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        full = inferer.statistics()

    assert (empty.requests, empty.batches, empty.wait_us, empty.forward_seconds) == (0, 0, {}, 0)
    assert empty.busy_share == 0
    assert (full.requests, full.batches) == (1, 1)
    assert full.forward_seconds > 0


async def test_failed_and_cancelled_requests_count_too(batching: Batching):
    async with batching() as inferer:
        futures = [inferer.infer("echo", encode(np.nan, 1, 1), ALL) for _ in range(3)]
        futures[0].cancel()
        await asyncio.gather(*futures, return_exceptions=True)

        assert inferer.statistics().requests == 3


@pytest.mark.parametrize("threads", [1, 2])
async def test_the_thread_has_the_torch_threads_it_was_given_and_no_other_thread_does(
    engine, batching: Batching, threads: int
):
    torch.set_num_threads(3)
    async with batching(threads=threads) as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        torch.set_num_threads(4)  # Another part of the program; not the inferer's business.
        await inferer.infer("echo", encode(1, 1, 1), ALL)
        seen_by_a_new_thread = await asyncio.to_thread(torch.get_num_threads)

        assert engine.torch_threads == threads
        assert inferer.statistics().threads == threads
        assert torch.get_num_threads() == 4
        assert seen_by_a_new_thread == 4


async def test_starting_leaves_the_torch_threads_of_others_as_they_are(batching: Batching):
    torch.set_num_threads(3)
    async with batching(threads=1) as inferer:
        await inferer.infer("echo", encode(1, 1, 1), ALL)

        assert torch.get_num_threads() == 3
        assert await asyncio.to_thread(torch.get_num_threads) == 3


# Networks change in order with the requests.


class Reversed(nn.Module):
    """The echo, backwards."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.flip(1)


async def test_requests_before_a_load_get_the_old_network_and_later_ones_the_new(
    engine, batching: Batching
):
    async with batching() as inferer:
        old = inferer.infer("echo", encode(1, 0, 0), ALL)
        inferer.load("echo", Reversed(), regret_matching)
        new = inferer.infer("echo", encode(1, 0, 0), ALL)

        assert await old == answer(1, 0, 0)
        assert await new == answer(0, 0, 1)


async def test_a_load_waits_for_the_forwards_before_it(engine, batching: Batching):
    async with batching(max_batch=1) as inferer:
        engine.gate.clear()
        old = [inferer.infer("echo", encode(1, 0, 0), ALL) for _ in range(3)]
        inferer.load("echo", Reversed(), regret_matching)
        new = [inferer.infer("echo", encode(1, 0, 0), ALL) for _ in range(3)]
        engine.gate.set()

        assert await asyncio.gather(*old) == [answer(1, 0, 0)] * 3
        assert await asyncio.gather(*new) == [answer(0, 0, 1)] * 3


async def test_a_load_leaves_the_other_lanes_as_they_are(engine, batching: Batching):
    async with batching() as inferer:
        inferer.load("other", nn.Identity(), regret_matching)
        futures = [inferer.infer("other", encode(0, 1, 1), ALL)]
        inferer.load("echo", Reversed(), regret_matching)
        futures.append(inferer.infer("other", encode(1, 1, 1), ALL))
        await asyncio.gather(*futures)

    assert numbered(engine, "other") == [[0, 1]]


async def test_weights_are_copied_when_they_are_loaded(batching: Batching):
    network = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(3))
    async with batching() as inferer:
        inferer.load("net", network, regret_matching)
        with torch.no_grad():
            network.weight.zero_()  # As a fit that goes on would.

        assert await inferer.infer("net", encode(1, 3, 0), ALL) == answer(1 / 4, 3 / 4, 0)


# The answers themselves.


@pytest.mark.parametrize("head", [regret_matching, masked_softmax])
@pytest.mark.parametrize("max_batch", [1, 5, 64])
async def test_answers_equal_a_direct_forward(
    random_network, random_requests, head, max_batch: int
):
    network = random_network(6, 4, 1)
    requests = random_requests(100, 6, 4, 2)
    engine = EagerEngine(torch.device("cpu"))
    async with BatchingInferer(
        engine, encoding_size=6, num_actions=4, max_batch=max_batch
    ) as inferer:
        inferer.load("net", network, head)
        policies = await asyncio.gather(*(inferer.infer("net", *request) for request in requests))

    for (encoding, legal), policy in zip(requests, policies, strict=True):
        row = torch.from_numpy(np.frombuffer(encoding, np.float32).copy()).unsqueeze(0)
        mask = np.isin(np.arange(4), legal)[None]
        expected = head(network(row).detach().numpy(), mask)[0]
        np.testing.assert_allclose(policy, expected, atol=1e-5)
        assert all(policy[action] == 0 for action in range(4) if action not in legal)


@pytest.mark.parametrize("head", [regret_matching, masked_softmax])
async def test_a_row_has_the_same_answer_beside_any_others(random_network, random_requests, head):
    engine = EagerEngine(torch.device("cpu"))
    chosen, *others = random_requests(40, 6, 4, 3)
    async with BatchingInferer(engine, encoding_size=6, num_actions=4) as inferer:
        inferer.load("net", random_network(6, 4, 1), head)
        alone = await inferer.infer("net", *chosen)
        for count in (1, 5, 39):
            *_, beside = await asyncio.gather(
                *(inferer.infer("net", *request) for request in [*others[:count], chosen])
            )
            np.testing.assert_allclose(beside, alone, atol=1e-5)


# All of it at once.


def cancel_after(passes: int, future: asyncio.Future[list[float]]) -> None:
    if passes:
        future.get_loop().call_soon(cancel_after, passes - 1, future)
    else:
        future.cancel()


async def test_a_storm_of_requests_with_a_tenth_of_the_waiters_cancelled(batching: Batching):
    chance = random.Random(0)
    outcomes: Counter[str] = Counter()

    async def ask_many() -> None:
        for _ in range(100):
            numbers = [chance.randint(1, 9) for _ in range(3)]
            future = inferer.infer(chance.choice(["echo", "other"]), encode(*numbers), ALL)
            if chance.random() < 0.1:
                cancel_after(chance.randint(0, 20), future)
            try:
                assert await future == answer(*(number / sum(numbers) for number in numbers))
                outcomes["answered"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1

    async with batching(max_batch=64, max_wait_us=500) as inferer:
        inferer.load("other", nn.Identity(), regret_matching)
        await asyncio.gather(*(ask_many() for _ in range(200)))
        statistics = inferer.statistics()

    assert outcomes.total() == statistics.requests == 20_000
    assert outcomes["cancelled"] > 100  # The others of the tenth were answered in time.
    assert sum(statistics.reasons.values()) == statistics.batches
    assert max(statistics.batch_sizes) <= 64
