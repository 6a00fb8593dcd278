import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from asynccfr import load_config

SCRIPT = "tune_inference.py"

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_writes_a_fragment_that_holds_what_the_table_says(run_tool: Run, tmp_path: Path) -> None:
    fragment, figures = tmp_path / "tuned.yaml", tmp_path / "figures.json"
    result = run_tool(
        SCRIPT,
        "--settings",
        "smoke",
        *("--minutes", "0.2"),
        # One in flight is so slow that more are found to be faster, in however little time.
        *("--set", "traversal.concurrency=1", "--set", "inference.cache=off"),
        *("--out", str(fragment), "--json", str(figures)),
    )
    assert result.returncode == 0, result.stderr
    config = load_config(fragment)
    tuned = {
        "traversal.concurrency": config.traversal.concurrency,
        "inference.max_batch": config.inference.max_batch,
        "inference.threads": config.inference.threads,
        "inference.max_wait_us": config.inference.max_wait_us,
    }
    changed = False
    for key, value in tuned.items():
        row = re.search(rf"│ {re.escape(key)} +│ +([\d,.]+) │ +([\d,.]+) │", result.stdout)
        assert row is not None, result.stdout
        assert float(row[2].replace(",", "")) == value
        assert f"--set {key}={value}" in result.stdout
        changed = changed or row[1] != row[2]

    # What is not tuned keeps its default: the fragment says nothing about it.
    assert config == load_config(None, tuned)

    record = json.loads(figures.read_text(encoding="utf-8"))
    assert set(record) == {"machine", "command", "rows", "ratios"}
    gain = record["ratios"]["decision_nodes_per_second"]
    assert math.isfinite(gain)
    assert gain >= 1.0
    assert (gain > 1.0) == changed


def test_says_when_the_time_is_too_short_for_a_trial(refusal: Callable[..., str]) -> None:
    # The traverser visits every action, so one traversal of this game outlasts any run.
    arguments = ("--settings", "smoke", "--set", "game.name=liars_dice(numdice=5)")
    assert "give more minutes" in refusal(SCRIPT, *arguments, "--minutes", "0.1")


def test_refuses_bad_input_in_one_line(refusal: Callable[..., str]) -> None:
    assert "did you mean 'smoke'?" in refusal(SCRIPT, "--settings", "smokey")
