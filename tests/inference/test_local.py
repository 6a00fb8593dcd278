"""What both backends promise alike, and what is the local one's own."""

import asyncio

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.errors import InferenceClosedError, InferenceError, NonFiniteOutputError
from asynccfr.inference import BatchingInferer, Inferer, LocalInferer
from asynccfr.inference.engines import EagerEngine
from asynccfr.inference.heads import masked_softmax, regret_matching

ALL = (0, 1, 2)


def encode(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


async def test_both_are_inferers(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        assert isinstance(inferer, Inferer)


async def test_a_hand_computed_answer(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)

        # Of the positive parts 1, 3, 4 only the first two are legal.
        assert await inferer.infer("echo", encode(1, 3, 4), (0, 1)) == [0.25, 0.75, 0]


async def test_the_latest_network_answers_with_the_weights_it_had(engine, new_backend):
    network = nn.Linear(3, 3, bias=False)
    nn.init.eye_(network.weight)
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("net", network, regret_matching)
        nn.init.zeros_(network.weight)
        assert await inferer.infer("net", encode(1, 3, 0), ALL) == [0.25, 0.75, 0]
        inferer.load("net", network, masked_softmax)
        assert await inferer.infer("net", encode(1, 3, 0), (0, 1)) == [0.5, 0.5, 0]


async def test_an_unknown_network(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        with pytest.raises(InferenceError, match=r"no network named 'eco'.*loaded: echo"):
            await inferer.infer("eco", encode(1, 1, 1), ALL)


@pytest.mark.parametrize(
    ("encoding", "legal", "cause"),
    [(encode(1, 1), ALL, ValueError), (encode(1, 1, 1), (0, 3), IndexError)],
)
async def test_a_bad_request_fails_and_the_next_works(engine, new_backend, encoding, legal, cause):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        with pytest.raises(InferenceError) as caught:
            await inferer.infer("echo", encoding, legal)
        assert isinstance(caught.value.__cause__, cause)
        assert await inferer.infer("echo", encode(0, 2, 0), ALL) == [0, 1, 0]


async def test_a_network_of_the_wrong_size(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("net", nn.Linear(3, 4), regret_matching)
        with pytest.raises(InferenceError, match="results of shape"):
            await inferer.infer("net", encode(1, 1, 1), ALL)


async def test_output_that_is_not_finite(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        with pytest.raises(NonFiniteOutputError):
            await inferer.infer("echo", encode(1, np.nan, 1), ALL)
        assert await inferer.infer("echo", encode(0, 2, 0), ALL) == [0, 1, 0]


async def test_after_closing(engine, new_backend):
    inferer = new_backend(engine, encoding_size=3, num_actions=3)
    inferer.load("echo", nn.Identity(), regret_matching)
    await inferer.aclose()
    await inferer.aclose()

    with pytest.raises(InferenceClosedError):
        await inferer.infer("echo", encode(1, 1, 1), ALL)
    with pytest.raises(InferenceClosedError):
        inferer.load("echo", nn.Identity(), regret_matching)


async def test_counting_starts_again(engine, new_backend):
    async with new_backend(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        for _ in range(3):
            await inferer.infer("echo", encode(1, 1, 1), ALL)
        before = inferer.statistics()
        inferer.reset_statistics()
        after = inferer.statistics()

    assert (before.requests, before.batches, before.batch_sizes) == (3, 3, {1: 3})
    assert before.mean_batch == 1
    assert before.forward_seconds > 0
    assert 0 < before.busy_share <= 1
    assert (after.requests, after.batches, after.batch_sizes, after.reasons) == (0, 0, {}, {})
    assert after.mean_batch == 0


async def test_the_local_one_answers_on_the_callers_thread_without_a_pause(engine):
    async with LocalInferer(engine, encoding_size=3, num_actions=3) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        order = []
        asyncio.get_running_loop().call_soon(order.append, "the loop's next pass")
        for i in range(3):
            await inferer.infer("echo", encode(1, 1, 1), ALL)
            order.append(i)
        await asyncio.sleep(0)

    assert order == [0, 1, 2, "the loop's next pass"]


@pytest.mark.parametrize("head", [regret_matching, masked_softmax])
async def test_both_backends_agree(random_network, random_requests, head):
    # One row and many meet different kernels, which may round differently; a float32 sum of 32
    # terms near 1 is off by a few 1e-7.
    network = random_network(6, 4, 1)
    requests = random_requests(300, 6, 4, 2)
    local = LocalInferer(EagerEngine(torch.device("cpu")), encoding_size=6, num_actions=4)
    batching = BatchingInferer(
        EagerEngine(torch.device("cpu")), encoding_size=6, num_actions=4, max_batch=50
    )
    async with local, batching:
        for inferer in (local, batching):
            inferer.load("net", network, head)
        one_by_one = [await local.infer("net", *request) for request in requests]
        together = await asyncio.gather(*(batching.infer("net", *request) for request in requests))

    np.testing.assert_allclose(one_by_one, together, atol=1e-5)
