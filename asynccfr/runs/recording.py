"""Training with everything it reaches written to a run directory."""

import asyncio
from pathlib import Path

from asynccfr import event_loop
from asynccfr.config import Config
from asynccfr.errors import InputError
from asynccfr.runs.directory import RunDirectory
from asynccfr.trainer import Observer, Trainer, TrainingResult


async def record(trainer: Trainer, directory: RunDirectory) -> TrainingResult:
    """Runs `trainer` to its end, and writes each iteration and each new policy as it comes.

    Raises:
        RunDirectoryError: where `directory` can no longer be written.
    """
    async for report in trainer:
        directory.append_metrics(report.metrics)
        policy = trainer.policy
        if policy is not None and policy.iteration == report.iteration:
            directory.save_policy(policy)
    return trainer.result()


def train(
    config: Config, run_dir: str | Path | None = None, *, observer: Observer | None = None
) -> TrainingResult:
    """Trains as `config` says, from plain code.

    Args:
        config: every setting, as `load_config` gives it.
        run_dir: a new or empty folder to keep the run in; None writes nothing.
        observer: is told about progress.

    Raises:
        InputError: for anything that can be known to fail before the first iteration; and under
            a running event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InputError(
            "train() starts an event loop of its own, and here one is running already; "
            "use `await Trainer(config).run()`"
        )
    trainer = Trainer(config, observer=observer)
    if run_dir is None:
        return event_loop.run(trainer.run())
    return event_loop.run(record(trainer, RunDirectory.create(config, run_dir)))
