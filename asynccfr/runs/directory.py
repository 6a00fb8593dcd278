"""A run's directory on disk."""

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asynccfr.config import Config, load_config
from asynccfr.errors import RunDirectoryError

if TYPE_CHECKING:
    from asynccfr.policy import AveragePolicy

_LONGEST_NAME = 50
"""Characters; even at four bytes each, the directory's name stays below the usual 255 bytes."""


class RunDirectory:
    """A folder that holds one run.

        config.yaml      every setting as resolved
        metrics.jsonl    one JSON object for each iteration
        policy.pt        the latest average policy

    `RunDirectory.create` starts one; `RunDirectory(path)` reads one that is there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.policy_file = self.path / "policy.pt"

    @classmethod
    def create(cls, config: Config, path: str | Path) -> "RunDirectory":
        """Makes `path` where it is missing, and writes config.yaml into it.

        Raises:
            RunDirectoryError: where `path` holds something already or cannot be written; nothing
                is left behind then.
        """
        directory = cls(path)
        folder = directory.path
        made: list[Path] = []
        try:
            made = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RunDirectoryError(
                    f"the run directory {str(folder)!r} is not empty; "
                    "give --run-dir a new or an empty one"
                )
            directory._write_config(config)
        except (OSError, ValueError) as error:
            for each in made:
                with contextlib.suppress(OSError):
                    each.rmdir()
            raise RunDirectoryError(
                f"the run directory {str(folder)!r} cannot be written: {_reason(error)}; "
                "give --run-dir a place where you may write"
            ) from None
        return directory

    @property
    def config(self) -> Config:
        """The settings of the run.

        Raises:
            InputError: where config.yaml is missing or no longer valid.
        """
        return load_config(self.config_file)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds one whole line to metrics.jsonl; NaN and infinity, which JSON lacks, become null.

        Raises:
            RunDirectoryError: where it cannot be written.
        """
        line = json.dumps(_finite(metrics), allow_nan=False, ensure_ascii=False) + "\n"
        try:
            # One write of one whole line: a run that is killed leaves no half-written ones.
            with self.metrics_file.open("ab") as file:
                file.write(line.encode())
        except OSError as error:
            raise self._cannot("written", self.metrics_file, error) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every iteration's metrics, in order; empty before the first iteration's end.

        Raises:
            RunDirectoryError: where metrics.jsonl cannot be read.
        """
        if not self.metrics_file.exists():
            return []
        try:
            lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines]
        except (OSError, ValueError) as error:
            raise self._cannot("read", self.metrics_file, error) from error

    def save_policy(self, policy: "AveragePolicy") -> None:
        """Writes policy.pt whole or not at all: a previous one stays until the new one is there.

        Raises:
            RunDirectoryError: where it cannot be written.
        """
        aside = self.policy_file.with_suffix(".tmp")
        try:
            policy.save(aside)
            aside.replace(self.policy_file)
        except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError on a full disk.
            with contextlib.suppress(OSError):
                aside.unlink()
            raise self._cannot("written", self.policy_file, error) from error

    def _write_config(self, config: Config) -> None:
        try:
            file = self.config_file.open("x", encoding="utf-8")
        except FileExistsError:  # Two runs chose one folder at the same moment.
            raise RunDirectoryError(
                f"another run has just taken the run directory {str(self.path)!r}; start again"
            ) from None
        try:
            with file:
                file.write(config.to_yaml())
        except OSError:
            with contextlib.suppress(OSError):
                self.config_file.unlink()
            raise

    def _cannot(self, what: str, file: Path, error: Exception) -> RunDirectoryError:
        return RunDirectoryError(f"{str(file)!r} cannot be {what}: {_reason(error)}")


def new_run_path(name: str, *, root: str | Path = "runs", now: datetime | None = None) -> Path:
    """A path for a new run, `runs/<YYYYmmdd-HHMMSS>-<name>`, that nothing occupies yet.

    Args:
        name: the run's name; what a file system might not take becomes `-`.
        root: the folder of all runs.
        now: the time, if not the present.
    """
    safe = re.sub(r"[^\w.-]+", "-", name)[:_LONGEST_NAME].strip("-.") or "run"
    first = Path(root) / f"{now or datetime.now():%Y%m%d-%H%M%S}-{safe}"
    path, number = first, 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
