"""Shared by every test."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch


@pytest.fixture
def global_generators() -> Callable[[], tuple[object, ...]]:
    """What the process-wide random number generators would give next, as comparable values."""

    def states() -> tuple[object, ...]:
        numpy_state = np.random.get_state(legacy=False)["state"]
        return (
            random.getstate(),
            numpy_state["key"].tobytes(),
            numpy_state["pos"],
            torch.get_rng_state().numpy().tobytes(),
        )

    return states


@pytest.fixture(autouse=True)
def _same_torch_threads() -> Iterator[None]:
    """No test changes how many torch threads the next one has."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
