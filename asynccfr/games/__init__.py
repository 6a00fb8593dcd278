"""What is played."""

from asynccfr.games.base import CHANCE, TERMINAL, Game, State
from asynccfr.games.registry import load_game

__all__ = ["CHANCE", "TERMINAL", "Game", "State", "load_game"]
