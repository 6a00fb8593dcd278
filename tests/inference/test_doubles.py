"""The scripted inferer and the uniform one."""

import asyncio

import pytest
from torch import nn

from asynccfr.errors import InferenceClosedError
from asynccfr.inference import Inferer
from asynccfr.inference.doubles import ScriptedInferer, UniformInferer
from asynccfr.inference.heads import regret_matching


def skewed(network: str, encoding: bytes, legal: tuple[int, ...]) -> tuple[float, ...]:
    return (0.25, 0.75) if network == "a" else (1.0, 0.0)


async def test_both_are_inferers():
    assert isinstance(ScriptedInferer(skewed), Inferer)
    assert isinstance(UniformInferer(2), Inferer)


@pytest.mark.parametrize("suspend", [False, True])
async def test_the_scripted_one_answers_from_its_script_and_remembers(suspend: bool):
    async with ScriptedInferer(skewed, suspend=suspend) as inferer:
        assert await inferer.infer("a", b"x", (0, 1)) == [0.25, 0.75]
        assert await inferer.infer("b", b"y", (0,)) == [1.0, 0.0]

    assert inferer.requests == [("a", b"x", (0, 1)), ("b", b"y", (0,))]
    assert inferer.statistics().requests == 2


@pytest.mark.parametrize(("suspend", "order"), [(False, [0, "pass"]), (True, ["pass", 0])])
async def test_the_scripted_one_lets_the_loop_run_first_only_if_asked_to(suspend: bool, order):
    async with ScriptedInferer(skewed, suspend=suspend) as inferer:
        happened = []
        asyncio.get_running_loop().call_soon(happened.append, "pass")
        await inferer.infer("a", b"x", (0, 1))
        happened.append(0)
        await asyncio.sleep(0)

    assert happened == order


async def test_what_the_script_raises_the_waiter_gets():
    def script(network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        raise KeyError(encoding)

    async with ScriptedInferer(script) as inferer:
        with pytest.raises(KeyError, match="x"):
            await inferer.infer("a", b"x", (0, 1))


async def test_the_scripted_one_remembers_what_was_loaded():
    network = nn.Identity()
    async with ScriptedInferer(skewed) as inferer:
        inferer.load("a", network, regret_matching)

    assert inferer.loaded == [("a", network)]


async def test_the_uniform_one_plays_every_legal_action_alike():
    async with UniformInferer(4) as inferer:
        policies = await asyncio.gather(
            inferer.infer("a", b"x", (0, 2)),
            inferer.infer("b", b"y", (1,)),
            inferer.infer("a", b"z", (0, 1, 2, 3)),
        )

        assert policies == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.25] * 4]
        assert inferer.statistics().requests == 3


async def test_the_uniform_one_passes_over_a_cancelled_waiter():
    async with UniformInferer(2) as inferer:
        futures = [inferer.infer("a", b"x", (0, 1)) for _ in range(3)]
        futures[1].cancel()

        assert await futures[0] == await futures[2] == [0.5, 0.5]


@pytest.mark.parametrize("make", [lambda: ScriptedInferer(skewed), lambda: UniformInferer(2)])
async def test_after_closing_they_refuse(make):
    inferer = make()
    await inferer.aclose()
    await inferer.aclose()

    with pytest.raises(InferenceClosedError):
        await inferer.infer("a", b"x", (0, 1))


@pytest.mark.parametrize("make", [lambda: ScriptedInferer(skewed), lambda: UniformInferer(2)])
async def test_counting_starts_again(make):
    async with make() as inferer:
        await inferer.infer("a", b"x", (0, 1))
        inferer.reset_statistics()

        assert inferer.statistics().requests == 0
