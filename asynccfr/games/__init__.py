"""What is played."""

from asynccfr.games.base import CHANCE, TERMINAL, Game, State
from asynccfr.games.catalogue import GameRow, list_games
from asynccfr.games.checks import require_playable
from asynccfr.games.examination import GameExamination, examine
from asynccfr.games.registry import load_game

__all__ = [
    "CHANCE",
    "TERMINAL",
    "Game",
    "GameExamination",
    "GameRow",
    "State",
    "examine",
    "list_games",
    "load_game",
    "require_playable",
]
