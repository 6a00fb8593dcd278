"""Every game that `load_game` knows by name, and whether it can be trained on."""

import random
import warnings
from dataclasses import dataclass
from itertools import islice

from asynccfr.errors import GameError
from asynccfr.games.checks import checked_play
from asynccfr.games.openspiel import (
    Encoding,
    GameType,
    OpenSpielGame,
    open_spiel_types,
    why_not_enumerable,
)
from asynccfr.games.registry import PRESETS


@dataclass(frozen=True)
class GameRow:
    """One game of the catalogue.

    Attributes:
        name: what `load_game` takes.
        players: `2`, or `2-10` where a parameter chooses.
        playable: whether it can be trained on as it stands, with no parameter or setting.
        note: why not and what would help, or what to know; often empty.
    """

    name: str
    players: str
    playable: bool
    note: str


def list_games() -> list[GameRow]:
    """The presets, then every other game that OpenSpiel has registered, by name.

    Games are loaded, and looked at in their first nodes, rather than believed by their type:
    some types promise what the game does not keep. Takes less than a second.
    """
    types = open_spiel_types()
    rows = [_row(name, types[string.partition("(")[0]], string) for name, string in PRESETS.items()]
    return rows + [_row(name, types[name], name) for name in sorted(types.keys() - PRESETS.keys())]


def _row(name: str, kind: GameType, game_string: str) -> GameRow:
    low, high = kind.min_num_players, kind.max_num_players
    players = str(low) if low == high else f"{low}-{high}"
    if kind.dynamics == GameType.Dynamics.MEAN_FIELD:
        return GameRow(name, players, False, "mean-field")
    if game_string == name and not kind.default_loadable:
        parameters = ", ".join(kind.parameter_specification)
        return GameRow(name, players, False, f"needs parameters: {parameters}")
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        return GameRow(
            name, players, False, "no information-state tensor, nor an observation tensor"
        )
    encoding: Encoding = (
        "information_state" if kind.provides_information_state_tensor else "observation"
    )
    try:
        game = _looked_at(name, game_string, encoding)
    except GameError as error:
        return GameRow(name, players, False, str(error))
    if game_string != name:
        players = str(game.num_players)
    return GameRow(name, players, encoding == "information_state", _note(game))


def _looked_at(name: str, game_string: str, encoding: Encoding) -> OpenSpielGame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        game = OpenSpielGame(game_string, encoding=encoding, name=name)
    for _ in islice(checked_play(game, random.Random(0)), 2):
        pass
    return game


def _note(game: OpenSpielGame) -> str:
    notes = []
    if game.encoding == "observation":
        notes.append("no information-state tensor; game.encoding=observation")
    if game.was_simultaneous:
        notes.append("simultaneous, converted to turn-based")
    if reason := why_not_enumerable(game):
        notes.append(f"no NashConv: {reason}")
    return "; ".join(notes)
