"""Exact evaluation against OpenSpiel's own figures and values known by hand."""

import numpy as np
import pyspiel
import pytest
from open_spiel.python.policy import TabularPolicy

from asynccfr.errors import NotEnumerableError
from asynccfr.evaluation.exact import enumerate_information_states, evaluate_exactly
from asynccfr.games import load_game


def uniform(encodings, legal, players):
    return (legal / legal.sum(axis=1, keepdims=True)).astype(np.float32)


def seeded_policy(encodings, legal, players):
    """Random policies, with zeros among them, that depend on the encodings alone."""
    weights = np.abs(np.sin(encodings @ np.arange(1.0, 1.0 + encodings.shape[1])))[:, None]
    weights = np.where(legal, np.abs(np.sin(weights * np.arange(5, 5 + legal.shape[1]))), 0.0)
    weights[weights < 0.2] = 0.0
    weights[weights.sum(axis=1) == 0] = legal[weights.sum(axis=1) == 0]
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "states", "nash_conv"),
    [
        # Kuhn by hand: 3 cards x 2 histories a player; 11/12 from enumerating best responses.
        ("kuhn_poker", 12, 11 / 12),
        ("leduc_poker", 936, 4.747222222222222),
        ("kuhn_poker(players=3)", 48, 2.0625),
        ("python_kuhn_poker", 12, 11 / 12),
    ],
)
def test_uniform_play(name, states, nash_conv):
    game = load_game(name)
    information_states = enumerate_information_states(game, 100_000)
    assert len(information_states.keys) == len(set(information_states.keys)) == states
    result = evaluate_exactly(game, information_states, uniform)
    assert result.nash_conv == pytest.approx(nash_conv, abs=1e-9)
    assert result.exploitability == result.nash_conv / game.num_players


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "kuhn_poker(players=3)"])
def test_equals_open_spiel_on_the_same_policy(name):
    game = load_game(name)
    information_states = enumerate_information_states(game, 100_000)
    result = evaluate_exactly(game, information_states, seeded_policy)

    tabular = TabularPolicy(pyspiel.load_game(name))
    for key, row in zip(
        information_states.keys,
        seeded_policy(
            information_states.encodings, information_states.legal, information_states.players
        ),
        strict=True,
    ):
        tabular.policy_for_key(key)[:] = row
    assert len(tabular.state_lookup) == len(information_states.keys)
    from open_spiel.python.algorithms import expected_game_score, exploitability

    theirs = exploitability.nash_conv(tabular.game, tabular)
    assert result.nash_conv == pytest.approx(theirs, abs=1e-9)
    values = expected_game_score.policy_value(
        tabular.game.new_initial_state(), [tabular] * game.num_players
    )
    assert result.expected_returns == pytest.approx(values, abs=1e-9)


def test_kuhns_equilibrium_has_no_exploitability():
    """The member alpha = 1/3 of Kuhn's family: jack bets 1/3, queen checks, king always bets."""
    alpha = 1 / 3
    bets = {
        "0": alpha, "1": 0.0, "2": 3 * alpha,
        "0p": 1 / 3, "1p": 0.0, "2p": 1.0,
        "0b": 0.0, "1b": 1 / 3, "2b": 1.0,
        "0pb": 0.0, "1pb": alpha + 1 / 3, "2pb": 1.0,
    }  # fmt: skip
    game = load_game("kuhn_poker")
    information_states = enumerate_information_states(game, 1_000)
    table = np.array([[1 - bets[key], bets[key]] for key in information_states.keys])
    result = evaluate_exactly(game, information_states, lambda *_: table)
    assert result.nash_conv == pytest.approx(0, abs=1e-12)
    assert result.expected_returns == pytest.approx((-1 / 18, 1 / 18), abs=1e-12)


def test_a_game_in_python_is_evaluated_by_the_same_definition():
    ours = load_game("asynccfr.games.one_card_poker:OneCardPoker")
    information_states = enumerate_information_states(ours, 100_000)
    result = evaluate_exactly(ours, information_states, uniform)
    assert result.nash_conv > 0.5
    assert sum(result.expected_returns) == pytest.approx(0, abs=1e-12)


def test_the_gate_stops_before_a_big_game_is_walked():
    with pytest.raises(NotEnumerableError, match="more than 5,000 histories"):
        enumerate_information_states(load_game("fhp"), 5_000)
    kuhn = load_game("kuhn_poker")
    histories = count_histories(kuhn.new_initial_state())
    assert len(enumerate_information_states(kuhn, histories).keys) == 12
    with pytest.raises(NotEnumerableError):
        enumerate_information_states(kuhn, histories - 1)


def count_histories(state):
    if state.is_terminal():
        return 1
    return 1 + sum(count_histories(state.child(action)) for action in state.legal_actions())


class TwinStrings:
    """Hidden matching pennies whose players' information states have one string."""

    def __init__(self, moves=()):
        self.moves = moves
        self.name, self.num_players, self.num_actions, self.encoding_size = "twins", 2, 2, 1

    def new_initial_state(self):
        return TwinStrings()

    def encode(self, state, player, out):
        out[0] = 1.0

    def current_player(self):
        return (0, 1, -4)[len(self.moves)]

    def legal_actions(self):
        return [0, 1]

    def child(self, action):
        return TwinStrings((*self.moves, action))

    def is_terminal(self):
        return len(self.moves) == 2

    def information_state_string(self, player):
        return "nothing is known"


def test_players_who_share_a_string_cannot_be_told_apart():
    with pytest.raises(NotEnumerableError, match="share the information-state string"):
        enumerate_information_states(TwinStrings(), 100)
