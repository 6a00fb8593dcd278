import json
from pathlib import Path

import pytest

from asynccfr import InputError, IterationReport, Trainer, load_config, load_policy, train
from asynccfr.config import Config
from asynccfr.errors import RunDirectoryError
from asynccfr.runs.directory import RunDirectory
from asynccfr.runs.recording import record

TIMING_KEYS = {
    "iteration_seconds",
    "traversal_seconds",
    "advantage_train_seconds",
    "strategy_train_seconds",
    "memory_add_seconds",
    "batch_tensor_seconds",
    "evaluation_seconds",
    "policy_network_seconds",
    "checkpoint_seconds",
}
COUNT_KEYS = {"iteration", "traversals", "decision_nodes", "decision_nodes_per_second"}
INFERENCE_KEYS = {"requests", "batches", "batch_sizes", "reasons", "wait_us", "busy_share"}


class Watcher:
    """Looks at what is on disk whenever an iteration is reported."""

    def __init__(self, folder: Path) -> None:
        self.directory = RunDirectory(folder)
        self.seen: list[tuple[int, bool]] = []

    def on_traversal(self, iteration: int, player: int, done: int, total: int) -> None: ...

    def on_phase(self, iteration: int, phase: str) -> None:
        if phase == "traverse":
            count = len(self.directory.read_metrics())
            if (count, self.directory.policy_file.exists()) not in self.seen:
                self.seen.append((count, self.directory.policy_file.exists()))

    def on_report(self, report: IterationReport) -> None: ...


@pytest.fixture
def config() -> Config:
    # `smoke` has three iterations and evaluates after the second and the last.
    return load_config("smoke")


def test_everything_a_run_reaches_is_on_disk_as_soon_as_it_is_reached(
    tmp_path: Path, config: Config
) -> None:
    watcher = Watcher(tmp_path)
    train(config, tmp_path, observer=watcher)
    assert watcher.seen == [(0, False), (1, False), (2, True)]


def test_the_directory_holds_what_the_result_holds(tmp_path: Path, config: Config) -> None:
    result = train(config, tmp_path)
    directory = RunDirectory(tmp_path)
    assert directory.config == config
    rows = directory.read_metrics()
    assert rows == json.loads(json.dumps([report.metrics for report in result.reports]))
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert load_policy(tmp_path).iteration == 3
    assert result.evaluation is not None
    assert rows[-1]["nash_conv"] == result.evaluation.nash_conv
    assert rows[-1]["exploitability"] == result.evaluation.nash_conv / 2


def test_every_line_holds_the_documented_keys(tmp_path: Path, config: Config) -> None:
    train(config, tmp_path)
    for row in RunDirectory(tmp_path).read_metrics():
        assert row.keys() >= TIMING_KEYS | COUNT_KEYS | {"inference", "advantage_loss"}
        assert row["inference"].keys() >= INFERENCE_KEYS
        assert all(row[key] >= 0.0 for key in TIMING_KEYS)
        assert row["traversals"] == 2 * config.traversal.traversals_per_player
        evaluated = row["iteration"] in (2, 3)
        assert ("nash_conv" in row) == ("exploitability" in row) == evaluated
        assert (row["strategy_loss"] is not None) == evaluated


def test_a_directory_that_is_taken_is_refused_before_anything_runs(
    tmp_path: Path, config: Config
) -> None:
    (tmp_path / "here").write_text("first")
    with pytest.raises(InputError, match="not empty"):
        train(config, tmp_path)


async def test_a_disk_that_fills_up_ends_the_run_with_its_name(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory.create(config, tmp_path)
    directory.metrics_file.mkdir()
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl"):
        await record(Trainer(config), directory)
