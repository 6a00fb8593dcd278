"""The long look at a game: `asynccfr check-game`."""

import hashlib
import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from asynccfr.errors import GameError
from asynccfr.games.base import CHANCE, TERMINAL, Game
from asynccfr.games.checks import Node, checked_play, label, require_members, require_sizes
from asynccfr.games.openspiel import why_not_enumerable

_MOVES = 50_000
"""Bounds the time, and the memory for the information states seen."""

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class GameExamination:
    """What random play shows of a game.

    Attributes:
        name: the game's name.
        players: how many, chance not counted.
        actions: A, the length of a policy.
        encoding_size: F, the length of an encoding.
        min_utility: the smallest return that the game promises.
        max_utility: the largest return that the game promises.
        games: how many games were played to their end.
        mean_moves: moves in a game, chance's included.
        max_moves: moves in the longest game.
        information_states: distinct (player, information state) pairs met.
        uniform_chance: the share of chance nodes whose outcomes are equally likely; None where
            chance never moved.
        converted: whether simultaneous moves were made one after another.
        notes: what is worth knowing before training.
        problems: what must be mended before training means anything; each one sentence.
    """

    name: str
    players: int
    actions: int
    encoding_size: int
    min_utility: float
    max_utility: float
    games: int
    mean_moves: float
    max_moves: int
    information_states: int
    uniform_chance: float | None
    converted: bool
    notes: list[str]
    problems: list[str]


def examine(game: Game, games: int = 200, seed: int = 0) -> GameExamination:
    """Plays random games, checks every node, and compares encodings with information states.

    Encodings and information-state strings must stand one to one, and legal actions must be a
    function of the information state: where a network sees one input for two situations, it can
    only learn a mixture of both. Random play can show a fault, never that there is none.

    Args:
        game: what to examine.
        games: how many games to play; fewer where they are very long, which is noted.
        seed: of the random play.

    Raises:
        GameError: where members are missing or sizes impossible, so that no game can begin.
    """
    require_members(game, label(game))
    require_sizes(game)
    record = _Record()
    generator = random.Random(seed)
    faults: list[str] = []
    try:
        while record.begun < games and record.nodes < _MOVES:
            record.begin()
            for node in checked_play(game, generator):
                record.add(node)
                if record.nodes >= _MOVES:
                    break
    except GameError as error:
        faults.append(str(error))
    lengths = record.lengths
    return GameExamination(
        name=game.name,
        players=game.num_players,
        actions=game.num_actions,
        encoding_size=game.encoding_size,
        min_utility=float(game.min_utility),
        max_utility=float(game.max_utility),
        games=record.ended,
        mean_moves=sum(lengths) / len(lengths) if lengths else 0.0,
        max_moves=max(lengths, default=0),
        information_states=len(record.legal_actions),
        uniform_chance=record.uniform / record.chance if record.chance else None,
        converted=bool(getattr(game, "was_simultaneous", False)),
        notes=_notes(game, games, record),
        problems=faults + _problems(record),
    )


class _Function(dict[Hashable, Hashable]):
    """What each key was first seen with, and the keys that were later seen with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[Hashable, tuple[Hashable, Hashable]] = {}

    def see(self, key: Hashable, value: Hashable) -> None:
        first = self.setdefault(key, value)
        if first != value:
            self.broken.setdefault(key, (first, value))


class _Record:
    """What random play met. An information state is (player, string), or (player, encoding)
    where the game has no strings."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.nodes = 0
        self.chance = 0
        self.uniform = 0
        self.lengths: list[int] = []
        self.totals: list[float] = []
        self.strings = _Function()  # Encoding -> string.
        self.encodings = _Function()  # Information state -> encoding.
        self.legal_actions = _Function()  # Information state -> legal actions.
        self.memories = _Function()  # Information state -> the mover's last one, and its action.
        self._last: dict[int, Hashable] = {}

    def begin(self) -> None:
        self.begun += 1
        self.lengths.append(0)
        self._last = {}

    def add(self, node: Node) -> None:
        self.nodes += 1
        if node.player == TERMINAL:
            self.ended += 1
            self.totals.append(sum(node.returns))
            return
        self.lengths[-1] += 1
        if node.player == CHANCE:
            self.chance += 1
            probabilities = [probability for _, probability in node.outcomes]
            self.uniform += max(probabilities) - min(probabilities) <= _TOLERANCE
            return
        # Encodings can hold thousands of numbers; a digest of one tells it from the others.
        encoding = hashlib.blake2b(node.encoding, digest_size=16).digest()
        state = (node.player, node.information_state or encoding)
        if node.information_state:
            self.strings.see((node.player, encoding), node.information_state)
            self.encodings.see(state, encoding)
        self.legal_actions.see(state, tuple(action for action, _ in node.outcomes))
        self.memories.see(state, self._last.get(node.player))
        self._last[node.player] = (state, node.action)


def _problems(record: _Record) -> list[str]:
    problems = []
    for (player, _), (first, second) in _examples(record.strings):
        problems.append(
            "encode() gives one encoding to different information states of player "
            f"{player}, such as {_apart(first, second)}, and {len(record.strings.broken)} "
            "encodings are so shared; encode all that the strings tell apart, in a Game of your "
            "own around this one if it is not yours"
        )
    for (player, string), _ in _examples(record.encodings):
        problems.append(
            f"encode() gives different encodings to one information state of player {player}, "
            f"such as {_shown(string)}, and {len(record.encodings.broken)} information states are "
            "so split; encode only what the player knows, or tell it in the string too"
        )
    for (player, string), (first, second) in _examples(record.legal_actions):
        problems.append(
            f"one information state of player {player}, {_shown(string)}, has the legal actions "
            f"{list(first)} in one history and {list(second)} in another; a player must always "
            "know what it may do"
        )
    return problems


def _notes(game: Game, games: int, record: _Record) -> list[str]:
    notes = []
    if getattr(game, "was_simultaneous", False):
        notes.append("simultaneous moves are made one after another, hidden from the others")
    if game.num_players == 1:
        notes.append("one player: a decision problem, where the best response is all there is")
    if game.num_players > 2:
        notes.append(f"{game.num_players} players: a Nash equilibrium is not promised")
    if record.totals and max(record.totals) - min(record.totals) > _TOLERANCE:
        notes.append("general-sum: a Nash equilibrium is not promised")
    for (player, string), _ in _examples(record.memories):
        notes.append(
            f"imperfect recall: player {player} forgets how it came to {_shown(string)}; without "
            "perfect recall Deep CFR promises nothing"
        )
    if reason := why_not_enumerable(game):
        notes.append(f"no NashConv: {reason}")
    if record.ended < games:
        notes.append(
            f"{record.ended} of {games} games were played to their end, {record.nodes} nodes in all"
        )
    return notes


def _examples(function: _Function) -> list[Any]:
    """The first broken key with its two values, or none."""
    return list(function.broken.items())[:1]


def _shown(state: str | bytes) -> str:
    if isinstance(state, bytes):
        return "known by its encoding alone"
    return repr(state if len(state) <= 80 else f"{state[:77]}...")


def _apart(first: str, second: str) -> str:
    """Both strings from shortly before they differ."""
    pairs = enumerate(zip(first, second, strict=False))
    apart = next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
    start = max(0, apart - 30)
    lead = "..." if start else ""
    return " and ".join(_shown(lead + string[start:]) for string in (first, second))
