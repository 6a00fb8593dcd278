"""What `asynccfr games` lists."""

import pyspiel
import pytest

from asynccfr.games import GameRow, list_games, load_game
from asynccfr.games.registry import PRESETS


@pytest.fixture(scope="module")
def rows() -> dict[str, GameRow]:
    return {row.name: row for row in list_games()}


def test_presets_come_first_and_every_game_of_openspiel_is_there_once(
    rows: dict[str, GameRow],
) -> None:
    names = [row.name for row in list_games()]
    assert names[: len(PRESETS)] == list(PRESETS)
    assert sorted(names) == sorted({*PRESETS, *pyspiel.registered_names()})


@pytest.mark.parametrize(
    ("name", "players", "playable", "note"),
    [
        ("fhp", "2", True, ""),
        ("leduc_poker", "2-10", True, ""),
        ("python_kuhn_poker", "2", True, ""),
        ("goofspiel", "2-10", True, "simultaneous, converted to turn-based"),
        ("bridge_uncontested_bidding", "2", True, "no NashConv: chance is drawn inside the game"),
        ("tic_tac_toe", "2", False, "no information-state tensor; game.encoding=observation"),
        ("negotiation", "2", False, "no information-state tensor; game.encoding=observation; no N"),
        ("mfg_garnet", "1", False, "mean-field"),
        ("misere", "1-100", False, "needs parameters: game"),
        ("coin_game", "1-10", False, "no information-state tensor, nor an observation tensor"),
        ("crossword", "1", False, "the game 'crossword' has no observation tensor"),
        ("chat_game", "2-10", False, "the game 'chat_game' is at fault after the moves 0: legal_"),
    ],
)
def test_rows(rows: dict[str, GameRow], name: str, players: str, playable: bool, note: str) -> None:
    row = rows[name]
    assert (row.players, row.playable) == (players, playable)
    assert row.note.startswith(note)
    assert bool(row.note) == bool(note)


def test_whatever_is_listed_as_playable_loads_by_its_name(rows: dict[str, GameRow]) -> None:
    playable = [row.name for row in rows.values() if row.playable]
    assert len(playable) > 40
    assert all(load_game(name).name == name for name in playable)


def test_every_note_is_one_line(rows: dict[str, GameRow]) -> None:
    assert not any("\n" in row.note for row in rows.values())
