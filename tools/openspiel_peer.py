"""OpenSpiel's PyTorch Deep CFR, with the clocks and counts that a comparison needs.

The solver computes what it always computes. Its steps are private methods, called here in the
order of its own `solve`, which cannot be stopped between iterations. All of it is done on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from open_spiel.python.pytorch import deep_cfr

from asynccfr.evaluation.exact import InformationStates, evaluate_exactly
from asynccfr.games.base import BoolArray, FloatArray, IntArray
from asynccfr.games.openspiel import OpenSpielGame
from asynccfr.memory import SampleBlock


@dataclass(frozen=True)
class IterationSeconds:
    """What one iteration without a strategy fit took."""

    total: float
    traversal: float
    fit: float


class Peer(deep_cfr.DeepCFRSolver):
    """The solver, counting its policy calls.

    Args:
        game: what it plays.
        hidden: units in each hidden layer of every network.
        traversals: a player and iteration.
        train_steps: in an advantage fit.
        batch_size: rows in a training batch.
        rows: what each memory holds at most.
        strategy_steps: in a strategy fit, which only `nash_conv` makes.
    """

    def __init__(
        self,
        game: OpenSpielGame,
        hidden: tuple[int, ...],
        *,
        traversals: int = 1,
        train_steps: int = 1,
        batch_size: int = 2_048,
        rows: int = 1_000_000,
        strategy_steps: int = 1,
    ) -> None:
        self.policy_calls = 0
        super().__init__(
            game.pyspiel_game,
            policy_network_layers=hidden,
            advantage_network_layers=hidden,
            num_traversals=traversals,
            learning_rate=1e-3,
            batch_size_advantage=batch_size,
            batch_size_strategy=batch_size,
            memory_capacity=rows,
            policy_network_train_steps=strategy_steps,
            advantage_network_train_steps=train_steps,
            reinitialize_advantage_networks=True,
        )

    def _sample_action_from_advantage(self, state: Any, player: int) -> Any:
        self.policy_calls += 1
        return super()._sample_action_from_advantage(state, player)

    def traversal_rate(self, seconds: float) -> float:
        """Policy calls per second of traversals, players in turn, under fresh random weights."""
        for player in range(self._num_players):
            self._reinitialize_advantage_network(player)
        calls, started = self.policy_calls, perf_counter()
        while (elapsed := perf_counter() - started) < seconds:
            for player in range(self._num_players):
                self._traverse_game_tree(self._root_node, player)
        return (self.policy_calls - calls) / elapsed

    def seconds_per_fit_step(self) -> float:
        """Seconds of one training step, over one advantage fit from fresh weights."""
        started = perf_counter()
        self._reinitialize_advantage_network(0)
        self._learn_advantage_network(0)
        return (perf_counter() - started) / self._advantage_network_train_steps

    def iterate(self) -> IterationSeconds:
        """One iteration, as in the loop of `solve`."""
        started = perf_counter()
        traversal_seconds = 0.0
        for player in range(self._num_players):
            traversing = perf_counter()
            for _ in range(self._num_traversals):
                self._traverse_game_tree(self._root_node, player)
            traversal_seconds += perf_counter() - traversing
            self._reinitialize_advantage_network(player)
            self._learn_advantage_network(player)
        self._iteration += 1
        total = perf_counter() - started
        return IterationSeconds(total, traversal_seconds, total - traversal_seconds)

    def nash_conv(self, game: OpenSpielGame, states: InformationStates) -> float:
        """NashConv of the average policy: a strategy fit from fresh weights, scored exactly."""
        self._reinitialize_policy_network()
        self._learn_strategy_network()
        return evaluate_exactly(game, states, self._average_policy).nash_conv

    @torch.inference_mode()
    def _average_policy(
        self, encodings: FloatArray, legal: BoolArray, players: IntArray
    ) -> FloatArray:
        # Its softmax spans illegal actions too; what they hold is shared among the legal ones,
        # since a policy that does not sum to 1 has no NashConv.
        policies: FloatArray = self._policy_network(torch.from_numpy(encodings)).numpy() * legal
        return policies / policies.sum(axis=1, keepdims=True)

    def fill(self, advantages: list[SampleBlock], strategies: SampleBlock) -> None:
        """Puts rows of iteration 1 into its memories, as if it had sampled them."""
        self._advantage_memories = [
            self._filled(block, deep_cfr.AdvantageMemory) for block in advantages
        ]
        # Ours are marked with the player, OpenSpiel's are not.
        unmarked = strategies.encodings[:, : advantages[0].encodings.shape[1]]
        strategies = replace(strategies, encodings=unmarked)
        self._strategy_memories = self._filled(strategies, deep_cfr.StrategyMemory)

    def _filled(self, block: SampleBlock, kind: Callable[..., Any]) -> deep_cfr.ReservoirBuffer:
        iterations = np.ones((len(block), 1), dtype=int)
        stored = kind(block.encodings.copy(), iterations, block.values.copy())
        buffer = deep_cfr.ReservoirBuffer(np.array(self._memory_capacity), stored)
        buffer.add_calls = np.array(len(block))
        return buffer


def nash_conv_curve(
    peer: Peer,
    game: OpenSpielGame,
    states: InformationStates,
    marks: list[float],
    tell: Callable[[str], None],
) -> list[tuple[int, float, float]]:
    """(iteration, seconds of training, NashConv), at the first iteration that reaches each mark.

    The clock stands still during evaluations, strategy fits included.
    """
    points: list[tuple[int, float, float]] = []
    clock, iteration = 0.0, 0
    for mark in marks:
        if clock >= mark:
            continue
        while clock < mark:
            clock += peer.iterate().total
            iteration += 1
        points.append((iteration, clock, peer.nash_conv(game, states)))
        tell(f"OpenSpiel, {clock:.1f} s of training: NashConv {points[-1][2]:.3f}")
    return points
