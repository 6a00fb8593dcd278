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
def _one_torch_thread() -> Iterator[None]:
    """The tests' tensors are so small that a second thread only costs; and none leaves its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
