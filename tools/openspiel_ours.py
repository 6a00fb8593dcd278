"""asynccfr's side of the comparison with OpenSpiel's Deep CFR; all of it on the CPU."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import cycle
from time import perf_counter

import numpy as np
import torch
from common import random_network

from asynccfr import Config, Trainer
from asynccfr.config import FitSettings, InferenceSettings, NetworkSettings
from asynccfr.event_loop import collect_garbage, tuned_interpreter
from asynccfr.fitting import advantage_loss, fit
from asynccfr.games.base import Game
from asynccfr.inference import new_inferer
from asynccfr.inference.doubles import UniformInferer
from asynccfr.inference.heads import regret_matching
from asynccfr.memory import Reservoir, SampleBlock
from asynccfr.networks import new_network
from asynccfr.policy import strategy_encoding_size
from asynccfr.traversal.runner import TraversalTask, run_traversals

WEIGHTS_A_PLAYER = 4
"""Random networks that take turns in a benchmark of traversals, so that no one tree decides it."""


class Traversals:
    """Traversals under one way of answering requests, as a trainer makes them.

    The inferer stays for all rounds, as it does through a run; after each player's traversals
    that player's network is replaced, as after a fit, so a cache starts again from nothing.

    Args:
        runner: its event loop is used for every round.
        game: what is played.
        network: the networks' shape.
        settings: how requests are answered.
        traversals: a player, between two changes of its network.
        concurrency: traversals in flight.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        game: Game,
        network: NetworkSettings,
        settings: InferenceSettings,
        *,
        traversals: int,
        concurrency: int,
    ) -> None:
        self._runner = runner
        self._game = game
        self._traversals = traversals
        self._concurrency = concurrency
        self._names = tuple(f"advantage/{player}" for player in range(game.num_players))
        generator = torch.Generator().manual_seed(0)
        self._weights = [
            cycle([random_network(game, network, generator) for _ in range(WEIGHTS_A_PLAYER)])
            for _ in self._names
        ]
        rng = np.random.default_rng(0)
        shape = (1_000_000, game.encoding_size, game.num_actions)
        self._advantage_memories = [Reservoir(*shape, rng) for _ in self._names]
        marked = (1_000_000, strategy_encoding_size(game), game.num_actions)
        self._strategy_memory = Reservoir(*marked, rng)
        self._iteration = 0

        async def start() -> None:
            self._inferer = new_inferer(settings, game, torch.device("cpu"), network.hidden_size)
            for player in range(game.num_players):
                self._load(player)

        runner.run(start())

    def rate(self, seconds: float) -> tuple[float, float, float]:
        """Decision nodes per second over at least `seconds`; rows a forward; share of hits."""
        return self._runner.run(self._rate(seconds))

    def close(self) -> None:
        """Ends the inference thread."""
        self._runner.run(self._inferer.aclose())

    async def _rate(self, seconds: float) -> tuple[float, float, float]:
        self._inferer.reset_statistics()
        nodes = 0
        with tuned_interpreter():
            started = perf_counter()
            while (elapsed := perf_counter() - started) < seconds:
                nodes += await self._one_iteration()
        statistics = self._inferer.statistics()
        hits = statistics.cache_hits / max(1, statistics.requests)
        return nodes / elapsed, statistics.mean_batch, hits

    async def _one_iteration(self) -> int:
        """All but the fits; stores the rows too, as the peer does while it traverses."""
        self._iteration += 1
        nodes = 0
        for player in range(self._game.num_players):
            task = TraversalTask(
                run_seed=0,
                iteration=self._iteration,
                traverser=player,
                indices=range(self._traversals),
                networks=self._names,
                utility_scale=1.0,
            )
            samples = await run_traversals(
                self._game, self._inferer, task, concurrency=self._concurrency
            )
            self._advantage_memories[player].add(samples.advantages, self._iteration)
            self._strategy_memory.add(samples.strategies, self._iteration)
            nodes += samples.decision_nodes
            self._load(player)
        collect_garbage()
        return nodes

    def _load(self, player: int) -> None:
        self._inferer.load(self._names[player], next(self._weights[player]), regret_matching)


def sampled_rows(game: Game, rows: int) -> tuple[list[SampleBlock], SampleBlock]:
    """`rows` advantage rows for each player and `rows` strategy rows, sampled at uniform play.

    A few thousand traversals, repeated until there are enough: real rows, because how often
    information states recur in a batch decides what merging them saves.
    """

    async def sample(player: int) -> tuple[SampleBlock, SampleBlock]:
        task = TraversalTask(0, 1, player, range(min(rows, 4_000)), ("",) * game.num_players, 1.0)
        result = await run_traversals(game, UniformInferer(game.num_actions), task, concurrency=256)
        return _repeated(result.advantages, rows), _repeated(result.strategies, rows)

    blocks = [asyncio.run(sample(player)) for player in range(game.num_players)]
    return [advantages for advantages, _ in blocks], blocks[0][1]


def _repeated(block: SampleBlock, rows: int) -> SampleBlock:
    return SampleBlock(
        *(
            np.resize(part, (rows, part.shape[1]))
            for part in (block.encodings, block.values, block.legal)
        )
    )


def filled_reservoir(block: SampleBlock) -> Reservoir:
    """A reservoir that `block` fills."""
    shape = (len(block), block.encodings.shape[1], block.values.shape[1])
    reservoir = Reservoir(*shape, np.random.default_rng(0))
    reservoir.add(block, 1)
    return reservoir


def seconds_per_fit_step(
    memory: Reservoir, game: Game, network: NetworkSettings, settings: FitSettings, amp: bool
) -> float:
    """Seconds of one training step, over one advantage fit from fresh weights."""
    generator = torch.Generator().manual_seed(0)
    started = perf_counter()
    fresh = new_network(game.encoding_size, game.num_actions, network, generator)
    fit(fresh, memory, advantage_loss, settings, generator, amp=amp)
    return (perf_counter() - started) / settings.train_steps


def fill_memories(trainer: Trainer, advantages: list[SampleBlock], strategies: SampleBlock) -> None:
    """Puts rows of iteration 1 into a trainer's memories, as if it had sampled them.

    The one place that reaches into a trainer: a run that fills a million rows takes too long.
    """
    for memory, block in zip(trainer._advantage_memories, advantages, strict=True):
        memory.add(block, 1)
    trainer._strategy_memory.add(strategies, 1)


async def second_iteration(
    config: Config, advantages: list[SampleBlock], strategies: SampleBlock
) -> dict[str, float]:
    """The metrics of a new trainer's second iteration, its memories full from the start.

    The first one starts the threads, and plays uniformly where later ones play what was fitted.
    """
    trainer = Trainer(config)
    fill_memories(trainer, advantages, strategies)
    async with aclosing(aiter(trainer)) as reports:
        await anext(reports)
        return (await anext(reports)).metrics


async def nash_conv_curve(
    config: Config, marks: list[float], tell: Callable[[str], None]
) -> list[tuple[int, float, float]]:
    """(iteration, seconds of training, NashConv), at the first iteration that reaches each mark.

    The clock stands still during evaluations, strategy fits included. An evaluation is part of
    the iteration before it, so whether one will reach a mark is told by the length of the last.
    """
    trainer = Trainer(config)
    evaluating = config.evaluation.model_copy(update={"eval_every": 1})
    points: list[tuple[int, float, float]] = []
    clock = 0.0
    left = list(marks)
    async with aclosing(aiter(trainer)) as reports:
        before = perf_counter()
        async for report in reports:
            metrics = report.metrics
            now = perf_counter()
            evaluation = metrics["strategy_train_seconds"] + metrics["evaluation_seconds"]
            seconds = now - before - evaluation
            clock += seconds
            before = now
            if "nash_conv" in metrics:
                points.append((report.iteration, clock, metrics["nash_conv"]))
                tell(f"asynccfr, {clock:.1f} s of training: NashConv {points[-1][2]:.3f}")
                left = [mark for mark in left[1:] if mark > clock]
            if not left:
                break
            due = clock + seconds >= left[0]
            section = evaluating if due else config.evaluation
            trainer.config = config.model_copy(update={"evaluation": section})
    return points
