"""Who answers policy requests."""

import torch

from asynccfr.config import InferenceSettings
from asynccfr.games.base import Game
from asynccfr.inference.base import Inferer, Statistics
from asynccfr.inference.batching import BatchingInferer
from asynccfr.inference.cache import CachingInferer
from asynccfr.inference.engines import EagerEngine, resolve_precision
from asynccfr.inference.local import LocalInferer

__all__ = ["BatchingInferer", "CachingInferer", "Inferer", "LocalInferer", "Statistics"]


def new_inferer(
    settings: InferenceSettings, game: Game, device: torch.device, hidden_size: int
) -> Inferer:
    """The inferer that `settings` describe, on `device`; call it inside a running event loop."""
    precision = resolve_precision(settings.precision, device, hidden_size)
    engine = EagerEngine(device, precision)
    inferer: Inferer
    if settings.backend == "local":
        inferer = LocalInferer(
            engine,
            encoding_size=game.encoding_size,
            num_actions=game.num_actions,
            threads=settings.threads,
        )
    else:
        inferer = BatchingInferer(
            engine,
            encoding_size=game.encoding_size,
            num_actions=game.num_actions,
            max_batch=settings.max_batch,
            max_wait_us=settings.max_wait_us,
            threads=settings.threads,
        )
    if settings.cache == "off":
        return inferer
    return CachingInferer(inferer, mode=settings.cache, capacity=settings.cache_entries)
