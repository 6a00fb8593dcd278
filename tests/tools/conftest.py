"""Shared by the tests of the tools."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 90.0

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_tool() -> Run:
    """Runs a script in `tools/` as its user does, from the repository's root."""

    def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", f"tools/{script}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def refusal(run_tool: Run) -> Callable[..., str]:
    """The one line by which a tool refuses its input."""

    def run(script: str, *arguments: str) -> str:
        result = run_tool(script, *arguments)
        assert result.returncode == 2, result.stderr
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return run
