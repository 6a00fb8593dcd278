"""Games that break one promise each, and the sentence that says so."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asynccfr.errors import GameError
from asynccfr.games import CHANCE, TERMINAL, examine, load_game, require_playable
from asynccfr.games.one_card_poker import OneCardPoker, OneCardPokerState


class Variant(OneCardPoker):
    """One-card poker with members replaced, in the game or in its states."""

    def __init__(self, **members: Any) -> None:
        super().__init__(3)
        names = {name for name in members if hasattr(OneCardPokerState, name)}
        self.state_type = type("VariantState", (OneCardPokerState,), {n: members[n] for n in names})
        vars(self).update({n: member for n, member in members.items() if n not in names})

    name = "variant"

    def new_initial_state(self) -> OneCardPokerState:
        return self.state_type(self.ranks)


def deciding(value: Any) -> Callable[..., Any]:
    """A `current_player` that is `value` wherever a player moves."""

    def current_player(state: OneCardPokerState) -> Any:
        player = OneCardPokerState.current_player(state)
        return value if player >= 0 else player

    return current_player


def encoding(change: Callable[[np.ndarray], None]) -> Callable[..., None]:
    """An `encode` that writes the true encoding and then `change`s it."""
    game = OneCardPoker(3)

    def encode(state: Any, player: int, out: np.ndarray) -> None:
        game.encode(state, player, out)
        change(out)

    return encode


def forgetting_an_entry(state: Any, player: int, out: np.ndarray) -> None:
    row = np.zeros_like(out)
    OneCardPoker(3).encode(state, player, row)
    out[:6] = row[:6]


def whoever_moves(state: OneCardPokerState) -> int:
    """The true `current_player`, whatever `is_terminal` says."""
    return OneCardPokerState(state.ranks, state.cards, state.moves).current_player()


def moved(state: OneCardPokerState, action: int) -> OneCardPokerState:
    """The true `child`, whatever `clone` and `apply_action` do."""
    child = OneCardPokerState(state.ranks, state.cards, state.moves)
    child.apply_action(action)
    return type(state)(child.ranks, child.cards, child.moves)


def moved_in_place(state: OneCardPokerState, action: int) -> OneCardPokerState:
    state.apply_action(action)
    return state


def moved_otherwise(state: OneCardPokerState, action: int) -> OneCardPokerState:
    return moved(state, action if len(state.cards) < 2 else 1 - action)


def misplaced_deal(state: OneCardPokerState) -> list[tuple[int, float]]:
    return {}["nothing"]


FAULTS = {
    "no player": ({"num_players": 0}, "num_players is 0; it must be at least 1"),
    "no action": ({"num_actions": 0}, "num_actions is 0; it must be at least 1"),
    "no encoding": ({"encoding_size": 0}, "encoding_size is 0; it must be at least 1"),
    "size as a method": ({"num_players": lambda: 2}, "num_players is a method; make it a property"),
    "size as a float": ({"num_actions": 2.0}, "num_actions is 2.0; give it as an int"),
    "bound as a method": ({"max_utility": lambda: 2.0}, "max_utility is a method"),
    "bound as a string": ({"max_utility": "2"}, "max_utility is '2'; give the least and"),
    "NaN bound": ({"min_utility": math.nan}, "min_utility is nan; give the least and"),
    "infinite bound": ({"max_utility": math.inf}, "max_utility is inf; give the least and"),
    "inverted bounds": (
        {"min_utility": 2.0, "max_utility": -2.0},
        "min_utility 2.0 is above max_utility -2.0; exchange them",
    ),
    "nothing to win": ({"min_utility": 0.0, "max_utility": 0}, "there is nothing to win"),
    "bounds too tight": ({"max_utility": 1.0}, "returns() holds 2.0, outside the utility bounds"),
    "NaN utility": ({"returns": lambda _: [math.nan, 0.0]}, "returns() holds nan, outside"),
    "a utility too few": ({"returns": lambda _: [0.0]}, "returns() holds 1 utilities for 2"),
    "no legal action": ({"legal_actions": lambda _: []}, "legal_actions() is empty"),
    "descending actions": ({"legal_actions": lambda _: [1, 0]}, "list each action once, ascending"),
    "repeated actions": ({"legal_actions": lambda _: [1, 1]}, "list each action once, ascending"),
    "action out of range": (
        {"legal_actions": lambda _: [0, 2]},
        "legal_actions() is [0, 2], and num_actions is 2",
    ),
    "negative action": ({"legal_actions": lambda _: [-1, 0]}, "number actions from 0"),
    "chance beyond 1": (
        {"chance_outcomes": lambda _: [(0, 0.6), (1, 0.6)]},
        "the probabilities of its 2 chance outcomes sum to 1.2; make them sum to 1",
    ),
    "no chance outcome": ({"chance_outcomes": lambda _: []}, "0 chance outcomes sum to 0"),
    "negative chance": (
        {"chance_outcomes": lambda _: [(0, -0.5), (1, 1.5)]},
        "chance outcome 0 has probability -0.5",
    ),
    "NaN chance": ({"chance_outcomes": lambda _: [(0, math.nan)]}, "has probability nan"),
    "simultaneous moves": (
        {"current_player": deciding(-2)},
        "current_player() is -2; only one of the 2 players",
    ),
    "third player of two": ({"current_player": deciding(2)}, "current_player() is 2; only one of"),
    "over but moving": (
        {"is_terminal": lambda _: True, "current_player": whoever_moves},
        "is_terminal() is True while current_player() is -1",
    ),
    "never over": (
        {"is_terminal": lambda _: False, "current_player": whoever_moves},
        "is_terminal() is False while current_player() is -4",
    ),
    "unwritten entry": (
        {"encode": forgetting_an_entry},
        "encode() leaves entry 6 of 7 unwritten; write every entry",
    ),
    "infinite entry": (
        {"encode": encoding(lambda row: row.__setitem__(2, np.inf))},
        "encode() writes inf into entry 2; write finite numbers",
    ),
    "NaN entry": (
        {"encode": encoding(lambda row: row.__setitem__(2, np.nan))},
        "encode() writes nan into entry 2; write finite numbers",
    ),
    "encoding by chance": (
        {"encode": encoding(lambda row: row.__setitem__(2, random.random()))},
        "disagree, or answer differently when asked again",
    ),
    "two encodings": (
        {"new_bytes_encoder": lambda: lambda state, player: bytes(4)},
        "encode() and new_bytes_encoder() disagree",
    ),
    "encode of another shape": (
        {"encode": encoding(lambda row: row.__setitem__(slice(0, 2), [1.0, 2.0, 3.0]))},
        "raises ValueError: could not broadcast",
    ),
    "string that is none": (
        {"information_state_string": lambda _, player: None},
        "information_state_string() is None; return a str",
    ),
    "child in place": ({"child": moved_in_place}, "child() changes the state"),
    "clone in name only": (
        {"clone": lambda state: state, "child": moved},
        "a move of its clone() changes the state itself",
    ),
    "child elsewhere": ({"child": moved_otherwise}, "lead to different states"),
    "move that moves nothing": (
        {"apply_action": moved, "child": moved},
        "lead to different states; child() is to return what clone() becomes",
    ),
    "an exception of its own": (
        {"chance_outcomes": misplaced_deal},
        "the game 'variant' raises KeyError: 'nothing' (line ",
    ),
}


@pytest.mark.parametrize(("members", "sentence"), FAULTS.values(), ids=FAULTS.keys())
def test_a_broken_promise_is_named_in_one_sentence(members: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GameError) as caught:
        require_playable(Variant(**members))
    message = str(caught.value)
    assert sentence in message
    assert "'variant'" in message
    assert "\n" not in message


def test_the_unbroken_game_passes() -> None:
    require_playable(Variant())


def test_an_exception_in_the_game_is_the_cause_and_its_place_is_told() -> None:
    with pytest.raises(GameError, match=r"in its initial state; mend it there") as caught:
        require_playable(Variant(chance_outcomes=misplaced_deal))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "of test_checks.py)" in str(caught.value)


def test_the_moves_to_a_fault_are_told() -> None:
    with pytest.raises(
        GameError, match=r"after the moves [012], [012]: legal_actions\(\) is empty"
    ):
        require_playable(Variant(legal_actions=lambda _: []))


def test_an_object_that_is_no_game_is_told_what_it_lacks() -> None:
    with pytest.raises(GameError, match="a dict that lacks encode, encoding_size, max_utility, "):
        require_playable({})  # type: ignore[arg-type]


def test_states_that_are_no_states_are_told_what_they_lack() -> None:
    game = Variant()
    game.new_initial_state = lambda: "root"  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(GameError, match="its states lack apply_action, chance_outcomes, child, "):
        require_playable(game)


def test_a_size_that_raises_is_told() -> None:
    class Raising(Variant):
        @property
        def num_actions(self) -> int:  # type: ignore[override]
            raise RuntimeError("no\ntable")

    with pytest.raises(GameError, match=r"raises RuntimeError: no table .* in its sizes"):
        require_playable(Raising())


class CountdownState:
    """One player counts down by one until nothing is left."""

    moves_made = 0

    def __init__(self, left: int) -> None:
        self.left = left

    def current_player(self) -> int:
        return 0 if self.left else TERMINAL

    def legal_actions(self) -> list[int]:
        return [0]

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return []

    def apply_action(self, action: int) -> None:
        CountdownState.moves_made += 1
        self.left -= 1

    def child(self, action: int) -> "CountdownState":
        child = self.clone()
        child.apply_action(action)
        return child

    def clone(self) -> "CountdownState":
        return CountdownState(self.left)

    def is_terminal(self) -> bool:
        return not self.left

    def returns(self) -> list[float]:
        return [1.0]

    def information_state_string(self, player: int) -> str:
        return str(self.left)


class Countdown:
    name, num_players, num_actions, encoding_size = "countdown", 1, 1, 1
    min_utility, max_utility = 0.0, 1.0

    def new_initial_state(self) -> CountdownState:
        return CountdownState(5_000)

    def encode(self, state: CountdownState, player: int, out: np.ndarray) -> None:
        out[0] = state.left


def test_a_game_thousands_of_moves_deep_is_looked_at_in_part_and_examined_in_whole() -> None:
    CountdownState.moves_made = 0
    require_playable(Countdown())
    assert CountdownState.moves_made < 2_000
    assert examine(Countdown(), games=1).max_moves == 5_000


def test_play_is_the_same_for_the_same_seed() -> None:
    visits: list[list[tuple[int, ...]]] = []
    for _ in range(2):
        seen: list[tuple[int, ...]] = []

        def noted(state: OneCardPokerState, seen: list[tuple[int, ...]] = seen) -> list[int]:
            seen.append((*state.cards, *state.moves))
            return [0, 1]

        require_playable(Variant(legal_actions=noted), seed=3)
        visits.append(seen)
    shorter = min(map(len, visits))
    assert visits[0][:shorter] == visits[1][:shorter]
    assert shorter > 20


def test_games_with_chance_drawn_inside_are_playable() -> None:
    with pytest.warns(UserWarning, match="negotiation is encoded by observation"):
        game = load_game("negotiation", "observation")
    assert game.new_initial_state().current_player() == CHANCE
    require_playable(game)
