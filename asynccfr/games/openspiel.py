"""Games of OpenSpiel; its states are played as they are."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Literal


from asynccfr.errors import GameError
from asynccfr.games.base import FloatArray, State

try:
    import open_spiel.python.games
    import pyspiel
    from open_spiel.python.observation import make_observation
except ImportError as error:
    raise ImportError(
        "asynccfr needs OpenSpiel, whose package is named open_spiel (not pyspiel): "
        "pip install open_spiel"
    ) from error

assert open_spiel.python.games  # Imported because it registers the games written in Python.

Encoding = Literal["information_state", "observation"]


class OpenSpielGame:
    """A pyspiel game behind the Game protocol.

    Args:
        game_string: as `pyspiel.load_game` takes it. Simultaneous games become turn-based.
        encoding: `observation` reads observation tensors, with a warning that they forget.
        name: how the game is called, if not by `game_string`.

    Raises:
        GameError: for games that cannot be loaded or that Deep CFR cannot play.
    """

    def __init__(
        self,
        game_string: str,
        *,
        encoding: Encoding = "information_state",
        name: str | None = None,
    ) -> None:
        self.name = name or game_string
        self.pyspiel_game = _load(game_string)
        self.was_simultaneous = _is_simultaneous(self.pyspiel_game)
        if self.was_simultaneous:
            self.pyspiel_game = pyspiel.convert_to_turn_based(self.pyspiel_game)
        kind = self.pyspiel_game.get_type()
        _require_playable(self.name, kind)
        recall = encoding == "information_state"
        provided = (
            kind.provides_information_state_tensor if recall else kind.provides_observation_tensor
        )
        if not provided:
            raise GameError(_no_tensor(self.name, encoding, kind.provides_observation_tensor))
        if not recall:
            warnings.warn(
                f"{self.name} is encoded by observation tensors, which may forget earlier moves; "
                "without perfect recall Deep CFR promises nothing",
                stacklevel=2,
            )
        self._observation = make_observation(
            self.pyspiel_game, pyspiel.IIGObservationType(perfect_recall=recall)
        )
        self._tensor: FloatArray = self._observation.tensor
        self.num_players: int = self.pyspiel_game.num_players()
        self.num_actions: int = self.pyspiel_game.num_distinct_actions()
        self.encoding_size: int = self._tensor.size
        self.min_utility: float = self.pyspiel_game.min_utility()
        self.max_utility: float = self.pyspiel_game.max_utility()

    def new_initial_state(self) -> State:
        """See `Game.new_initial_state`."""
        state: State = self.pyspiel_game.new_initial_state()
        return state

    def encode(self, state: State, player: int, out: FloatArray) -> None:
        """See `Game.encode`."""
        self._observation.set_from(state, player)
        out[:] = self._tensor

    def encode_bytes(self, state: State, player: int) -> bytes:
        """The bytes of the encoding, without the copy that `encode` makes."""
        self._observation.set_from(state, player)
        return self._tensor.tobytes()


def open_spiel_names() -> list[str]:
    """The short names of every game that OpenSpiel has registered."""
    return sorted(pyspiel.registered_names())


def _load(game_string: str) -> pyspiel.Game:
    try:
        with _quiet_stderr():
            return pyspiel.load_game(game_string)
    except (pyspiel.SpielError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise GameError(f"OpenSpiel cannot load the game {game_string!r}: {reason}") from None


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    # OpenSpiel's C++ prints each error to file descriptor 2 before it raises it.
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def _is_simultaneous(game: pyspiel.Game) -> bool:
    simultaneous: bool = game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
    return simultaneous


def _require_playable(name: str, kind: pyspiel.GameType) -> None:
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise GameError(
            f"{name!r} is a mean-field game, which Deep CFR does not play; "
            "choose a sequential or simultaneous game"
        )
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise GameError(f"{name!r} cannot be converted to a turn-based game; choose another")


def _no_tensor(name: str, encoding: Encoding, has_observation: bool) -> str:
    what = "information-state" if encoding == "information_state" else "observation"
    remedy = "choose another game, or wrap it in a Game of your own that encodes its states"
    if encoding == "information_state" and has_observation:
        remedy = (
            "set game.encoding=observation to train on its observation tensors, "
            "which may forget earlier moves"
        )
    return f"the game {name!r} has no {what} tensor; {remedy}"


def pyspiel_game_of(game: object) -> pyspiel.Game | None:
    """The pyspiel game inside `game`, or None for a game written against the protocol alone."""
    return getattr(game, "pyspiel_game", None)


