"""Exact NashConv for games small enough to enumerate."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyspiel
from open_spiel.python.algorithms import exploitability as open_spiel_exploitability
from open_spiel.python.policy import Policy

from asynccfr.errors import NotEnumerableError
from asynccfr.games.base import (
    CHANCE,
    BoolArray,
    FloatArray,
    Game,
    IntArray,
    LegalMasks,
    State,
    bytes_encoder,
    stack_encodings,
)
from asynccfr.games.openspiel import pyspiel_game_of, why_not_enumerable

BatchedPolicy = Callable[[FloatArray, BoolArray, IntArray], FloatArray]
"""(encodings float32[N, F], legal bool[N, A], players int64[N]) -> policies float32[N, A]."""


@dataclass(frozen=True)
class InformationStates:
    """Every information state of a game.

    Attributes:
        keys: information-state strings, N of them.
        encodings: float32[N, F].
        legal: bool[N, A].
        players: whose each is, int64[N].
    """

    keys: list[str]
    encodings: FloatArray
    legal: BoolArray
    players: IntArray


@dataclass(frozen=True)
class ExactEvaluation:
    """How far a policy profile is from a Nash equilibrium, in the game's own units.

    Attributes:
        nash_conv: the sum over players of what each gains by best responding.
        exploitability: nash_conv / number of players.
        expected_returns: each player's expected utility when all follow the policy.
    """

    nash_conv: float
    exploitability: float
    expected_returns: tuple[float, ...]


def enumerate_information_states(game: Game, max_histories: int) -> InformationStates:
    """Walks the whole game tree once, and finds every information state.

    Raises:
        NotEnumerableError: where the tree cannot be walked, or as soon as it is seen to have more
            than `max_histories` nodes.
    """
    obstacle = why_not_enumerable(game)
    if obstacle:
        raise NotEnumerableError(f"NashConv of {game.name!r} cannot be computed: {obstacle}")
    encode = bytes_encoder(game)
    rows: dict[str, tuple[bytes, tuple[int, ...], int]] = {}
    stack = [game.new_initial_state()]
    histories = 0
    while stack:
        state = stack.pop()
        histories += 1
        if histories + len(stack) > max_histories:
            raise NotEnumerableError(
                f"NashConv is not computed: {game.name!r} has more than {max_histories:,} "
                "histories; raise evaluation.max_histories (evaluate --max-histories) if you can "
                "wait for it"
            )
        if state.is_terminal():
            continue
        player = state.current_player()
        if player == CHANCE:
            actions = [action for action, _ in state.chance_outcomes()]
        else:
            actions = state.legal_actions()
            key = state.information_state_string(player)
            if key not in rows:
                rows[key] = (encode(state, player), tuple(actions), player)
            elif rows[key][2] != player:
                raise NotEnumerableError(
                    f"NashConv of {game.name!r} cannot be computed: players {rows[key][2]} and "
                    f"{player} share the information-state string {key!r}"
                )
        stack += [state.child(action) for action in actions]
    if not rows:
        raise NotEnumerableError(f"no player ever decides anything in {game.name!r}")
    encodings, legals, players = zip(*rows.values(), strict=True)
    return InformationStates(
        list(rows),
        stack_encodings(encodings, game.encoding_size),
        LegalMasks(game.num_actions).stack(legals),
        np.array(players, np.int64),
    )


def evaluate_exactly(
    game: Game, information_states: InformationStates, policy: BatchedPolicy
) -> ExactEvaluation:
    """NashConv of `policy`, by one batched forward and OpenSpiel's best responses.

    Games in Python go through OpenSpiel's Python best response, which is slower than its C++.
    """
    table = _table(information_states, policy)
    inner = pyspiel_game_of(game)
    if inner is None:
        adapter = _GameAdapter(game)
        tabular = _TablePolicy(adapter, game.num_players, table)
        value = float(open_spiel_exploitability.nash_conv(adapter, tabular))
        returns = _expected_returns(game.new_initial_state(), table, game.num_players)
    else:
        value = float(pyspiel.nash_conv(inner, pyspiel.TabularPolicy(table)))
        profile = [pyspiel.TabularPolicy(table)] * game.num_players
        returns = pyspiel.expected_returns(inner.new_initial_state(), profile, -1, True)
    return ExactEvaluation(value, value / game.num_players, tuple(map(float, returns)))


Table = dict[str, list[tuple[int, float]]]
"""Information-state string -> (action, probability) for each legal action."""


def _table(information_states: InformationStates, policy: BatchedPolicy) -> Table:
    policies = policy(
        information_states.encodings, information_states.legal, information_states.players
    ).astype(np.float64)
    # float32 rows sum to 1 within 1e-7; OpenSpiel multiplies them along whole histories.
    policies /= policies.sum(axis=1, keepdims=True)
    return {
        key: [(int(action), float(row[action])) for action in np.flatnonzero(legal)]
        for key, row, legal in zip(
            information_states.keys, policies, information_states.legal, strict=True
        )
    }


def _expected_returns(state: State, table: Table, num_players: int) -> list[float]:
    totals = [0.0] * num_players
    for leaf, reach in _weighted_leaves(state, table):
        for player, utility in enumerate(leaf.returns()):
            totals[player] += reach * utility
    return totals


def _weighted_leaves(root: State, table: Table) -> Iterator[tuple[State, float]]:
    stack = [(root, 1.0)]
    while stack:
        state, reach = stack.pop()
        if state.is_terminal():
            yield state, reach
            continue
        player = state.current_player()
        outcomes: Sequence[tuple[int, float]] = (
            state.chance_outcomes()
            if player == CHANCE
            else table[state.information_state_string(player)]
        )
        stack += [(state.child(action), reach * p) for action, p in outcomes if p > 0.0]


class _TablePolicy(Policy):  # type: ignore[misc]
    def __init__(self, game: "_GameAdapter", num_players: int, table: Table) -> None:
        super().__init__(game, list(range(num_players)))
        self._table = table

    def action_probabilities(
        self, state: "_StateAdapter", player_id: int | None = None
    ) -> dict[int, float]:
        player = state.current_player() if player_id is None else player_id
        return dict(self._table[state.information_state_string(player)])


class _GameAdapter:
    """What OpenSpiel's Python best response asks of a game."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def new_initial_state(self) -> "_StateAdapter":
        return _StateAdapter(self._game.new_initial_state(), ())

    def num_players(self) -> int:
        return self._game.num_players


class _StateAdapter:
    """What OpenSpiel's Python best response asks of a state, beyond our State protocol."""

    def __init__(self, state: State, history: tuple[int, ...]) -> None:
        self._state = state
        self._history = history
        self.current_player = state.current_player
        self.is_terminal = state.is_terminal
        self.returns = state.returns
        self.chance_outcomes = state.chance_outcomes
        self.information_state_string = state.information_state_string

    def legal_actions(self, player: int | None = None) -> list[int]:
        return self._state.legal_actions()

    def is_chance_node(self) -> bool:
        return self._state.current_player() == CHANCE

    def is_simultaneous_node(self) -> bool:
        return False

    def player_return(self, player: int) -> float:
        return self._state.returns()[player]

    def history_str(self) -> str:
        return str(self._history)

    def child(self, action: int) -> "_StateAdapter":
        return _StateAdapter(self._state.child(action), (*self._history, action))
