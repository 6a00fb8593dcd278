"""The check that every game passes before it is trained on.

The Game protocol promises more than names: bounds that hold, actions in order, states that do
not share their parts. A broken promise would otherwise surface hours later, as a wrong policy.
"""

import contextlib
import math
import operator
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import cast

import numpy as np

from asynccfr.errors import AsyncCFRError, GameError
from asynccfr.games.base import CHANCE, TERMINAL, Game, State, bytes_encoder
from asynccfr.games.openspiel import has_information_state_strings

_GAMES = 20
_MOVES = 500
_SECONDS = 0.1
"""The start-up check ends at whichever comes first, but does not cut the first game for time."""

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Node:
    """One node of a random game, found in order.

    Attributes:
        player: who moves; `CHANCE` or `TERMINAL` where no player does.
        outcomes: (action, probability) for each legal action or chance outcome; none at the end.
        encoding: the bytes of the mover's encoding; empty where no player moves.
        information_state: the mover's string; empty where no player moves or the game has none.
        returns: every player's utility; empty before the end.
        action: what random play does here; None at the end.
    """

    player: int
    outcomes: tuple[tuple[int, float], ...] = ()
    encoding: bytes = b""
    information_state: str = ""
    returns: tuple[float, ...] = ()
    action: int | None = None


class _BrokenPromise(Exception):
    """What a game breaks and the remedy; becomes a GameError that names the game."""


def require_playable(game: Game, *, seed: int = 0) -> None:
    """Plays a few random games and looks at every node on the way.

    Args:
        game: what is to be trained on.
        seed: of the random play.

    Raises:
        GameError: one sentence that names the game, what it lacks or breaks, and the remedy. A
            game that raises an exception of its own is the GameError's cause.
    """
    require_members(game, label(game))
    require_sizes(game)
    generator = random.Random(seed)
    deadline = perf_counter() + _SECONDS
    moves = 0
    for _ in range(_GAMES):
        for _ in checked_play(game, generator):
            moves += 1
            if moves == _MOVES:
                return
        if perf_counter() > deadline:
            return


def label(game: object) -> str:
    """How messages call `game`: its name where it has one."""
    name = getattr(game, "name", None)
    return name if isinstance(name, str) else type(game).__name__


def require_members(game: object, name: str) -> Game:
    """`game` as a Game; raises GameError where it lacks a member of the protocol."""
    missing = _missing(game, Game)
    if missing:
        raise GameError(
            f"the game {name!r} is a {type(game).__name__} that lacks {', '.join(missing)}; see "
            "asynccfr.games.Game for what each must do"
        )
    return cast(Game, game)


def require_sizes(game: Game) -> None:
    """Raises GameError where no game can have such sizes or utility bounds."""
    with _naming(game, "in its sizes"):
        for member in ("num_players", "num_actions", "encoding_size"):
            _check_size(member, getattr(game, member))
        low = _finite("min_utility", game.min_utility)
        high = _finite("max_utility", game.max_utility)
        if low > high:
            raise _BrokenPromise(f"min_utility {low} is above max_utility {high}; exchange them")
        if low == high == 0.0:
            raise _BrokenPromise(
                "min_utility and max_utility are both 0, so there is nothing to win; give the "
                "least and the largest return"
            )


def checked_play(game: Game, generator: random.Random) -> Iterator[Node]:
    """One game of uniformly random actions and true chance, each node checked before it is yielded.

    Raises:
        GameError: at the first node that breaks a promise of the Game or State protocol.
    """
    path = _Path()
    with _naming(game, path):
        state = game.new_initial_state()
        missing = _missing(state, State)
        if missing:
            raise _BrokenPromise(
                f"its states lack {', '.join(missing)}; see asynccfr.games.State for what each "
                "must do"
            )
        while True:
            node = _checked_node(game, state)
            if node.player == TERMINAL:
                yield node
                return
            actions, probabilities = zip(*node.outcomes, strict=True)
            action = generator.choices(actions, probabilities)[0]
            yield replace(node, action=action)
            state = _checked_child(game, state, node, action)
            path.append(action)


@contextlib.contextmanager
def blame(game: Game) -> Iterator[None]:
    """Within: what code of `game` raises becomes a GameError that says so, chained to it."""
    try:
        yield
    except AsyncCFRError:
        raise
    except (Exception, SystemExit) as error:
        raise GameError(
            f"the game {label(game)!r} raises {describe(error)}; mend it, and let check-game "
            "play it"
        ) from error


def describe(error: BaseException) -> str:
    """An exception on one line: its type, its message, and the line of Python that raised it."""
    message = " ".join(str(error).split())
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(frame.filename)
    # The call itself failed, or the line is in no file that the reader could open.
    if file.parent == Path(__file__).parent or not file.is_file():
        return what
    return f"{what} (line {frame.lineno} of {file.name})"


class _Path(list[int]):
    """The moves made so far; as a string, where in the game that is."""

    def __str__(self) -> str:
        if not self:
            return "in its initial state"
        shown = ", ".join(map(str, self[-8:]))
        return f"after the moves {'..., ' if len(self) > 8 else ''}{shown}"


@contextlib.contextmanager
def _naming(game: Game, place: object) -> Iterator[None]:
    try:
        yield
    except _BrokenPromise as broken:
        raise GameError(f"the game {label(game)!r} is at fault {place}: {broken}") from None
    except Exception as error:
        raise GameError(
            f"the game {label(game)!r} raises {describe(error)} {place}; mend it there"
        ) from error


def _missing(candidate: object, protocol: type) -> list[str]:
    members = (member for member in vars(protocol) if not member.startswith("_"))
    return sorted(member for member in members if not _has(candidate, member))


def _has(candidate: object, member: str) -> bool:
    try:
        return hasattr(candidate, member)
    except Exception:
        return True  # It is there, and what it raises is told once it is asked.


def _check_size(member: str, value: object) -> None:
    if callable(value):
        raise _BrokenPromise(f"{member} is a method; make it a property or an attribute")
    try:
        size = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _BrokenPromise(f"{member} is {value!r}; give it as an int") from None
    if size < 1:
        raise _BrokenPromise(f"{member} is {size}; it must be at least 1")


def _finite(member: str, value: object) -> float:
    if callable(value):
        raise _BrokenPromise(f"{member} is a method; make it a property or an attribute")
    if not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise _BrokenPromise(f"{member} is {value!r}; give the least and the largest return")
    return float(value)


def _checked_node(game: Game, state: State) -> Node:
    player = state.current_player()
    over = state.is_terminal()
    if bool(over) != (player == TERMINAL):
        raise _BrokenPromise(
            f"is_terminal() is {over} while current_player() is {player}; the game is over exactly "
            f"where current_player() is TERMINAL ({TERMINAL})"
        )
    if over:
        return Node(player, returns=_checked_returns(game, state))
    if player == CHANCE:
        return Node(player, _checked_chance(state))
    if not 0 <= player < game.num_players:
        raise _BrokenPromise(
            f"current_player() is {player}; only one of the {game.num_players} players, from 0, "
            f"CHANCE ({CHANCE}) or TERMINAL ({TERMINAL}) can move, so let simultaneous moves be "
            "made one after another, hidden from the others"
        )
    legal = _checked_actions(game, state)
    string = _checked_string(game, state, player)
    encoding = _checked_encoding(game, state, player)
    return Node(player, tuple((action, 1.0 / len(legal)) for action in legal), encoding, string)


def _checked_returns(game: Game, state: State) -> tuple[float, ...]:
    returns = tuple(map(float, state.returns()))
    if len(returns) != game.num_players:
        raise _BrokenPromise(
            f"returns() holds {len(returns)} utilities for {game.num_players} players; "
            "return one for each"
        )
    slack = _TOLERANCE * max(1.0, abs(game.min_utility), abs(game.max_utility))
    for utility in returns:
        # Written so that NaN is outside too.
        if not game.min_utility - slack <= utility <= game.max_utility + slack:
            raise _BrokenPromise(
                f"returns() holds {utility}, outside the utility bounds {game.min_utility} to "
                f"{game.max_utility}; widen min_utility and max_utility, or mend returns()"
            )
    return returns


def _checked_chance(state: State) -> tuple[tuple[int, float], ...]:
    outcomes = tuple(
        (action, float(probability)) for action, probability in state.chance_outcomes()
    )
    for outcome, probability in outcomes:
        if not 0.0 <= probability <= 1.0 + _TOLERANCE:
            raise _BrokenPromise(
                f"chance outcome {outcome} has probability {probability}; mend chance_outcomes()"
            )
    total = math.fsum(probability for _, probability in outcomes)
    if abs(total - 1.0) > _TOLERANCE:
        raise _BrokenPromise(
            f"the probabilities of its {len(outcomes)} chance outcomes sum to {total:.6g}; make "
            "them sum to 1"
        )
    return outcomes


def _checked_actions(game: Game, state: State) -> list[int]:
    legal = list(state.legal_actions())
    if not legal:
        raise _BrokenPromise("legal_actions() is empty; offer an action, or end the game there")
    if any(later <= earlier for earlier, later in pairwise(legal)):
        raise _BrokenPromise(f"legal_actions() is {legal}; list each action once, ascending")
    if legal[0] < 0 or legal[-1] >= game.num_actions:
        raise _BrokenPromise(
            f"legal_actions() is {legal}, and num_actions is {game.num_actions}; number actions "
            "from 0, and let num_actions count them all"
        )
    return legal


def _checked_string(game: Game, state: State, player: int) -> str:
    if not has_information_state_strings(game):
        return ""
    string = state.information_state_string(player)
    if not isinstance(string, str):
        raise _BrokenPromise(f"information_state_string() is {string!r}; return a str")
    return string


def _checked_encoding(game: Game, state: State, player: int) -> bytes:
    row = np.full(game.encoding_size, np.nan, np.float32)
    game.encode(state, player, row)
    if not np.isfinite(row).all():
        first = int(np.flatnonzero(~np.isfinite(row))[0])
        again = np.zeros_like(row)
        game.encode(state, player, again)
        if np.isfinite(again[first]):
            raise _BrokenPromise(
                f"encode() leaves entry {first} of {row.size} unwritten; write every entry, for "
                "the row is used again"
            )
        raise _BrokenPromise(
            f"encode() writes {row[first]} into entry {first}; write finite numbers"
        )
    encoding = row.tobytes()
    if bytes_encoder(game)(state, player) != encoding:
        raise _BrokenPromise(
            "encode() and new_bytes_encoder() disagree, or answer differently when asked again; "
            "make both a function of the information state"
        )
    return encoding


def _checked_child(game: Game, state: State, node: Node, action: int) -> State:
    before = _view(game, state)
    child = state.child(action)
    if _view(game, state) != before:
        raise _BrokenPromise(
            "child() changes the state that it is called on; copy every part that a move changes"
        )
    copy = state.clone()
    copy.apply_action(action)
    if _view(game, state) != before:
        raise _BrokenPromise(
            "a move of its clone() changes the state itself; copy every part that a move changes"
        )
    # A chance outcome may hide a draw of its own (OpenSpiel's sampled chance).
    if node.player != CHANCE and _view(game, child) != _view(game, copy):
        raise _BrokenPromise(
            f"child({action}) and apply_action({action}) lead to different states; child() is to "
            "return what clone() becomes by apply_action(), which returns nothing"
        )
    return child


def _view(game: Game, state: State) -> tuple[object, ...]:
    """All that the protocol shows of a state to whoever moves there."""
    player = state.current_player()
    if player == TERMINAL:
        return (player, *state.returns())
    if player == CHANCE:
        return (player, *state.chance_outcomes())
    if not 0 <= player < game.num_players:
        return (player,)
    return (player, *state.legal_actions(), bytes_encoder(game)(state, player))
