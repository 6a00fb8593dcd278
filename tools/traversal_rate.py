"""Decision nodes per second of traversals, under given traversal and inference settings."""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

from common import random_network

from asynccfr import Config, InputError, load_game
from asynccfr.event_loop import collect_garbage
from asynccfr.games.checks import require_playable
from asynccfr.inference import CachingInferer, new_inferer
from asynccfr.inference.cache import PROBATION
from asynccfr.inference.heads import regret_matching
from asynccfr.networks import ActionNetwork
from asynccfr.preflight import resolve_device, utility_scale
from asynccfr.seeding import Purpose, torch_generator
from asynccfr.traversal.runner import TraversalTask, run_traversals

Values = dict[str, Any]
"""Dotted key -> value, of the settings that are varied."""

CONCURRENCY = "traversal.concurrency"
MAX_BATCH = "inference.max_batch"
THREADS = "inference.threads"
MAX_WAIT_US = "inference.max_wait_us"


class OutOfTime(Exception):
    """What was to be measured would not have ended in time."""


class TraversalRate:
    """Measures as training would: whole ranges of traversals, changed networks before each.

    A trial is one or more ranges, one player's each, as many as fill `trial_seconds`. Networks
    have the settings' size and random last layers, so their policies are not uniform. Trials of
    one number sample the same trees, so they compare values and nothing else. All deadlines are
    `perf_counter` times.

    Args:
        config: the game, the network, the device and the values to start from.
        trial_seconds: about how long one trial should take.
    """

    def __init__(self, config: Config, trial_seconds: float) -> None:
        self.config = config
        self.device = resolve_device(config.run.device)
        self.game = load_game(config.game.name, config.game.encoding)
        require_playable(self.game)
        self.values: Values = {
            CONCURRENCY: config.traversal.concurrency,
            MAX_BATCH: config.inference.max_batch,
            THREADS: config.inference.threads,
            MAX_WAIT_US: config.inference.max_wait_us,
        }
        """Those of the settings."""
        if self.device.type == "cuda":
            del self.values[THREADS]  # No forward runs on them.
        self.cache = config.inference.cache
        """As in the settings; `off` where `auto` was found to give up."""
        self.traversals = min(64, config.traversal.traversals_per_player)
        """In a range: as many as in the settings, or fewer where time is short."""
        self.ranges = 1
        """In a trial."""
        self._trial_seconds = trial_seconds
        self._scale = utility_scale(config, self.game)
        self._names = tuple(f"advantage/{player}" for player in range(self.game.num_players))
        self._head = partial(regret_matching, fallback=config.advantage.fallback)

    async def settle(self, deadline: float) -> None:
        """Makes trials as long as they should be, and learns whether an `auto` cache gives up.

        Raises:
            InputError: where not even one trial ends in time.
        """
        while True:
            try:
                async with asyncio.timeout(deadline - perf_counter()):
                    nodes, seconds, cache_pays = await self._trial(self.values, 0)
            except TimeoutError:
                raise InputError("no trial ends within the given time; give more minutes") from None
            # Growing to the wanted length must not use up the time that trials are for.
            wanted = min(self._trial_seconds, 0.05 * (deadline - perf_counter()))
            if seconds > 0.7 * wanted:
                break
            growth = min(4.0, wanted / seconds)
            if self.traversals < self.config.traversal.traversals_per_player:
                grown = round(self.traversals * growth) + 1
                self.traversals = min(self.config.traversal.traversals_per_player, grown)
            else:
                self.ranges = round(self.ranges * growth) + 1
        if nodes >= PROBATION and not cache_pays:
            self.cache = "off"
        self._trial_seconds = seconds

    async def rate(self, values: Values, number: int, deadline: float) -> float:
        """Decision nodes per second in trial `number`; 0 where it is hopelessly slow.

        Raises:
            OutOfTime: where the trial would not end by `deadline`.
        """
        left, hopeless = deadline - perf_counter(), 1.0 + 4.0 * self._trial_seconds
        if left < 1.2 * self._trial_seconds:
            raise OutOfTime
        try:
            async with asyncio.timeout(min(left, hopeless)):
                nodes, seconds, _ = await self._trial(values, number)
        except TimeoutError:
            if left < hopeless:
                raise OutOfTime from None
            return 0.0
        return nodes / seconds

    async def _trial(self, values: Values, number: int) -> tuple[int, float, bool]:
        """Decision nodes, seconds, and whether a policy cache is still in use at the end."""
        inference = {key.partition(".")[2]: values[key] for key in values if key != CONCURRENCY}
        inferer = new_inferer(
            self.config.inference.model_copy(update={**inference, "cache": self.cache}),
            self.game,
            self.device,
            self.config.network.hidden_size,
        )
        nodes, seconds = 0, 0.0
        try:
            for player, name in enumerate(self._names):
                inferer.load(name, self._network(number, 0, player), self._head)
            for range_number in range(1, self.ranges + 1):
                traverser = (number + range_number) % self.game.num_players
                task = TraversalTask(
                    run_seed=self.config.run.seed,
                    iteration=number * self.ranges + range_number,
                    traverser=traverser,
                    indices=range(self.traversals),
                    networks=self._names,
                    utility_scale=self._scale,
                )
                result = await run_traversals(
                    self.game, inferer, task, concurrency=values[CONCURRENCY]
                )
                nodes += result.decision_nodes
                seconds += result.seconds
                network = self._network(number, range_number, traverser)
                inferer.load(self._names[traverser], network, self._head)
            return nodes, seconds, not isinstance(inferer, CachingInferer) or inferer.active
        finally:
            await inferer.aclose()
            collect_garbage()

    def _network(self, *path: int) -> ActionNetwork:
        generator = torch_generator(self.config.run.seed, Purpose.ADVANTAGE_WEIGHTS, *path)
        network = random_network(self.game, self.config.network, generator)
        return network.to(self.device)
