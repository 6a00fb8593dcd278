"""What the benchmarks share: taking turns, medians, the machine, a table and a JSON file."""

import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from asynccfr import Game
from asynccfr.config import NetworkSettings
from asynccfr.errors import AsyncCFRError, InputError
from asynccfr.networks import ActionNetwork, new_network

T = TypeVar("T")

SettingsOption = Annotated[
    str | None, typer.Option("--settings", help="As for `train`.", metavar="FILE|NAME")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one setting; may be repeated.", metavar="KEY=VALUE"),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write the figures here too.", metavar="FILE")
]


def run_command(command: Callable[..., None]) -> None:
    """Runs `command` as a Typer program: what the library refuses is one sentence on stderr.

    Exit codes as in `python -m asynccfr`: 2 for bad input, 1 where the work failed.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    try:
        app()
    except AsyncCFRError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, InputError) else 1) from None


def require_writable(file: Path | None) -> None:
    """Raises InputError, before the measuring, where `file` could not be written after it."""
    if file is None:
        return
    if file.is_dir():
        raise InputError(f"cannot write {str(file)!r}: it is a folder; name a file")
    if not file.parent.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"cannot write {str(file)!r}; check its folder and your rights there")


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, digits: int = 3) -> str:
        """`median (min-max)` with thousands separated."""
        return f"{self.median:,.{digits}f} ({self.minimum:,.{digits}f}-{self.maximum:,.{digits}f})"


def interleave(
    variants: Mapping[str, Callable[[], T]], repeats: int, warmup: int = 1
) -> dict[str, list[T]]:
    """Runs every variant in turn, `warmup` + `repeats` rounds, and keeps the last `repeats`.

    Taking turns spreads whatever else the machine does over all variants alike.
    """
    results: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(warmup + repeats):
        for name, run in variants.items():
            print(f"round {number + 1}/{warmup + repeats}: {name}", file=sys.stderr, flush=True)
            outcome = run()
            if number >= warmup:
                results[name].append(outcome)
    return results


def random_network(
    game: Game, settings: NetworkSettings, generator: torch.Generator
) -> ActionNetwork:
    """A network whose policies are not uniform: a fresh last layer is zero, this one's is not."""
    network = new_network(game.encoding_size, game.num_actions, settings, generator)
    nn.init.kaiming_normal_(network.layers[-1].weight, generator=generator)
    return network


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Prints rows that share their keys, on stdout; a cell may be a Spread."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=max(100, Console().width)).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, Spread):
        return value.show(4 if value.median < 1 else 2 if value.median < 100 else 0)
    return "" if value is None else str(value)


def write_json(
    file: Path | None, rows: Sequence[Mapping[str, object]], ratios: Mapping[str, float]
) -> None:
    """Writes `{"machine", "command", "rows", "ratios"}`; does nothing where `file` is None.

    A Spread in a row becomes an object with its three numbers.
    """
    if file is None:
        return
    record = {
        "machine": machine(),
        "command": shlex.join(["python", *sys.argv]),
        "rows": list(rows),
        "ratios": dict(ratios),
    }
    file.write_text(
        json.dumps(record, indent=2, default=dataclasses.asdict) + "\n", encoding="utf-8"
    )
