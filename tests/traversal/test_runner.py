"""The runner: order, parity of the backends, failures."""

import asyncio
from collections import Counter

import numpy as np
import pytest
import torch

from asynccfr.config import InferenceSettings, NetworkSettings
from asynccfr.errors import InferenceError
from asynccfr.games import load_game
from asynccfr.inference import new_inferer
from asynccfr.inference.doubles import ScriptedInferer, UniformInferer
from asynccfr.inference.heads import regret_matching
from asynccfr.networks import new_network
from asynccfr.traversal import runner
from asynccfr.traversal.runner import TraversalTask, run_traversals


def task(game, count, *, traverser=0, iteration=1, seed=0, start=0):
    return TraversalTask(
        run_seed=seed,
        iteration=iteration,
        traverser=traverser,
        indices=range(start, start + count),
        networks=tuple(f"advantage/{player}" for player in range(game.num_players)),
        utility_scale=max(abs(game.min_utility), abs(game.max_utility)),
    )


def hashed_policy(network, encoding, legal):
    """A policy that differs between information states and is the same in every process."""
    weights = np.array(
        [1.0 + (sum(encoding) * (a + 3)) % 7 if a in legal else 0.0 for a in range(3)]
    )
    return list(weights / weights.sum())


def equal_blocks(left, right):
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("encodings", "values", "legal")
    )


async def test_order_of_completion_does_not_show():
    game = load_game("leduc_poker")
    at_once = await run_traversals(
        game, ScriptedInferer(hashed_policy), task(game, 60), concurrency=1
    )
    interleaved = await run_traversals(
        game, ScriptedInferer(hashed_policy, suspend=True), task(game, 60), concurrency=25
    )
    assert equal_blocks(at_once.advantages, interleaved.advantages)
    assert equal_blocks(at_once.strategies, interleaved.strategies)
    assert at_once.mean_value == interleaved.mean_value
    assert at_once.traversals == interleaved.traversals == 60


async def test_ranges_put_together_equal_the_whole(monkeypatch):
    game = load_game("leduc_poker")
    inferer = ScriptedInferer(hashed_policy)
    whole = await run_traversals(game, inferer, task(game, 40), concurrency=8)
    monkeypatch.setattr(runner, "ROWS_BEFORE_PACKING", 7)  # Many small blocks, joined.
    parts = [
        await run_traversals(game, inferer, task(game, 15, start=0), concurrency=8),
        await run_traversals(game, inferer, task(game, 25, start=15), concurrency=3),
    ]
    for name in ("encodings", "values", "legal"):
        joined = np.concatenate([getattr(part.advantages, name) for part in parts])
        assert np.array_equal(getattr(whole.advantages, name), joined)


async def test_stored_targets_are_regrets_of_legal_actions():
    game = load_game("liars_dice")
    result = await run_traversals(
        game, UniformInferer(game.num_actions), task(game, 3), concurrency=3
    )
    block = result.advantages
    assert (block.values[~block.legal] == 0).all()
    # Under a uniform policy the mean regret over the legal actions is zero.
    assert np.abs(block.values.sum(axis=1)).max() < 1e-5
    assert np.abs(result.strategies.values.sum(axis=1) - 1).max() < 1e-6
    assert (result.strategies.values[~result.strategies.legal] == 0).all()
    assert result.decision_nodes == len(block) + len(result.strategies)


async def test_another_seed_iteration_or_player_draws_other_trees():
    game = load_game("leduc_poker")
    uniform = UniformInferer(game.num_actions)
    variants = [{}, {"seed": 1}, {"iteration": 2}, {"traverser": 1}]
    results = [
        await run_traversals(game, uniform, task(game, 20, **variant), concurrency=20)
        for variant in variants
    ]
    assert len({result.strategies.encodings.tobytes() for result in results}) == len(variants)


@pytest.mark.parametrize(
    ("name", "traversals"), [("kuhn_poker", 2_000), ("leduc_poker", 400), ("fhp", 15)]
)
@pytest.mark.parametrize("cache", ["off", "on"])
async def test_both_backends_store_the_same_rows(name, traversals, cache):
    game = load_game(name)
    results = []
    for backend in ("local", "async"):
        settings = InferenceSettings(backend=backend, cache=cache, precision="float32")
        inferer = new_inferer(settings, game, torch.device("cpu"), hidden_size=64)
        async with inferer:
            for player in range(game.num_players):
                generator = torch.Generator().manual_seed(player)
                network = new_network(
                    game.encoding_size, game.num_actions, NetworkSettings(), generator
                )
                torch.nn.init.normal_(network.layers[-1].weight, generator=generator)
                inferer.load(f"advantage/{player}", network, regret_matching)
            results.append(
                await run_traversals(game, inferer, task(game, traversals), concurrency=256)
            )
    local, batched = results
    for kind in ("advantages", "strategies"):
        left, right = getattr(local, kind), getattr(batched, kind)
        assert len(left) == len(right)
        same = (left.encodings == right.encodings).all(axis=1)
        same &= (np.abs(left.values - right.values) <= 1e-4).all(axis=1)
        assert same.mean() >= 0.999


async def test_progress_counts_every_traversal():
    game = load_game("kuhn_poker")
    seen = []
    await run_traversals(
        game, UniformInferer(2), task(game, 30), concurrency=7, on_progress=seen.append
    )
    assert seen == list(range(1, 31))


class BrokenScript:
    """Answers uniformly until the hundredth request."""

    def __init__(self):
        self.asked = 0

    def __call__(self, network, encoding, legal):
        self.asked += 1
        if self.asked == 100:
            raise InferenceError("broken on purpose")
        return [1 / 2, 1 / 2]


async def test_a_failure_ends_every_worker():
    game = load_game("kuhn_poker")
    before = asyncio.all_tasks()
    with pytest.raises(InferenceError, match="broken on purpose"):
        await run_traversals(
            game, ScriptedInferer(BrokenScript(), suspend=True), task(game, 500), concurrency=50
        )
    assert asyncio.all_tasks() == before


async def test_cancelling_the_runner_ends_every_worker():
    game = load_game("leduc_poker")
    before = asyncio.all_tasks()
    inferer = UniformInferer(game.num_actions)
    running = asyncio.ensure_future(
        run_traversals(game, inferer, task(game, 100_000), concurrency=64)
    )
    while inferer.statistics().requests < 1_000:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before


def test_generators_of_a_run_never_coincide():
    game = load_game("kuhn_poker")
    first_draws = Counter(
        task(game, 3, traverser=player, iteration=t, seed=seed).generator(index).random()
        for seed in (0, 1)
        for t in (1, 2, 65_536)
        for player in (0, 1)
        for index in (0, 1, 2, 65_536)
    )
    assert max(first_draws.values()) == 1
