"""The comparison with OpenSpiel's Deep CFR, through its command line and on tiny sizes."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "bench_openspiel.py"

DEADLINE_SECONDS = 60.0

TINY = {
    "--games": "kuhn_poker",
    "--repeats": "1",
    "--seconds-per-round": "0.05",
    "--traversals-per-network": "100",
    "--rows": "2000",
    "--traversals": "20",
    "--steps": "3",
    "--batch-size": "32",
    "--nash-conv-seconds": "0.5",
    "--settings": "smoke",
}

# Runs the script named by its first argument as if dm-tree were not installed.
WITHOUT_DM_TREE = """
import importlib.util, pathlib, runpy, sys

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "tree" else find_spec(name, *rest)
del sys.argv[0]
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""

Figures = dict[str, Any]


def bench(*arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The finished command; `before` goes between the interpreter and the script."""
    return subprocess.run(
        [sys.executable, *before, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one run of all parts wrote `figures.json` and `curves.png`."""
    folder = tmp_path_factory.mktemp("bench")
    files = ("--json", folder / "figures.json", "--plot", folder / "curves.png")
    result = bench(*chain(*TINY.items()), *files)
    assert result.returncode == 0, result.stderr
    assert "traversal/kuhn_poker/float32/off" in result.stdout
    return folder


@pytest.fixture(scope="module")
def figures(folder: Path) -> Figures:
    """What that run wrote as JSON."""
    written: Figures = json.loads((folder / "figures.json").read_text())
    return written


def rows_of(figures: Figures, part: str) -> list[Figures]:
    return [row for row in figures["rows"] if row["part"] == part]


def test_the_ratios_have_the_promised_names(figures: Figures) -> None:
    assert set(figures) == {"machine", "command", "rows", "ratios"}
    assert set(figures["ratios"]) >= {
        "traversal/kuhn_poker/float32/off",
        "traversal/kuhn_poker/float32/auto",
        "traversal/kuhn_poker/bfloat16/off",
        "traversal/kuhn_poker/bfloat16/auto",
        "fit_step",
        "iteration",
        "nash_conv_300s",
    }
    assert all(ratio > 0 for ratio in figures["ratios"].values())


def test_every_row_says_who_with_how_many_threads_and_how_far_it_spread(figures: Figures) -> None:
    for row in figures["rows"]:
        assert row["who"] in {"OpenSpiel", "asynccfr"}
        assert row["torch_threads"] >= 1
        assert row["precision"] in {"float32", "bfloat16"}
        assert row["min"] <= row["median"] <= row["max"]


@pytest.mark.parametrize("part", ["traversal", "fit", "iteration"])
def test_the_peer_is_tried_with_one_and_two_threads(figures: Figures, part: str) -> None:
    peer = [row for row in rows_of(figures, part) if row["who"] == "OpenSpiel"]
    assert {row["torch_threads"] for row in peer} == {1, 2}


def test_a_traversal_ratio_takes_the_better_of_the_peers_threads(figures: Figures) -> None:
    calls = [row for row in rows_of(figures, "traversal") if row["measure"] == "policy calls/s"]
    best = max(row["median"] for row in calls if row["who"] == "OpenSpiel")
    ours = [row for row in calls if row["who"] == "asynccfr"]
    assert len(ours) == 4
    for row in ours:
        key = f"traversal/kuhn_poker/{row['precision']}/{row['cache']}"
        assert figures["ratios"][key] == pytest.approx(row["median"] / best)


def test_an_iteration_ratio_takes_the_better_of_the_peers_threads(figures: Figures) -> None:
    whole = [row for row in rows_of(figures, "iteration") if row["measure"] == "s/iteration"]
    best = min(row["median"] for row in whole if row["who"] == "OpenSpiel")
    (ours,) = [row["median"] for row in whole if row["who"] == "asynccfr"]
    assert figures["ratios"]["iteration"] == pytest.approx(best / ours)


def test_both_curves_follow_the_training_time(figures: Figures) -> None:
    last = {}
    for who in ("asynccfr", "OpenSpiel"):
        curve = [row for row in rows_of(figures, "nash_conv") if row["who"] == who]
        seconds = [row["seconds"] for row in curve]
        assert curve
        assert seconds == sorted(seconds)
        last[who] = curve[-1]["median"]
    ratio = last["OpenSpiel"] / last["asynccfr"]
    assert figures["ratios"]["nash_conv_300s"] == pytest.approx(ratio)


def test_the_plot_is_a_picture(folder: Path) -> None:
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--parts", "traversl"], "'traversl'"),
        (["--parts", "traversal", "--games", "kuhn_pokr"], "kuhn_poker"),
        (["--parts", "fit", "--plot", "curves.png"], "nash_conv"),
        (["--json", "no/such/folder/figures.json"], "figures.json"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: list[str], word: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr


def test_a_missing_package_is_named_with_its_extra() -> None:
    result = bench("--parts", "fit", before=("-c", WITHOUT_DM_TREE))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "dm-tree" in result.stderr
    assert "pip install -e '.[bench]'" in result.stderr
