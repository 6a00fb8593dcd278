"""The policy cache: what it remembers, what it forgets, and who waits for whom."""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.errors import InferenceClosedError, InferenceError
from asynccfr.inference import BatchingInferer, CachingInferer, Inferer, LocalInferer, cache
from asynccfr.inference.base import InfererContext, Statistics
from asynccfr.inference.doubles import ScriptedInferer
from asynccfr.inference.engines import EagerEngine
from asynccfr.inference.heads import Head, regret_matching

LEGAL = (0, 1)
OLD, NEW = [0.25, 0.75], [0.5, 0.5]


class HeldInferer(InfererContext):
    """Answers when the test says so.

    Attributes:
        asked: the requests so far; a test settles them as it likes.
    """

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[list[float]]] = []

    def infer(
        self, network: str, encoding: bytes, legal: tuple[int, ...]
    ) -> asyncio.Future[list[float]]:
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        return future

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        pass

    def statistics(self) -> Statistics:
        return Statistics(requests=len(self.asked))

    def reset_statistics(self) -> None:
        self.asked.clear()


def cached(inner: Inferer, networks: Iterable[str] = ("net",), **options) -> CachingInferer:
    """A cache around `inner`, with networks loaded."""
    inferer = CachingInferer(inner, **options)
    for name in networks:
        load(inferer, name)
    return inferer


def load(inferer: Inferer, name: str = "net") -> None:
    inferer.load(name, nn.Identity(), regret_matching)


@pytest.fixture
def inner() -> ScriptedInferer:
    """Answers request number n with [n, 0], so equal answers come from one request."""
    scripted = ScriptedInferer(lambda *request: [float(len(scripted.requests)), 0.0])
    return scripted


async def passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def ask(inferer: Inferer, count: int) -> list[asyncio.Task[list[float]]]:
    """`count` coroutines that want the same policy."""
    return [asyncio.ensure_future(inferer.infer("net", b"x", LEGAL)) for _ in range(count)]


async def test_a_policy_is_asked_for_once(inner: ScriptedInferer):
    inferer = cached(inner)

    assert [await inferer.infer("net", b"x", LEGAL) for _ in range(3)] == [[1, 0]] * 3
    assert await inferer.infer("net", b"y", LEGAL) == [2, 0]
    assert len(inner.requests) == 2


async def test_each_network_is_remembered_by_itself(inner: ScriptedInferer):
    inferer = cached(inner, ["a", "b"])

    assert await inferer.infer("a", b"x", LEGAL) == [1, 0]
    assert await inferer.infer("b", b"x", LEGAL) == [2, 0]
    assert await inferer.infer("a", b"x", LEGAL) == [1, 0]


async def test_a_load_forgets_the_policies_of_that_network_alone(inner: ScriptedInferer):
    inferer = cached(inner, ["a", "b"])
    await inferer.infer("a", b"x", LEGAL)
    await inferer.infer("b", b"x", LEGAL)

    load(inferer, "a")

    assert await inferer.infer("a", b"x", LEGAL) == [3, 0]
    assert await inferer.infer("b", b"x", LEGAL) == [2, 0]


async def test_a_load_reaches_the_inner_inferer(inner: ScriptedInferer):
    network = nn.Identity()
    CachingInferer(inner).load("net", network, regret_matching)

    assert inner.loaded == [("net", network)]


async def test_a_full_cache_takes_no_more_and_keeps_what_it_has(inner: ScriptedInferer):
    inferer = cached(inner, capacity=2)
    for encoding in (b"x", b"y", b"z", b"z", b"x", b"y"):
        await inferer.infer("net", encoding, LEGAL)

    assert [encoding for _, encoding, _ in inner.requests] == [b"x", b"y", b"z", b"z"]


async def test_the_capacity_is_each_networks_own_and_is_free_again_after_a_load(
    inner: ScriptedInferer,
):
    inferer = cached(inner, ["a", "b"], capacity=1)
    for name in ("a", "b", "a", "b"):
        await inferer.infer(name, b"x", LEGAL)
    assert len(inner.requests) == 2
    load(inferer, "a")
    for _ in range(2):
        await inferer.infer("a", b"y", LEGAL)
    assert len(inner.requests) == 3


# Many who want the same at once.


async def test_who_asks_for_what_is_being_asked_waits_for_that_answer():
    inner = HeldInferer()
    tasks = ask(cached(inner), 5)
    await passes()

    assert len(inner.asked) == 1
    inner.asked[0].set_result(OLD)
    assert await asyncio.gather(*tasks) == [OLD] * 5


@pytest.mark.parametrize("victim", [1, 2, 4])
async def test_a_cancelled_waiter_leaves_the_others_to_be_answered(victim: int):
    inner = HeldInferer()
    tasks = ask(cached(inner), 5)
    await passes()
    tasks[victim].cancel()
    await passes()
    inner.asked[0].set_result(OLD)

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(outcomes.pop(victim), asyncio.CancelledError)
    assert outcomes == [OLD] * 4
    assert len(inner.asked) == 1


async def test_when_the_one_who_asks_is_cancelled_another_asks_in_its_place():
    inner = HeldInferer()
    tasks = ask(cached(inner), 5)
    await passes()
    for place in range(3):  # The one who asks is cancelled, then the next, then the next.
        tasks[place].cancel()
        await passes()
        assert len(inner.asked) == place + 2
        assert inner.asked[place].cancelled()
    inner.asked[3].set_result(OLD)

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes[:3]] == [asyncio.CancelledError] * 3
    assert outcomes[3:] == [OLD] * 2


async def test_all_are_cancelled_and_the_next_asks_afresh():
    inner = HeldInferer()
    inferer = cached(inner)
    tasks = ask(inferer, 3)
    await passes()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    late = ask(inferer, 1)
    await passes()
    inner.asked[-1].set_result(OLD)

    assert await asyncio.gather(*late) == [OLD]


async def test_a_failure_reaches_everyone_who_waits_each_with_an_error_of_its_own():
    inner = HeldInferer()
    inferer = cached(inner)
    tasks = ask(inferer, 4)
    await passes()
    cause = InferenceError("injected")
    inner.asked[0].set_exception(cause)

    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(error, InferenceError) for error in errors)
    assert all("injected" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == 4
    assert all(cause in (error, error.__cause__) for error in errors)


async def test_a_failure_is_not_remembered():
    inner = HeldInferer()
    inferer = cached(inner)
    tasks = ask(inferer, 2)
    await passes()
    inner.asked[0].set_exception(InferenceError("injected"))
    await asyncio.gather(*tasks, return_exceptions=True)

    again = ask(inferer, 2)
    await passes()
    inner.asked[1].set_result(OLD)

    assert await asyncio.gather(*again) == [OLD] * 2


async def test_an_answer_from_before_a_load_is_for_those_who_asked_before_it():
    inner = HeldInferer()
    inferer = cached(inner)
    before = ask(inferer, 3)
    await passes()
    load(inferer)
    after = ask(inferer, 3)
    await passes()
    assert len(inner.asked) == 2

    inner.asked[1].set_result(NEW)  # Whichever comes first.
    await passes()
    inner.asked[0].set_result(OLD)

    assert await asyncio.gather(*before) == [OLD] * 3
    assert await asyncio.gather(*after) == [NEW] * 3
    assert await inferer.infer("net", b"x", LEGAL) == NEW


async def test_an_answer_that_arrives_after_a_load_is_not_remembered(inner: ScriptedInferer):
    held = HeldInferer()
    inferer = cached(held)
    before = ask(inferer, 1)
    await passes()
    load(inferer)
    held.asked[0].set_result(OLD)
    assert await asyncio.gather(*before) == [OLD]

    after = ask(inferer, 1)
    await passes()
    held.asked[1].set_result(NEW)

    assert await asyncio.gather(*after) == [NEW]


# Giving up where it does not pay.


async def use(inferer: Inferer, hits: int, misses: int) -> None:
    """Makes exactly that many hits and misses; the encodings are new each time."""
    for i in range(misses):
        await inferer.infer("net", f"{id(inferer)} {i}".encode(), LEGAL)
    for _ in range(hits):
        await inferer.infer("net", f"{id(inferer)} 0".encode(), LEGAL)


@pytest.mark.parametrize(
    ("mode", "hits", "misses", "active"),
    [
        ("auto", 34, 66, False),
        ("auto", 35, 65, True),  # 35 % pay.
        ("auto", 0, 99, True),  # Too few requests to judge by.
        ("on", 0, 100, True),
    ],
)
async def test_auto_judges_at_a_change_of_weights(
    monkeypatch, inner: ScriptedInferer, mode, hits: int, misses: int, active: bool
):
    monkeypatch.setattr(cache, "PROBATION", 100)
    monkeypatch.setattr(cache, "PAYING_HIT_SHARE", 0.35)
    inferer = cached(inner, mode=mode)
    await use(inferer, hits, misses)

    assert inferer.active
    load(inferer)

    assert inferer.active == active


async def test_a_cache_that_gave_up_passes_everything_on_for_good(
    monkeypatch, inner: ScriptedInferer
):
    monkeypatch.setattr(cache, "PROBATION", 10)
    inferer = cached(inner, mode="auto")
    await use(inferer, hits=0, misses=10)
    load(inferer)
    asked = len(inner.requests)

    await use(inferer, hits=90, misses=1)
    load(inferer)
    await use(inferer, hits=90, misses=1)

    assert not inferer.active
    assert len(inner.requests) == asked + 2 * 91


async def test_a_cache_that_paid_is_judged_again_by_what_came_since(
    monkeypatch, inner: ScriptedInferer
):
    monkeypatch.setattr(cache, "PROBATION", 10)
    inferer = cached(inner, mode="auto")
    await use(inferer, hits=90, misses=10)
    load(inferer)
    await use(inferer, hits=0, misses=10)
    load(inferer)

    assert not inferer.active


# The rest of an inferer.


async def test_statistics_count_hits_as_requests(inner: ScriptedInferer):
    inferer = cached(inner)
    await use(inferer, hits=7, misses=3)
    before = inferer.statistics()
    inferer.reset_statistics()
    after = inferer.statistics()

    assert (before.requests, before.cache_hits) == (10, 7)
    assert (after.requests, after.cache_hits) == (0, 0)
    assert len(inner.requests) == 0


async def test_waiting_for_anothers_answer_is_a_hit():
    inner = HeldInferer()
    inferer = cached(inner)
    tasks = ask(inferer, 4)
    await passes()
    inner.asked[0].set_result(OLD)
    await asyncio.gather(*tasks)

    assert inferer.statistics().requests == 4
    assert inferer.statistics().cache_hits == 3


async def test_it_is_an_inferer_and_closes_the_inner_one(inner: ScriptedInferer):
    async with cached(inner) as inferer:
        assert isinstance(inferer, Inferer)

    with pytest.raises(InferenceClosedError):
        await inner.infer("net", b"x", LEGAL)


async def test_after_closing_it_refuses_even_what_it_remembers(inner: ScriptedInferer):
    async with cached(inner) as inferer:
        await inferer.infer("net", b"x", LEGAL)
    await inferer.aclose()

    for encoding in (b"x", b"y"):
        with pytest.raises(InferenceClosedError):
            await inferer.infer("net", encoding, LEGAL)


# Around the real ones.


def encode(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


async def test_closing_fails_everyone_who_waits(engine, batching):
    async with batching() as inner:
        inferer = cached(inner)
        engine.gate.clear()
        tasks = [
            asyncio.ensure_future(inferer.infer("net", encode(1, 1, 1), LEGAL)) for _ in range(3)
        ]
        await engine.forwards(1)
        closing = asyncio.ensure_future(inferer.aclose())
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        engine.gate.set()
        await closing

    assert [type(outcome) for outcome in outcomes] == [InferenceClosedError] * 3


async def test_coroutines_that_want_the_same_make_a_batch_of_one_row(engine, batching):
    async with batching() as inner:
        inferer = cached(inner)
        policies = await asyncio.gather(
            *(inferer.infer("net", encode(1, 3, 0), LEGAL) for _ in range(50))
        )

    assert policies == [[0.25, 0.75, 0]] * 50
    assert [len(rows) for _, rows in engine.batches] == [1]


def new_local() -> LocalInferer:
    return LocalInferer(EagerEngine(torch.device("cpu")), encoding_size=6, num_actions=4)


def new_batching() -> BatchingInferer:
    engine = EagerEngine(torch.device("cpu"))
    return BatchingInferer(engine, encoding_size=6, num_actions=4, max_batch=16)


async def test_all_backends_answer_alike_with_and_without_a_cache(random_network, random_requests):
    requests = random_requests(100, 6, 4, 1)
    chosen = random.Random(0).choices(requests, k=500)
    backends: list[Callable[[], Inferer]] = [
        new_local,
        new_batching,
        lambda: CachingInferer(new_local()),
        lambda: CachingInferer(new_batching()),
        lambda: CachingInferer(new_batching(), capacity=10),
    ]
    answers = []
    for new_backend in backends:
        async with new_backend() as inferer:
            answers.append([])
            for seed in (1, 2):  # A second network, after which nothing old may be served.
                inferer.load("net", random_network(6, 4, seed), regret_matching)
                answers[-1] += await asyncio.gather(
                    *(inferer.infer("net", *request) for request in chosen)
                )

    assert not np.allclose(answers[0][:500], answers[0][500:], atol=1e-2)
    for others in answers[1:]:
        np.testing.assert_allclose(others, answers[0], atol=1e-5)


async def test_a_storm_through_the_cache(engine, batching):
    chance = random.Random(1)
    outcomes = {"answered": 0, "cancelled": 0}

    async def ask_many(inferer: Inferer) -> None:
        for _ in range(50):
            numbers = [chance.randint(1, 4) for _ in range(3)]
            task = asyncio.ensure_future(inferer.infer("net", encode(*numbers), (0, 1, 2)))
            if chance.random() < 0.1:
                for _ in range(chance.randint(0, 5)):
                    await asyncio.sleep(0)
                task.cancel()
            try:
                expected = [number / sum(numbers) for number in numbers]
                assert await task == pytest.approx(expected, abs=1e-6)
                outcomes["answered"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1

    async with AsyncExitStack() as stack:
        inferer = cached(await stack.enter_async_context(batching(max_batch=8)), capacity=30)
        for _ in range(3):
            await asyncio.gather(*(ask_many(inferer) for _ in range(40)))
            load(inferer)

    assert sum(outcomes.values()) == 6_000
    assert outcomes["cancelled"] > 50
