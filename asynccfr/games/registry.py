"""From a name to a game."""

import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterator

from asynccfr.errors import GameError
from asynccfr.games.base import Game
from asynccfr.games.checks import describe, require_members
from asynccfr.games.openspiel import Encoding, OpenSpielGame, open_spiel_types

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

_FACTORY = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def load_game(name: str, encoding: Encoding = "information_state") -> Game:
    """The game called `name`.

    Args:
        name: a preset; an OpenSpiel game string such as `goofspiel(num_cards=4,imp_info=True)`;
            or `package.module:Factory` for a game in Python, `Factory` called with no argument.
            The module is found as `python -m` would find it, the working directory first.
        encoding: which tensor of an OpenSpiel game the networks see.

    Raises:
        GameError: one sentence that names what is wrong and what to do.
    """
    name = name.strip()
    if _FACTORY.fullmatch(name):
        return _from_factory(name)
    short_name, bracket, _ = name.partition("(")
    known = {*PRESETS, *open_spiel_types()}
    if short_name not in known:
        raise GameError(_unknown(short_name, known))
    if name.count("(") != name.count(")"):
        raise GameError(f"the brackets of the game {name!r} do not match; write name(key=value)")
    game_string = PRESETS.get(short_name, short_name)
    if bracket and game_string != short_name:
        raise GameError(
            f"the preset {short_name!r} takes no parameters; to change it, edit its game string "
            f"{game_string}"
        )
    return OpenSpielGame(name if bracket else game_string, encoding=encoding, name=name)


def _unknown(name: str, known: set[str]) -> str:
    if ":" in name:
        return f"{name!r} does not name a game in Python; write package.module:Factory"
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown game {name!r}; {hint}`asynccfr games` lists them all"


def _from_factory(name: str) -> Game:
    module_name, _, factory_name = name.partition(":")
    with _working_directory_first():
        factory = _import(module_name, name)
        for part in factory_name.split("."):
            factory = getattr(factory, part, None)
        if not callable(factory):
            raise GameError(
                f"the module {module_name!r} has no {factory_name!r} to call; give it a function "
                "or class of that name that returns a Game"
            )
        try:
            game = factory()
        except (Exception, SystemExit) as error:
            raise GameError(
                f"the factory of the game {name!r} raises {describe(error)}; it is called with no "
                "argument and must return a Game"
            ) from error
    return require_members(game, name)


def _import(module_name: str, name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise GameError(
                f"the module of the game {name!r} fails when it is imported, with "
                f"{describe(error)}; mend it there"
            ) from error
        remedy = "start in the folder that holds it, or install its package"
        if module_name.endswith(".py"):
            remedy = "write package.module:Factory, without .py"
        raise GameError(
            f"the game {name!r} is not found, for there is no module {missing!r} here; {remedy}"
        ) from error


@contextlib.contextmanager
def _working_directory_first() -> Iterator[None]:
    """Within: modules are found as under `python -m`, which a console script does not do."""
    here = os.getcwd()
    if {"", here} & set(sys.path):
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
