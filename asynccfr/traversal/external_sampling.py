"""One external-sampling traversal, as a coroutine."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from asynccfr.games.base import CHANCE, EncodeBytes, State

Infer = Callable[[str, bytes, tuple[int, ...]], Awaitable[list[float]]]
"""`Inferer.infer`."""

AdvantageRow = tuple[bytes, tuple[int, ...], list[float], float]
"""(encoding, legal actions, the value of each, their mean under the policy)."""

StrategyRow = tuple[bytes, tuple[int, ...], list[float], int]
"""(encoding, legal actions, the policy over all A actions, whose it is)."""


@dataclass(slots=True)
class Rows:
    """What one traversal stores, in the order in which it met (or finished) the nodes."""

    advantages: list[AdvantageRow] = field(default_factory=list)
    strategies: list[StrategyRow] = field(default_factory=list)


_OpenNode = tuple[State, bytes, tuple[int, ...], list[float], list[float]]
"""A traverser's node: (state, encoding, legal actions, policy, the values found so far).

A tuple and no class, because one is made for every visit and its making would show.
"""


async def traverse(
    state: State,
    traverser: int,
    networks: Sequence[str],
    infer: Infer,
    encode: EncodeBytes,
    generator: random.Random,
    utility_scale: float,
    rows: Rows,
) -> float:
    """Samples the game below `state`, which it consumes, and records the traverser's regrets.

    At the traverser's nodes every legal action is visited; elsewhere one action, or one chance
    outcome, is sampled from its distribution. The open nodes stand on a stack of their own, so
    the depth of a game is bounded by memory and not by the interpreter's recursion limit.

    Source: arXiv 1811.00164, Algorithm 2.

    Args:
        state: the root.
        traverser: the player whose actions are all visited.
        networks: player -> the network that answers for it.
        infer: asks for a policy.
        encode: makes the bytes of an information state.
        generator: samples actions and chance, and is used for nothing else.
        utility_scale: utilities are divided by this.
        rows: receives one row for each visit to a decision node.

    Returns:
        The sampled value of `state` to the traverser, in scaled utility.
    """
    draw = generator.random
    open_nodes: list[_OpenNode] = []
    while True:
        player = state.current_player()
        if player >= 0:
            legal = tuple(state.legal_actions())
            encoding = encode(state, player)
            policy = await infer(networks[player], encoding, legal)
            if player == traverser:
                values: list[float] = []
                open_nodes.append((state, encoding, legal, policy, values))
                state = _next_child(state, legal, 0)
            else:
                rows.strategies.append((encoding, legal, policy, player))
                state.apply_action(sample_action(legal, policy, draw()))
            continue
        if player == CHANCE:
            state.apply_action(sample_outcome(state.chance_outcomes(), draw()))
            continue
        value = state.returns()[traverser] / utility_scale
        while open_nodes:
            parent, encoding, legal, policy, values = open_nodes[-1]
            values.append(value)
            visited = len(values)
            if visited < len(legal):
                state = _next_child(parent, legal, visited)
                break
            open_nodes.pop()
            value = 0.0
            for action, action_value in zip(legal, values, strict=True):
                value += policy[action] * action_value
            rows.advantages.append((encoding, legal, values, value))
        else:
            return value


def _next_child(parent: State, legal: tuple[int, ...], visited: int) -> State:
    """The child after `visited` others; the last one takes the place of its parent, uncopied."""
    if visited + 1 < len(legal):
        return parent.child(legal[visited])
    parent.apply_action(legal[visited])
    return parent


def sample_action(legal: Sequence[int], policy: Sequence[float], u: float) -> int:
    """The legal action at which the policy's cumulative probability passes `u`, in [0, 1).

    Rounding can leave the sum just under 1; the last action with a positive probability then
    takes the rest.
    """
    chosen = legal[0]
    for action in legal:
        probability = policy[action]
        if probability > 0.0:
            chosen = action
            u -= probability
            if u < 0.0:
                break
    return chosen


def sample_outcome(outcomes: Sequence[tuple[int, float]], u: float) -> int:
    """The chance outcome at which the cumulative probability passes `u`, in [0, 1)."""
    chosen = outcomes[0][0]
    for outcome, probability in outcomes:
        if probability > 0.0:
            chosen = outcome
            u -= probability
            if u < 0.0:
                break
    return chosen
