"""The worked example, against what is known of Kuhn poker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynccfr.evaluation.exact import enumerate_information_states, evaluate_exactly
from asynccfr.games import CHANCE, load_game
from asynccfr.games.base import BoolArray, FloatArray, IntArray
from asynccfr.games.one_card_poker import BET, PASS, OneCardPoker, OneCardPokerState

JACK, QUEEN, KING = range(3)


def evaluate(game: OneCardPoker, bets: dict[str, float] | None):  # type: ignore[no-untyped-def]
    """Exact evaluation of betting with the given probabilities, or with one half everywhere."""
    states = enumerate_information_states(game, 10_000)
    assert states is not None

    def policy(encodings: FloatArray, legal: BoolArray, players: IntArray) -> FloatArray:
        bet = np.array([0.5 if bets is None else bets[key] for key in states.keys], np.float32)
        return np.stack([1.0 - bet, bet], axis=1)

    return evaluate_exactly(game, states, policy)


def test_uniform_play_of_three_ranks_is_as_far_from_equilibrium_as_in_kuhn_poker() -> None:
    assert evaluate(OneCardPoker(3), None).nash_conv == pytest.approx(11 / 12, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1 / 3])
def test_kuhns_equilibria_are_worth_a_eighteenth_to_the_second_player(alpha: float) -> None:
    # Kuhn (1950): the first player bluffs the jack with alpha, bets the king with 3 alpha and
    # calls with the queen with alpha + 1/3; the second bluffs the jack and calls with the queen
    # one time in three.
    first = {"0": alpha, "1": 0.0, "2": 3 * alpha, "0pb": 0.0, "1pb": alpha + 1 / 3, "2pb": 1.0}
    second = {"0p": 1 / 3, "1p": 0.0, "2p": 1.0, "0b": 0.0, "1b": 1 / 3, "2b": 1.0}
    exact = evaluate(OneCardPoker(3), first | second)
    assert exact.expected_returns == pytest.approx((-1 / 18, 1 / 18), abs=1e-6)
    assert exact.nash_conv == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("cards", "moves", "utility"),
    [
        ((KING, QUEEN), (PASS, PASS), 1.0),
        ((JACK, QUEEN), (PASS, PASS), -1.0),
        ((JACK, KING), (BET, PASS), 1.0),
        ((KING, JACK), (PASS, BET, PASS), -1.0),
        ((KING, JACK), (BET, BET), 2.0),
        ((QUEEN, KING), (PASS, BET, BET), -2.0),
    ],
)
def test_every_way_to_end(cards: tuple[int, int], moves: tuple[int, ...], utility: float) -> None:
    state = OneCardPoker(3).new_initial_state()
    for action in (*cards, *moves):
        assert not state.is_terminal()
        state.apply_action(action)
    assert state.is_terminal()
    assert state.returns() == [utility, -utility]


def test_an_encoding_holds_the_own_card_and_the_moves_seen() -> None:
    row = np.full(7, np.nan, np.float32)
    OneCardPoker(3).encode(OneCardPokerState(3, (QUEEN, KING), (PASS, BET)), 0, row)
    assert row.tolist() == [0, 1, 0, 1, 0, 0, 1]


@given(ranks=st.integers(2, 9))
def test_each_rank_adds_four_information_states(ranks: int) -> None:
    states = enumerate_information_states(OneCardPoker(ranks), 10_000)
    assert states is not None
    # First to act, after pass, after bet, after pass and bet; with each card.
    assert len(states.keys) == 4 * ranks
    assert len({row.tobytes() for row in states.encodings}) == 4 * ranks


@given(ranks=st.integers(2, 9), data=st.data())
def test_the_dealt_card_leaves_the_deck(ranks: int, data: st.DataObject) -> None:
    state = OneCardPoker(ranks).new_initial_state()
    card = data.draw(st.sampled_from([outcome for outcome, _ in state.chance_outcomes()]))
    state.apply_action(card)
    assert state.current_player() == CHANCE
    left = dict(state.chance_outcomes())
    assert left.keys() == set(range(ranks)) - {card}
    assert set(left.values()) == {1.0 / (ranks - 1)}


def test_a_deck_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="two players need at least 2 cards"):
        OneCardPoker(1)


def test_its_name_loads_it() -> None:
    game = load_game("asynccfr.games.one_card_poker:OneCardPoker")
    assert isinstance(game, OneCardPoker)
    assert load_game(game.name).encoding_size == game.encoding_size
