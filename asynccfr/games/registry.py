"""From a name to a game."""

import difflib
import importlib
import re

from asynccfr.errors import GameError
from asynccfr.games.base import Game
from asynccfr.games.openspiel import Encoding, OpenSpielGame, open_spiel_names

PRESETS = {
    "kuhn_poker": "kuhn_poker",
    "leduc_poker": "leduc_poker",
    "liars_dice": "liars_dice",
    "fhp": (
        "universal_poker(betting=limit,numPlayers=2,numRounds=2,blind=50 100,firstPlayer=1 1,"
        "numSuits=4,numRanks=13,numHoleCards=2,numBoardCards=0 3,raiseSize=100 100,"
        "maxRaises=2 3,stack=100000 100000)"
    ),
}
"""Names that asynccfr adds or vouches for -> OpenSpiel game strings. `fhp` is flop hold'em."""

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def load_game(name: str, encoding: Encoding = "information_state") -> Game:
    """The game called `name`.

    Args:
        name: a preset; an OpenSpiel game string such as `goofspiel(num_cards=4,imp_info=True)`;
            or `package.module:Factory` for a game in Python, `Factory` called with no argument.
        encoding: which tensor of an OpenSpiel game the networks see.

    Raises:
        GameError: one sentence that names what is wrong and what to do.
    """
    if _FACTORY.fullmatch(name):
        return _from_factory(name)
    short_name = name.partition("(")[0].strip()
    known = {*PRESETS, *open_spiel_names()}
    if short_name not in known:
        close = difflib.get_close_matches(short_name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise GameError(f"unknown game {short_name!r}; {hint}`asynccfr games` lists them all")
    return OpenSpielGame(PRESETS.get(name, name), encoding=encoding, name=name)


def _from_factory(name: str) -> Game:
    module_name, _, factory_name = name.partition(":")
    try:
        factory: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise GameError(
            f"the game {name!r} cannot be imported: {error}; start in the folder that holds the "
            "module, or install its package"
        ) from error
    for part in factory_name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise GameError(
            f"the module {module_name!r} has no {factory_name!r} to call; give it a function or "
            "class of that name that returns a Game"
        )
    game = factory()
    if not isinstance(game, Game):
        missing = [
            member
            for member in sorted(_members())
            if not hasattr(game, member)
        ]
        raise GameError(
            f"the game {name!r} lacks {', '.join(missing)}; see asynccfr.games.Game for what "
            "each must do"
        )
    return game


def _members() -> set[str]:
    return {member for member in vars(Game) if not member.startswith("_")}
