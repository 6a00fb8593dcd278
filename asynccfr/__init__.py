"""Deep CFR on one box: thousands of traversals, one batching inferer, one process."""

import importlib
from typing import TYPE_CHECKING

from asynccfr.config import Config, load_config
from asynccfr.errors import AsyncCFRError, InputError

if TYPE_CHECKING:
    from asynccfr.games import Game, State, load_game
    from asynccfr.metrics import IterationReport
    from asynccfr.policy import AveragePolicy, load_policy
    from asynccfr.runs.recording import train
    from asynccfr.trainer import Trainer, TrainingResult

__version__ = "0.1.0"

__all__ = [
    "AsyncCFRError",
    "AveragePolicy",
    "Config",
    "Game",
    "InputError",
    "IterationReport",
    "State",
    "Trainer",
    "TrainingResult",
    "__version__",
    "load_config",
    "load_game",
    "load_policy",
    "train",
]

# Imported when first asked for: PyTorch and OpenSpiel take a second or more to load, and
# `asynccfr --help` needs neither.
_HOMES = {
    "AveragePolicy": "asynccfr.policy",
    "Game": "asynccfr.games",
    "IterationReport": "asynccfr.metrics",
    "State": "asynccfr.games",
    "Trainer": "asynccfr.trainer",
    "TrainingResult": "asynccfr.trainer",
    "load_game": "asynccfr.games",
    "load_policy": "asynccfr.policy",
    "train": "asynccfr.runs.recording",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'asynccfr' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
