"""Games of OpenSpiel; its states are played as they are."""

import contextlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from asynccfr.errors import GameError
from asynccfr.games.base import EncodeBytes, FloatArray, Game, State

try:
    import open_spiel.python.games  # noqa: F401 - registers the games written in Python.
    import pyspiel
    from open_spiel.python.observation import make_observation
except ImportError as error:
    raise ImportError(
        "asynccfr needs OpenSpiel, whose package is named open_spiel (not pyspiel): "
        "pip install open_spiel"
    ) from error

Encoding = Literal["information_state", "observation"]

GameType: TypeAlias = pyspiel.GameType
"""OpenSpiel's description of a game that need not be loaded for it."""

_OWN_GAME = "choose another game, or wrap it in a Game of your own that encodes its states"


class OpenSpielGame:
    """A pyspiel game behind the Game protocol.

    Encodings pass through one buffer, so each thread that plays needs a game of its own.

    Args:
        game_string: as `pyspiel.load_game` takes it. Simultaneous games become turn-based.
        encoding: `observation` reads observation tensors, with a warning that they forget.
        name: how the game is called, if not by `game_string`.

    Attributes:
        pyspiel_game: what is played, turn-based.
        was_simultaneous: whether it was converted.
        encoding: which tensor `encode` writes.

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
        self.encoding = encoding
        self.pyspiel_game = _load(game_string)
        dynamics = self.pyspiel_game.get_type().dynamics
        if dynamics == GameType.Dynamics.MEAN_FIELD:
            raise GameError(
                f"{self.name!r} is a mean-field game, which Deep CFR does not play; "
                "choose a sequential or simultaneous game"
            )
        self.was_simultaneous: bool = dynamics == GameType.Dynamics.SIMULTANEOUS
        if self.was_simultaneous:
            self.pyspiel_game = pyspiel.convert_to_turn_based(self.pyspiel_game)
        self._observation = _observation(self.pyspiel_game, self.name, encoding)
        if encoding == "observation":
            warnings.warn(
                f"{self.name} is encoded by observation tensors, which may forget earlier moves; "
                "without perfect recall Deep CFR promises nothing",
                stacklevel=2,
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

    def new_bytes_encoder(self) -> EncodeBytes:
        """See `bytes_encoder`; without the copy that `encode` makes."""
        observation = _observation(self.pyspiel_game, self.name, self.encoding)
        set_from, tensor = observation.set_from, observation.tensor

        def encode(state: State, player: int) -> bytes:
            set_from(state, player)
            encoded: bytes = tensor.tobytes()
            return encoded

        return encode


def open_spiel_types() -> dict[str, GameType]:
    """Short name -> type of every game that OpenSpiel has registered."""
    return {kind.short_name: kind for kind in pyspiel.registered_games()}


def pyspiel_game_of(game: object) -> pyspiel.Game | None:
    """The pyspiel game inside `game`, or None for a game written against the protocol alone."""
    return getattr(game, "pyspiel_game", None)


def has_information_state_strings(game: Game) -> bool:
    """Whether states answer `information_state_string`; some of OpenSpiel's do not."""
    inner = pyspiel_game_of(game)
    return inner is None or bool(inner.get_type().provides_information_state_string)


def why_not_enumerable(game: Game) -> str:
    """Why the whole tree of `game` cannot be walked and scored; empty where it can."""
    inner = pyspiel_game_of(game)
    if inner is None:
        return ""
    kind = inner.get_type()
    if kind.chance_mode == GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return "chance is drawn inside the game, so its outcomes cannot be enumerated"
    if not kind.provides_information_state_string:
        return "the game has no information-state strings"
    return ""


def _load(game_string: str) -> pyspiel.Game:
    try:
        with _quiet_stderr():
            return pyspiel.load_game(game_string)
    except Exception as error:
        # The C++ places its file and line before some messages, its game list after others.
        reason = re.sub(r"^\S+\.(cc|h):\d+ ", "", " ".join(str(error).split()))
        reason = reason.partition(" Available ")[0].rstrip(".")[:200] or type(error).__name__
        kind = open_spiel_types().get(game_string.partition("(")[0])
        parameters = ", ".join(kind.parameter_specification) if kind else ""
        remedy = f"its parameters are {parameters}" if parameters else "it takes no parameters"
        raise GameError(
            f"OpenSpiel cannot load the game {game_string!r} ({reason}); {remedy}"
        ) from None


def _observation(game: pyspiel.Game, name: str, encoding: Encoding) -> Any:
    kind = game.get_type()
    recall = encoding == "information_state"
    observation = None
    if kind.provides_information_state_tensor if recall else kind.provides_observation_tensor:
        # Some types promise a tensor that their observer then cannot make.
        with contextlib.suppress(pyspiel.SpielError, ValueError), _quiet_stderr():
            observation = make_observation(game, pyspiel.IIGObservationType(perfect_recall=recall))
    if observation is not None and observation.tensor is not None:
        return observation
    what = "information-state" if recall else "observation"
    remedy = _OWN_GAME
    if recall and kind.provides_observation_tensor:
        remedy = (
            "set game.encoding=observation to train on its observation tensors, "
            "which may forget earlier moves"
        )
    raise GameError(f"the game {name!r} has no {what} tensor; {remedy}")


_STDERR_LOCK = threading.Lock()
"""Two threads that borrowed file descriptor 2 at once could give back each other's."""


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    # OpenSpiel's C++ prints each error to file descriptor 2 before it raises it.
    with _STDERR_LOCK:
        with contextlib.suppress(AttributeError, OSError, ValueError):
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
