"""What every game must keep, asked of games of many kinds, one promise a test.

The tests walk by `apply_action` and compare with OpenSpiel's own tensors; they share no code with
asynccfr's checks.
"""

import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from asynccfr.games import CHANCE, TERMINAL, Game, State, load_game, require_playable
from asynccfr.games.base import bytes_encoder

ONE_CARD_POKER = "asynccfr.games.one_card_poker:OneCardPoker"

GAMES = [
    ONE_CARD_POKER,
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "liars_dice",
    "fhp",
    "goofspiel(num_cards=4,imp_info=True)",
    "matrix_pd",
    "python_kuhn_poker",
    "phantom_ttt",
    "tiny_hanabi",
    "tiny_bridge_2p",
    "tiny_bridge_4p",
    "sheriff",
    "first_sealed_auction(max_value=4)",
    "battleship(board_width=2,board_height=2,ship_sizes=[1],ship_values=[1],num_shots=2)",
    "turn_based_simultaneous_game(game=matrix_rps())",
    "misere(game=kuhn_poker())",
    "negotiation",
]

WITHOUT_TENSORS = {"negotiation"}
"""Played by observation; OpenSpiel has neither tensors nor strings of its information states."""

GENERAL_SUM = {
    "matrix_pd",
    "tiny_hanabi",
    "tiny_bridge_2p",
    "sheriff",
    "first_sealed_auction(max_value=4)",
    "battleship(board_width=2,board_height=2,ship_sizes=[1],ship_values=[1],num_shots=2)",
    "negotiation",
}


def load(name: str) -> Game:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_game(name, "observation" if name in WITHOUT_TENSORS else "information_state")


@pytest.fixture(scope="module", params=GAMES)
def game(request: pytest.FixtureRequest) -> Game:
    return load(request.param)


def play(game: Game, games: int = 30) -> Iterator[State]:
    """Every state of random games, the last of each included."""
    generator = random.Random(0)
    for _ in range(games):
        state = game.new_initial_state()
        while True:
            yield state
            if state.is_terminal():
                break
            state.apply_action(choose(state, generator))


def choose(state: State, generator: random.Random) -> int:
    if state.current_player() == CHANCE:
        actions, probabilities = zip(*state.chance_outcomes(), strict=True)
        return generator.choices(actions, probabilities)[0]
    return generator.choice(state.legal_actions())


def decisions(game: Game) -> Iterator[tuple[State, int]]:
    for state in play(game):
        if state.current_player() >= 0:
            yield state, state.current_player()


def encode(game: Game, state: State, player: int, fill: float = np.nan) -> np.ndarray:
    row = np.full(game.encoding_size, fill, np.float32)
    game.encode(state, player, row)
    return row


def view(game: Game, state: State) -> tuple[object, ...]:
    """All that can be seen of a state through the protocol."""
    player = state.current_player()
    if player == TERMINAL:
        return (player, list(state.returns()))
    if player == CHANCE:
        return (player, state.chance_outcomes())
    return (player, state.legal_actions(), encode(game, state, player).tobytes())


def test_is_a_game_whose_states_are_states(game: Game) -> None:
    assert isinstance(game, Game)
    assert isinstance(game.new_initial_state(), State)


def test_sizes_and_bounds(game: Game) -> None:
    assert game.num_players >= 1
    assert game.num_actions >= 1
    assert game.encoding_size >= 1
    assert game.min_utility < game.max_utility


def test_its_name_loads_it_again(game: Game) -> None:
    again = load(game.name)
    assert (again.name, again.encoding_size, again.num_actions) == (
        game.name,
        game.encoding_size,
        game.num_actions,
    )


def test_only_players_chance_and_the_end_are_to_move(game: Game) -> None:
    for state in play(game):
        player = state.current_player()
        assert player in {CHANCE, TERMINAL, *range(game.num_players)}
        assert state.is_terminal() == (player == TERMINAL)


def test_legal_actions_are_ascending_and_counted(game: Game) -> None:
    for state, _ in decisions(game):
        legal = state.legal_actions()
        assert legal == sorted(set(legal))
        assert set(legal) <= set(range(game.num_actions))
        assert legal


def test_chance_is_a_distribution(game: Game) -> None:
    for state in play(game):
        if state.current_player() == CHANCE:
            probabilities = [probability for _, probability in state.chance_outcomes()]
            assert min(probabilities) >= 0.0
            assert sum(probabilities) == pytest.approx(1.0, abs=1e-9)


def test_encodings_are_finite_and_leave_nothing_of_the_row_before(game: Game) -> None:
    for state, player in decisions(game):
        row = encode(game, state, player)
        assert np.isfinite(row).all()
        np.testing.assert_array_equal(row, encode(game, state, player, fill=7.0))


def test_encoded_bytes_are_the_encoding(game: Game) -> None:
    encode_bytes = bytes_encoder(game)
    for state, player in decisions(game):
        assert encode_bytes(state, player) == encode(game, state, player).tobytes()


@pytest.mark.parametrize(
    "name", [name for name in GAMES if name not in WITHOUT_TENSORS | {ONE_CARD_POKER}]
)
def test_encodings_are_openspiels_information_state_tensors(name: str) -> None:
    game = load(name)
    for state, player in decisions(game):
        tensor = np.asarray(state.information_state_tensor(player), np.float32)
        np.testing.assert_array_equal(encode(game, state, player), tensor)


def test_observations_are_openspiels_observation_tensors() -> None:
    game = load("negotiation")
    for state, player in decisions(game):
        tensor = np.asarray(state.observation_tensor(player), np.float32)
        np.testing.assert_array_equal(encode(game, state, player), tensor)


@pytest.mark.parametrize("name", [name for name in GAMES if name not in WITHOUT_TENSORS])
def test_encodings_and_information_states_stand_one_to_one(name: str) -> None:
    game = load(name)
    pairs = {
        (player, state.information_state_string(player), encode(game, state, player).tobytes())
        for state, player in decisions(game)
    }
    strings = {(player, string) for player, string, _ in pairs}
    encodings = {(player, encoding) for player, _, encoding in pairs}
    assert len(strings) == len(encodings) == len(pairs)


def test_children_and_clones_leave_their_origin_as_it_is(game: Game) -> None:
    generator = random.Random(1)
    for state in play(game, games=10):
        if state.is_terminal():
            continue
        before = view(game, state)
        action = choose(state, generator)
        state.child(action)
        assert view(game, state) == before
        copy = state.clone()
        assert view(game, copy) == before
        copy.apply_action(action)
        assert view(game, state) == before


def test_a_child_is_where_the_action_leads(game: Game) -> None:
    for state, _ in decisions(game):
        for action in state.legal_actions()[:5]:
            moved = state.clone()
            moved.apply_action(action)
            assert view(game, state.child(action)) == view(game, moved)


def test_returns_are_one_for_each_player_and_within_the_bounds(game: Game) -> None:
    for state in play(game):
        if state.is_terminal():
            returns = state.returns()
            assert len(returns) == game.num_players
            assert min(returns) >= game.min_utility
            assert max(returns) <= game.max_utility


@pytest.mark.parametrize("name", [name for name in GAMES if name not in GENERAL_SUM])
def test_what_one_wins_the_others_lose(name: str) -> None:
    for state in play(load(name)):
        if state.is_terminal():
            assert sum(state.returns()) == pytest.approx(0.0)


def test_is_found_playable(game: Game) -> None:
    require_playable(game)
