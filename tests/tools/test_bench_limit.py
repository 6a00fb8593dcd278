"""The limit benchmark, through its command line."""

import json

import pytest


def test_bounds_and_parts_are_measured_and_efficiency_is_their_ratio(run_tool, tmp_path):
    file = tmp_path / "limit.json"
    done = run_tool(
        "bench_limit.py",
        *("--games", "kuhn_poker", "--rounds", "1", "--traversals", "200"),
        *("--set", "network.hidden_size=16", "--json", str(file)),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(file.read_text("utf-8"))
    [row] = record["rows"]
    bounds = row["loop nodes/s"]["median"], row["forward rows/s"]["median"]
    reached = row["pipeline nodes/s"]["median"]
    assert record["ratios"]["efficiency/kuhn_poker"] == pytest.approx(reached / min(bounds))
    assert row["mean batch"] > 1
    assert row["whole us"] > 0


def test_an_unknown_game_is_one_sentence(refusal):
    assert "kuhn_poker" in refusal("bench_limit.py", "--games", "kuhn_pokr")
