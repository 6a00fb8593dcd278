import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

SCRIPT = "bench_inference_backend.py"

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_prints_a_table_and_writes_the_ratios(run_tool: Run, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = run_tool(
        SCRIPT,
        "--settings",
        "smoke",
        *("--set", "inference.cache=off"),
        *("--set", "run.max_minutes=0.0001"),  # Has no say here: all iterations are run.
        *("--iterations", "2", "--warmup", "1"),
        *("--json", str(file)),
    )
    assert result.returncode == 0, result.stderr
    for words in ("kuhn_poker", "float32", "torch threads 1", "policy network", "mean batch"):
        assert words in result.stdout
    turns = result.stderr.splitlines()
    assert turns == [f"iteration {t}/3: {b}" for t in (1, 2, 3) for b in ("local", "async")]

    record = json.loads(file.read_text(encoding="utf-8"))
    assert set(record) == {"machine", "command", "rows", "ratios"}
    ratios = record["ratios"]
    assert set(ratios) == {"traversal", "iteration", "advantage_fit", "memory_add"}
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())

    rows = {row["quantity"]: row for row in record["rows"]}
    traversal = rows["traversal"]
    faster = traversal["local"]["median"] / traversal["async"]["median"]
    assert math.isclose(ratios["traversal"], faster)
    for row in rows.values():
        for backend in ("local", "async"):
            spread = row[backend]
            assert 0 < spread["minimum"] <= spread["median"] <= spread["maximum"]
    assert rows["mean batch"]["local"]["maximum"] == 1.0
    assert rows["mean batch"]["async"]["minimum"] > 1.0
    # Networks that differ by rounding alone sample nearly the same trees from one seed.
    nodes = rows["decision nodes"]
    assert math.isclose(nodes["local"]["median"], nodes["async"]["median"], rel_tol=0.1)


def test_refuses_bad_input_in_one_line(refusal: Callable[..., str]) -> None:
    assert "did you mean 'smoke'?" in refusal(SCRIPT, "--settings", "smokey")
    assert "--iterations" in refusal(SCRIPT, "--set", "run.iterations=4")
