"""The long look: sizes, information states, and what a network could not tell apart."""

import numpy as np
import pytest

from asynccfr.errors import GameError
from asynccfr.games import examine, load_game
from asynccfr.games.one_card_poker import OneCardPoker, OneCardPokerState


class Changed(OneCardPoker):
    """Kuhn poker with another state type."""

    name = "changed"

    def __init__(self, state_type: type[OneCardPokerState] = OneCardPokerState) -> None:
        super().__init__(3)
        self.state_type = state_type

    def new_initial_state(self) -> OneCardPokerState:
        return self.state_type(self.ranks)


def test_kuhn_poker_in_figures() -> None:
    seen = examine(load_game("kuhn_poker"), games=200)
    assert (seen.name, seen.players, seen.actions) == ("kuhn_poker", 2, 2)
    assert (seen.encoding_size, seen.min_utility, seen.max_utility) == (11, -2.0, 2.0)
    assert seen.games == 200
    # Two deals, then two or three moves; three only after pass, bet: a quarter of uniform play.
    assert seen.max_moves == 5
    assert seen.mean_moves == pytest.approx(4.25, abs=0.15)
    assert seen.information_states == 12
    assert seen.uniform_chance == 1.0
    assert not seen.converted
    assert seen.notes == []
    assert seen.problems == []


def test_the_same_seed_sees_the_same() -> None:
    game = load_game("leduc_poker")
    assert examine(game, games=20, seed=5) == examine(game, games=20, seed=5)
    assert examine(game, games=20, seed=5) != examine(game, games=20, seed=6)


def test_an_encoding_that_merges_information_states_is_a_problem_naming_both() -> None:
    class Merging(Changed):
        def encode(self, state: OneCardPokerState, player: int, out: np.ndarray) -> None:
            super().encode(state, player, out)
            out[:3] = [1.0, 0.0, 0.0] if state.cards[player] < 2 else [0.0, 0.0, 1.0]

    (problem,) = examine(Merging()).problems
    assert "one encoding to different information states of player" in problem
    # The lower two cards, before the same moves; a player moves in four places.
    assert any(
        f"'0{moves}' and '1{moves}'" in problem or f"'1{moves}' and '0{moves}'" in problem
        for moves in ("", "p", "b", "pb")
    )
    assert "4 encodings are so shared" in problem


def test_two_encodings_of_one_information_state_are_a_problem() -> None:
    class Peeking(Changed):
        def encode(self, state: OneCardPokerState, player: int, out: np.ndarray) -> None:
            super().encode(state, player, out)
            out[-1] = state.cards[1 - player]

    (problem,) = examine(Peeking()).problems
    assert "different encodings to one information state of player" in problem
    assert "12 information states are so split" in problem


def test_legal_actions_that_the_player_cannot_know_are_a_problem() -> None:
    class Unfair(OneCardPokerState):
        def legal_actions(self) -> list[int]:
            return [0, 1] if self.cards[0] > self.cards[1] else [0]

    (problem,) = examine(Changed(Unfair)).problems
    assert "has the legal actions [0" in problem
    assert "a player must always know what it may do" in problem


def test_a_broken_promise_is_a_problem_and_ends_the_play() -> None:
    class Overpaid(OneCardPokerState):
        def returns(self) -> list[float]:
            return [3.0, -3.0]

    seen = examine(Changed(Overpaid), games=50)
    (problem,) = seen.problems
    assert "the game 'changed' is at fault after the moves" in problem
    assert "outside the utility bounds" in problem
    assert seen.games == 0
    assert any("0 of 50 games were played to their end" in note for note in seen.notes)


def test_a_game_that_cannot_begin_is_an_error() -> None:
    game = Changed()
    game.num_players = 0
    with pytest.raises(GameError, match="num_players is 0"):
        examine(game)


def test_forgotten_moves_are_noted() -> None:
    class Forgetful(OneCardPokerState):
        """After pass and bet, the first player no longer knows its card."""

        def information_state_string(self, player: int) -> str:
            return "pb" if self.moves == (0, 1) else super().information_state_string(player)

    notes = examine(Changed(Forgetful)).notes
    assert any(note.startswith("imperfect recall: player 0 forgets") for note in notes)


@pytest.mark.parametrize(
    ("name", "converted", "notes"),
    [
        ("leduc_poker", False, []),
        ("kuhn_poker(players=3)", False, ["3 players: a Nash equilibrium is not promised"]),
        ("tiny_hanabi", False, ["general-sum: a Nash equilibrium is not promised"]),
        (
            "goofspiel(num_cards=4,imp_info=True)",
            True,
            ["simultaneous moves are made one after another, hidden from the others"],
        ),
        ("cliff_walking", False, ["one player: a decision problem", "general-sum"]),
    ],
)
def test_notes(name: str, converted: bool, notes: list[str]) -> None:
    seen = examine(load_game(name), games=50)
    assert seen.converted == converted
    assert len(seen.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(seen.notes, notes, strict=True))


def test_a_game_without_information_state_strings_is_examined_by_its_encodings() -> None:
    with pytest.warns(UserWarning, match="may forget"):
        game = load_game("negotiation", "observation")
    seen = examine(game, games=10)
    assert seen.games == 10
    assert seen.information_states > 0
    assert any(note.startswith("no NashConv: ") for note in seen.notes)


def test_skewed_chance_is_counted() -> None:
    class Skewed(OneCardPokerState):
        def chance_outcomes(self) -> list[tuple[int, float]]:
            outcomes = super().chance_outcomes()
            return [(0, 0.5), (1, 0.25), (2, 0.25)] if len(outcomes) == 3 else outcomes

    assert examine(Changed(Skewed)).uniform_chance == 0.5
    assert examine(load_game("phantom_ttt"), games=5).uniform_chance is None
