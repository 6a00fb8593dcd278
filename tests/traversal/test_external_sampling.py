"""The traversal against enumeration, hand-computed values and games built to catch it out."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from asynccfr.config import NetworkSettings
from asynccfr.games import load_game
from asynccfr.games.base import TERMINAL, bytes_encoder
from asynccfr.inference.doubles import ScriptedInferer
from asynccfr.inference.engines import EagerEngine
from asynccfr.inference.heads import regret_matching
from asynccfr.inference.local import LocalInferer
from asynccfr.networks import new_network
from asynccfr.traversal.external_sampling import Rows, sample_action, sample_outcome, traverse


def random_networks(game, seed):
    """One network a player with random, not zero, last layers: policies far from uniform."""
    networks = {}
    for player in range(game.num_players):
        generator = torch.Generator().manual_seed(seed + player)
        network = new_network(
            game.encoding_size, game.num_actions, NetworkSettings(hidden_size=16), generator
        )
        torch.nn.init.normal_(network.layers[-1].weight, generator=generator)
        networks[f"advantage/{player}"] = network
    return networks


def local_inferer(game, networks):
    inferer = LocalInferer(
        EagerEngine(torch.device("cpu")),
        encoding_size=game.encoding_size,
        num_actions=game.num_actions,
    )
    for name, network in networks.items():
        inferer.load(name, network, regret_matching)
    return inferer


def counterfactual_regrets(state, traverser, policy, reach, regrets):
    """By definition: sums reach_{-i}(h) (v(ha) - v(h)) over every history h; returns v(h)."""
    if state.is_terminal():
        return state.returns()[traverser]
    player = state.current_player()
    if state.is_chance_node():
        return sum(
            p * counterfactual_regrets(state.child(a), traverser, policy, reach * p, regrets)
            for a, p in state.chance_outcomes()
        )
    sigma = policy(state)
    if player != traverser:
        return sum(
            p * counterfactual_regrets(state.child(a), traverser, policy, reach * p, regrets)
            for a, p in sigma.items()
            if p > 0
        )
    values = {
        a: counterfactual_regrets(state.child(a), traverser, policy, reach, regrets)
        for a in state.legal_actions()
    }
    mean = sum(sigma[a] * value for a, value in values.items())
    for action, value in values.items():
        regrets[state.information_state_string(player), action] += reach * (value - mean)
    return mean


@pytest.mark.parametrize("traverser", [0, 1])
async def test_mean_sampled_regrets_equal_enumeration_on_kuhn(traverser):
    game = load_game("kuhn_poker")
    networks = random_networks(game, seed=5)
    inferer = local_inferer(game, networks)
    encode = bytes_encoder(game)

    def policy(state):
        player = state.current_player()
        rows = np.frombuffer(encode(state, player), np.float32)[None].copy()
        with torch.inference_mode():
            outputs = networks[f"advantage/{player}"](torch.from_numpy(rows)).numpy()
        sigma = regret_matching(outputs, np.ones((1, 2), bool))[0]
        return dict(enumerate(sigma.astype(float)))

    exact = defaultdict(float)
    root = game.new_initial_state()
    exact_value = counterfactual_regrets(root, traverser, policy, 1.0, exact)

    names = {}  # Encoding -> information-state string, by walking the tree.
    stack = [root]
    while stack:
        state = stack.pop()
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            player = state.current_player()
            names[encode(state, player)] = state.information_state_string(player)
        stack += [state.child(action) for action in state.legal_actions()]

    traversals = 20_000
    sums, squares = defaultdict(float), defaultdict(float)
    values = []
    for index in range(traversals):
        rows = Rows()
        values.append(
            await traverse(
                game.new_initial_state(),
                traverser,
                tuple(networks),
                inferer.infer,
                encode,
                random.Random(index),
                1.0,
                rows,
            )
        )
        for encoding, legal, action_values, mean in rows.advantages:
            for action, value in zip(legal, action_values, strict=True):
                sums[names[encoding], action] += value - mean
                squares[names[encoding], action] += (value - mean) ** 2
    assert set(sums) == set(exact)
    for key, regret in exact.items():
        mean = sums[key] / traversals
        variance = squares[key] / traversals - mean**2
        assert abs(mean - regret) <= 3 * math.sqrt(variance / traversals) + 1e-6, key
    assert np.mean(values) == pytest.approx(
        exact_value, abs=3 * np.std(values) / math.sqrt(traversals)
    )


class LineGame:
    """A game given as nested nodes: a list of children for a player, floats at the ends.

    A node is `(player, [children])`, `("chance", [(probability, child), ...])` or a tuple of
    returns.
    """

    def __init__(self, tree, num_actions, num_players=2):
        self.name = "line"
        self.tree = tree
        self.num_players = num_players
        self.num_actions = num_actions
        self.encoding_size = 1
        self.min_utility, self.max_utility = -10.0, 10.0

    def new_initial_state(self):
        return LineState(self.tree, ())

    def encode(self, state, player, out):
        out[0] = len(state.path)


class LineState:
    def __init__(self, node, path):
        self.node, self.path = node, path

    def current_player(self):
        head = self.node[0]
        if head == "chance":
            return -1
        return head if isinstance(head, int) else TERMINAL

    def legal_actions(self):
        return list(range(len(self.node[1])))

    def chance_outcomes(self):
        return [(i, p) for i, (p, _) in enumerate(self.node[1])]

    def child(self, action):
        state = LineState(self.node, self.path)
        state.apply_action(action)
        return state

    def clone(self):
        return LineState(self.node, self.path)

    def apply_action(self, action):
        child = self.node[1][action]
        self.node = child[1] if self.node[0] == "chance" else child
        self.path = (*self.path, action)

    def is_terminal(self):
        return self.current_player() == TERMINAL

    def returns(self):
        return list(self.node)

    def information_state_string(self, player):
        return f"{player}:{self.path}"


async def record(game, policy, traverser=0, seed=0, scale=1.0):
    rows = Rows()
    value = await traverse(
        game.new_initial_state(),
        traverser,
        [str(player) for player in range(game.num_players)],
        ScriptedInferer(policy).infer,
        bytes_encoder(game),
        random.Random(seed),
        scale,
        rows,
    )
    return value, rows


async def test_a_node_returns_the_weighted_mean_and_not_its_best_child():
    # 0.25 * 4 + 0.75 * -8 = -5; the best child is worth 4.
    game = LineGame((0, [(4.0, -4.0), (-8.0, 8.0)]), num_actions=2)
    value, rows = await record(game, lambda *_: [0.25, 0.75])
    assert value == -5.0
    [(_, legal, values, mean)] = rows.advantages
    assert (legal, values, mean) == ((0, 1), [4.0, -8.0], -5.0)
    assert rows.strategies == []


async def test_nested_nodes_of_the_traverser_by_hand():
    # Below action 1 the traverser moves again: 0.5 * 2 + 0.5 * 6 = 4. Root: 0.5 * 0 + 0.5 * 4.
    game = LineGame((0, [(0.0, 0.0), (0, [(2.0, -2.0), (6.0, -6.0)])]), num_actions=2)
    value, rows = await record(game, lambda *_: [0.5, 0.5], scale=2.0)
    assert value == 1.0  # In scaled utility.
    assert [(values, mean) for *_, values, mean in rows.advantages] == [
        ([1.0, 3.0], 2.0),
        ([0.0, 2.0], 1.0),
    ]


async def test_other_players_are_sampled_and_recorded_once():
    game = LineGame((1, [(1.0, -1.0), (2.0, -2.0)]), num_actions=2)
    played = Counter()
    for seed in range(2_000):
        value, rows = await record(game, lambda *_: [0.3, 0.7], seed=seed)
        played[value] += 1
        [(_, legal, policy, player)] = rows.strategies
        assert (legal, policy, player, rows.advantages) == ((0, 1), [0.3, 0.7], 1, [])
    # Binomial(2000, 0.3): standard deviation 20.5.
    assert abs(played[1.0] - 600) < 4 * 20.5


async def test_chance_follows_its_distribution():
    probabilities = [0.7, 0.2, 0.09, 0.01]
    game = LineGame(
        ("chance", [(p, (float(i), -float(i))) for i, p in enumerate(probabilities)]), 2
    )
    draws = 20_000
    counts = Counter()
    for seed in range(draws):
        value, _ = await record(game, lambda *_: [1.0], seed=seed)
        counts[int(value)] += 1
    chi_square = sum(
        (counts[i] - draws * p) ** 2 / (draws * p) for i, p in enumerate(probabilities)
    )
    assert chi_square < 16.27  # The 99.9 % point for 3 degrees of freedom.


def test_sampling_never_returns_what_has_probability_zero():
    assert sample_action((0, 1, 2), [0.0, 1.0, 0.0], 0.0) == 1
    assert sample_action((0, 1, 2), [0.5, 0.4999999, 0.0], 0.99999999) == 1
    assert sample_outcome([(7, 0.0), (8, 1.0), (9, 0.0)], 0.999) == 8
    assert sample_outcome([(7, 0.5), (8, 0.4999999), (9, 0.0)], 0.99999999) == 8
    assert sample_outcome([(3, 0.5), (4, 0.5)], 0.5) == 4


@pytest.mark.parametrize("traverser", [0, 1, 2])
async def test_three_players(traverser):
    game = load_game("kuhn_poker(players=3)")
    rows = Rows()
    await traverse(
        game.new_initial_state(),
        traverser,
        ("0", "1", "2"),
        ScriptedInferer(lambda *_: [0.5, 0.5]).infer,
        bytes_encoder(game),
        random.Random(1),
        1.0,
        rows,
    )
    assert rows.advantages
    assert rows.strategies


async def test_a_game_thousands_of_moves_deep():
    moves = 5_000
    node = (1.0, -1.0)
    for move in range(moves):
        node = (move % 2, [node])
    value, rows = await record(LineGame(node, num_actions=1), lambda *_: [1.0])
    assert value == 1.0
    assert len(rows.advantages) == len(rows.strategies) == moves // 2
