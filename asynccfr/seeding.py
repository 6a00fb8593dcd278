"""One run seed, many independent generators."""

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a derived generator is for; the numbers are part of a run's reproducibility."""

    ADVANTAGE_WEIGHTS = 1
    ADVANTAGE_BATCHES = 2
    ADVANTAGE_RESERVOIR = 3
    STRATEGY_WEIGHTS = 4
    STRATEGY_BATCHES = 5
    STRATEGY_RESERVOIR = 6


def numpy_generator(seed: int, purpose: Purpose, *path: int) -> np.random.Generator:
    """A generator that depends on the run's seed, the purpose and `path`, and on nothing else."""
    return np.random.default_rng(_sequence(seed, purpose, path))


def torch_generator(seed: int, purpose: Purpose, *path: int) -> torch.Generator:
    """As `numpy_generator`, for torch on the CPU."""
    state = _sequence(seed, purpose, path).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def _sequence(seed: int, purpose: Purpose, path: tuple[int, ...]) -> np.random.SeedSequence:
    # A spawn key, unlike a longer seed, tells a path from the same path with zeros behind it.
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))
