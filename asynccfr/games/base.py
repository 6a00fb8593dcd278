"""What a game must offer to be played by asynccfr.

`State` is a subset of OpenSpiel's `pyspiel.State` under the same names, so a pyspiel state
*is* a State. `Game` adds what a network needs: sizes, an encoding, and utility bounds.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

CHANCE = -1
"""`State.current_player()` where chance moves (OpenSpiel's `PlayerId.CHANCE`)."""

TERMINAL = -4
"""`State.current_player()` where the game is over (OpenSpiel's `PlayerId.TERMINAL`)."""


@runtime_checkable
class State(Protocol):
    """One node of the game tree; mutable, moved on by `apply_action`."""

    def current_player(self) -> int:
        """The player to move, from 0; `CHANCE` or `TERMINAL` where no player moves."""

    def legal_actions(self) -> list[int]:
        """The legal actions of the player to move, ascending, each in `range(num_actions)`."""

    def chance_outcomes(self) -> list[tuple[int, float]]:
        """At a chance node: every outcome with its probability, which sum to 1."""

    def apply_action(self, action: int) -> None:
        """Moves this state to the child that `action` (or the chance outcome) leads to."""

    def child(self, action: int) -> "State":
        """The state that `action` leads to, this one left as it is."""

    def clone(self) -> "State":
        """An independent copy."""

    def is_terminal(self) -> bool:
        """Whether the game is over."""

    def returns(self) -> Sequence[float]:
        """Every player's utility for the whole game, float[num_players]; asked at the end."""

    def information_state_string(self, player: int) -> str:
        """All that `player` knows, its own past moves included, as a string that no other
        information state has, another player's included."""


@runtime_checkable
class Game(Protocol):
    """The rules, the sizes, and how a state becomes a network's input."""

    @property
    def name(self) -> str:
        """What `load_game` takes to make this game again."""

    @property
    def num_players(self) -> int:
        """How many players, chance not counted."""

    @property
    def num_actions(self) -> int:
        """A: how many distinct actions there are; policies are float32[A]."""

    @property
    def encoding_size(self) -> int:
        """F: the length of an encoding, float32[F]."""

    @property
    def min_utility(self) -> float:
        """The smallest return that any player can get."""

    @property
    def max_utility(self) -> float:
        """The largest return that any player can get."""

    def new_initial_state(self) -> State:
        """A fresh state at the root."""

    def encode(self, state: State, player: int, out: FloatArray) -> None:
        """Writes `player`'s information state into `out`, float32[F], every entry of it.

        Two different information states must never share an encoding.
        """


EncodeBytes = Callable[[State, int], bytes]
"""(state, player) -> the bytes of its float32[F] encoding."""


def bytes_encoder(game: Game) -> EncodeBytes:
    """The function by which traversals encode a state: an immutable row that travels by reference.

    A row of bytes is at once a request's payload, a key of the policy cache and a row of the
    memory; a batch of them is joined by one copy. A game may bring a faster one, made by its
    `new_bytes_encoder()`. Each has a buffer of its own, for one thread at a time.
    """
    own: Callable[[], EncodeBytes] | None = getattr(game, "new_bytes_encoder", None)
    if own is not None:
        return own()
    row = np.zeros(game.encoding_size, dtype=np.float32)

    def encode(state: State, player: int) -> bytes:
        game.encode(state, player, row)
        return row.tobytes()

    return encode


class LegalMasks(dict[tuple[int, ...], bytes]):
    """Legal actions -> the bytes of their bool[A] mask, made once per distinct set.

    Joined and read as a whole, the masks of a batch cost one copy instead of a loop over rows.
    """

    LIMIT = 65_536

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions

    def __missing__(self, legal: tuple[int, ...]) -> bytes:
        if len(self) >= self.LIMIT:
            self.clear()
        mask = np.zeros(self.num_actions, dtype=np.bool_)
        mask[list(legal)] = True
        self[legal] = packed = mask.tobytes()
        return packed

    def stack(self, rows: Sequence[tuple[int, ...]]) -> BoolArray:
        """The masks of many rows, bool[len(rows), A]."""
        joined = bytearray().join(map(self.__getitem__, rows))
        return np.frombuffer(joined, dtype=np.bool_).reshape(len(rows), self.num_actions)


def mark_players(encodings: FloatArray, players: IntArray, num_players: int) -> FloatArray:
    """Encodings with a one-hot of whose they are behind them, float32[N, F + num_players].

    One network plays the average strategy of all players, and nothing in a game says that two
    players' information states have different encodings.

    Args:
        encodings: float32[N, F].
        players: int[N], each in `range(num_players)`.
        num_players: P.
    """
    return np.concatenate((encodings, np.eye(num_players, dtype=np.float32)[players]), axis=1)


def stack_encodings(rows: Sequence[bytes], encoding_size: int) -> FloatArray:
    """Encodings as bytes -> one writable float32[len(rows), F] array."""
    joined = bytearray().join(rows)
    return np.frombuffer(joined, dtype=np.float32).reshape(len(rows), encoding_size)
