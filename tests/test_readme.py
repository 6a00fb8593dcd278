"""What the README shows is run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.M)


def commands():
    lines = [line.split("  #")[0] for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m asynccfr")]


@pytest.mark.parametrize("code", blocks("python"))
def test_snippets_are_short_and_run(code, tmp_path):
    assert len(code.splitlines()) < 25
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_both_uses_as_a_library_are_shown():
    code = "\n".join(blocks("python"))
    for name in ("asynccfr.train(", "async for report in trainer", "OpenSpiel Policy"):
        assert name in code


@pytest.mark.parametrize(
    "command", [c for c in commands() if "--settings smoke" in c or "check-game" in c]
)
def test_quick_commands_run(command, tmp_path):
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_test_command_is_what_ci_runs():
    ci = (README.parent / ".ci" / "run").read_text("utf-8")
    command = "python -m pytest -q"
    assert any(block.rstrip().endswith(command) for block in blocks("sh"))
    assert command in ci
