"""Keeps many traversals in flight and hands over what they stored, in traversal order."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter

import numpy as np

from asynccfr.errors import GameError
from asynccfr.games.base import (
    Game,
    LegalMasks,
    bytes_encoder,
    mark_players,
    stack_encodings,
)
from asynccfr.games.checks import blame
from asynccfr.inference.base import Inferer
from asynccfr.memory import SampleBlock
from asynccfr.traversal.external_sampling import AdvantageRow, Rows, StrategyRow, traverse

ROWS_BEFORE_PACKING = 50_000
"""Rows kept as Python objects before they become arrays, some eight times smaller."""

TURN_SECONDS = 0.05
"""The longest that traversals keep the event loop to themselves, as far as they are short."""


@dataclass(frozen=True)
class TraversalTask:
    """The unit of work: a range of traversals for one (iteration, player).

    Attributes:
        run_seed: the run's seed.
        iteration: t, from 1.
        traverser: the player whose regrets are sampled.
        indices: which traversals.
        networks: player -> the name of the network that answers for it.
        utility_scale: utilities are divided by this.
    """

    run_seed: int
    iteration: int
    traverser: int
    indices: range
    networks: tuple[str, ...]
    utility_scale: float

    def generator(self, index: int) -> random.Random:
        """The generator of traversal `index`; no two traversals of a run share one."""
        return random.Random(
            ((self.run_seed << 32 | self.iteration) << 16 | self.traverser) << 64 | index
        )


@dataclass(frozen=True)
class TraversalResult:
    """What a task gives back.

    Attributes:
        advantages: the traverser's rows, values v(a) - v.
        strategies: the other players' rows, values sigma; the encodings are marked with the player,
            float32[N, F + P].
        traversals: how many were made.
        mean_value: the mean sampled value of the root to the traverser, in scaled utility.
        seconds: from start to end, packing included.
    """

    advantages: SampleBlock
    strategies: SampleBlock
    traversals: int
    mean_value: float
    seconds: float

    @property
    def decision_nodes(self) -> int:
        """Visits to decision nodes, each one policy request."""
        return len(self.advantages) + len(self.strategies)


async def run_traversals(
    game: Game,
    inferer: Inferer,
    task: TraversalTask,
    *,
    concurrency: int,
    on_progress: Callable[[int], None] | None = None,
) -> TraversalResult:
    """Runs every traversal of `task`, at most `concurrency` at a time.

    Samples come out in order of traversal index, whatever the order in which traversals end, so
    both backends store the same rows wherever their policies agree.

    Args:
        on_progress: called with the number of traversals done, after each.

    Raises:
        Whatever a game or the inferer raises first; the other traversals are cancelled.
    """
    started = perf_counter()
    collector = _Collector(game, task.indices)
    encode = bytes_encoder(game)
    waiting = iter(task.indices)
    turn_ends = started + TURN_SECONDS

    async def work() -> None:
        with blame(game):
            for index in waiting:
                rows = Rows()
                value = await traverse(
                    game.new_initial_state(),
                    task.traverser,
                    task.networks,
                    inferer.infer,
                    encode,
                    task.generator(index),
                    task.utility_scale,
                    rows,
                )
                collector.add(index, rows, value)
                if on_progress is not None:
                    on_progress(collector.done)
                nonlocal turn_ends
                if perf_counter() > turn_ends:
                    # An inferer that answers at once never lets the loop look at cancellations.
                    await asyncio.sleep(0)
                    turn_ends = perf_counter() + TURN_SECONDS

    workers = [asyncio.ensure_future(work()) for _ in range(min(concurrency, len(task.indices)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return replace(collector.result(), seconds=perf_counter() - started)


class _Collector:
    """Puts rows that arrive in any order back into traversal order, and packs them."""

    def __init__(self, game: Game, indices: range) -> None:
        self._game = game
        self._masks = LegalMasks(game.num_actions)
        self._indices = indices
        self._early: dict[int, tuple[Rows, float]] = {}
        self._next = indices.start
        self._advantages: list[AdvantageRow] = []
        self._strategies: list[StrategyRow] = []
        self._packed_advantages: list[SampleBlock] = []
        self._packed_strategies: list[SampleBlock] = []
        self._value_sum = 0.0
        self.done = 0

    def add(self, index: int, rows: Rows, value: float) -> None:
        self._early[index] = (rows, value)
        self.done += 1
        while self._next in self._early:
            ready, ready_value = self._early.pop(self._next)
            self._advantages += ready.advantages
            self._strategies += ready.strategies
            self._value_sum += ready_value
            self._next += self._indices.step
        if len(self._advantages) + len(self._strategies) >= ROWS_BEFORE_PACKING:
            self._pack()

    def _pack(self) -> None:
        if self._advantages:
            encodings, legals, values, means = zip(*self._advantages, strict=True)
            block = self._block(encodings, legals)
            # Legal actions ascend, so the mask's True entries, read by rows, are the values.
            block.values[block.legal] = np.fromiter(chain.from_iterable(values), np.float32)
            block.values[:] -= np.array(means, np.float32)[:, None] * block.legal
            if not np.isfinite(block.values).all():
                raise GameError(
                    f"the game {self._game.name!r} gives returns that are NaN or infinite, or far "
                    "beyond its utility bounds; mend its returns() or raise game.utility_scale"
                )
            self._packed_advantages.append(block)
            self._advantages = []
        if self._strategies:
            encodings, legals, policies, players = zip(*self._strategies, strict=True)
            block = self._block(encodings, legals)
            block.values[:] = policies
            self._packed_strategies.append(self._marked(block, players))
            self._strategies = []

    def _block(self, encodings: Sequence[bytes], legals: Sequence[tuple[int, ...]]) -> SampleBlock:
        shape = (len(encodings), self._game.num_actions)
        return SampleBlock(
            stack_encodings(encodings, self._game.encoding_size),
            np.zeros(shape, np.float32),
            self._masks.stack(legals),
        )

    def _marked(self, block: SampleBlock, players: Sequence[int]) -> SampleBlock:
        owners = np.array(players, np.int64)
        marked = mark_players(block.encodings, owners, self._game.num_players)
        return replace(block, encodings=marked)

    def result(self) -> TraversalResult:
        self._pack()
        return TraversalResult(
            _joined(self._packed_advantages or [self._block((), ())]),
            _joined(self._packed_strategies or [self._marked(self._block((), ()), ())]),
            self.done,
            self._value_sum / max(1, self.done),
            seconds=0.0,
        )


def _joined(blocks: list[SampleBlock]) -> SampleBlock:
    if len(blocks) == 1:
        return blocks[0]
    return SampleBlock(
        np.concatenate([block.encodings for block in blocks]),
        np.concatenate([block.values for block in blocks]),
        np.concatenate([block.legal for block in blocks]),
    )
