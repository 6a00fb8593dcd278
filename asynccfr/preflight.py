"""What can be known to fail before the first iteration."""

import os
from pathlib import Path
from typing import Literal

import psutil
import torch

from asynccfr.config import Config
from asynccfr.errors import SettingsError
from asynccfr.games.base import Game
from asynccfr.inference.engines import resolve_precision
from asynccfr.memory import Reservoir

_HEADROOM_BYTES = 512 * 2**20
"""Left for networks, batches, traversals in flight and the interpreter."""


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


SHARED_FROM_WIDTH = 256
"""Below this width a training step's matrices are so small that sharing them out between threads
costs more than it saves."""


def fit_threads(config: Config) -> int:
    """Torch threads of a fit."""
    if config.training.threads is not None:
        return config.training.threads
    return available_cores() if config.network.hidden_size >= SHARED_FROM_WIDTH else 1


def resolve_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device to run on.

    Raises:
        SettingsError: where CUDA is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            "the setting 'run.device' is 'cuda', but PyTorch finds no CUDA device here; "
            "give --set run.device=cpu"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def memory_bytes(config: Config, game: Game) -> dict[str, int]:
    """Setting -> the bytes that what it sizes occupies, memories counted as full."""
    size, actions = game.encoding_size, game.num_actions
    width, layers = config.network.hidden_size, config.network.num_layers
    parameters = (size + 1) * width + (layers - 1) * (width + 1) * width + (width + 1) * actions
    # Each player's network and the inferer's copy of it, the strategy network, and in a fit the
    # new network with its gradient and Adam's two moments.
    networks = 2 * game.num_players + 1 + 4
    return {
        "network.hidden_size": 4 * networks * parameters,
        "advantage.memory_capacity": game.num_players
        * Reservoir.bytes_needed(config.advantage.memory_capacity, size, actions),
        "strategy.memory_capacity": Reservoir.bytes_needed(
            config.strategy.memory_capacity, size + game.num_players, actions
        ),
    }


def check_memory(config: Config, game: Game) -> None:
    """Raises SettingsError where networks and full memories would not fit into this machine."""
    needed = memory_bytes(config, game)
    total = sum(needed.values())
    available = available_memory_bytes()
    if total + _HEADROOM_BYTES > available:
        largest = max(needed, key=lambda key: needed[key])
        raise SettingsError(
            f"the networks and the memories, once full, would take {total / 2**30:,.1f} GiB, and "
            f"this machine has {available / 2**30:,.1f} GiB available; lower {largest!r}, which "
            f"takes {needed[largest] / 2**30:,.1f} GiB"
        )


def plan(config: Config, game: Game) -> str:
    """One line on what a run will use: the networks, the arithmetic, the memory when full."""
    device = resolve_device(config.run.device)
    network, inference = config.network, config.inference
    precision = resolve_precision(inference.precision, device, network.hidden_size)
    needed = sum(memory_bytes(config, game).values())
    return (
        f"{config.game.name}: {network.num_layers} x {network.hidden_size} networks on {device}, "
        f"{inference.backend} inference in {precision}, up to {needed / 2**20:,.0f} MiB "
        f"of {available_memory_bytes() / 2**20:,.0f} MiB available"
    )


def available_memory_bytes() -> int:
    """What this process may still allocate: the machine's free memory, or its container's."""
    available: int = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return min(available, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # No such control group, or "max": no limit.
        return available


def utility_scale(config: Config, game: Game) -> float:
    """What utilities are divided by before they become targets."""
    if config.game.utility_scale != "auto":
        return config.game.utility_scale
    return max(abs(game.min_utility), abs(game.max_utility)) or 1.0
