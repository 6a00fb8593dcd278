import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from asynccfr import __version__, preflight
from asynccfr.cli import app
from asynccfr.config import settings_yaml
from asynccfr.errors import FittingError
from asynccfr.runs.directory import RunDirectory

DEADLINE_SECONDS = 60.0
"""After this a process that hangs is ended, and its test fails."""

# What the real command is, whatever started the tests: a background job passes on a SIGINT that
# is ignored.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from asynccfr.cli import main
main()
"""

# The same, telling on stderr what the run is in the midst of.
COMMAND_WITH_PHASES = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from asynccfr.cli import main
from asynccfr.runs.progress import PlainLines

def tell(what):
    print("phase", what, file=sys.stderr, flush=True)

PlainLines.on_phase = lambda self, t, phase: None if phase == "traverse" else tell(phase)
PlainLines.on_traversal = lambda self, t, p, done, total: tell("traverse") if done == 100 else None
main()
"""

BLOCKING_GAME = """
import sys, time
from asynccfr.games.openspiel import OpenSpielGame

class Stuck(OpenSpielGame):
    def __init__(self):
        super().__init__("kuhn_poker", name="stuck:Stuck")
        self.stuck = False

    def new_initial_state(self):
        # Stuck as soon as training begins: the checks before it run outside any task.
        import asyncio
        try:
            asyncio.current_task()
        except RuntimeError:
            return super().new_initial_state()
        print("phase stuck", file=sys.stderr, flush=True)
        while True:
            time.sleep(3600)
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Calls commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def refusal(runner: CliRunner, *arguments: str) -> str:
    """The one line that a command refuses its input by, nothing being left behind."""
    before = sorted(Path().rglob("*"))
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    assert "Traceback" not in result.stderr
    assert sorted(Path().rglob("*")) == before
    return result.stderr


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the real command in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "asynccfr", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@contextmanager
def started(folder: Path, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The real command, running in `folder`; killed if it outlives its deadline."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(DEADLINE_SECONDS, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            process.kill()
            watchdog.cancel()


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Reads stderr up to `line`."""
    assert process.stderr is not None
    for text in process.stderr:
        if text == f"{line}\n":
            return
    pytest.fail(f"the process ended without saying {line!r}")


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("--set traversal.concurency=3", "did you mean 'traversal.concurrency'?"),
        ("--set run.iterations=many", "'run.iterations' is 'many'"),
        ("--set run.iterations", "section.key=value"),
        ("--set run.iterations=0", "'run.iterations' is 0"),
        ("--set run.iterations=-3", "'run.iterations' is -3"),
        ("--set traversal.traversals_per_player=0", "'traversal.traversals_per_player'"),
        ("--set traversal.concurrency=0", "'traversal.concurrency'"),
        ("--set inference.max_batch=0", "'inference.max_batch'"),
        ("--set inference.max_wait_us=0", "'inference.max_wait_us'"),
        ("--set advantage.batch_size=-1", "'advantage.batch_size'"),
        ("--set strategy.memory_capacity=0", "'strategy.memory_capacity'"),
        ("--backend remote", "'local' or 'async'"),
        ("--settings nowhere.yaml", "'nowhere.yaml' does not exist"),
        ("--settings broken.yaml", "'broken.yaml' is not valid YAML, line 3, column 8"),
        ("--settings list.yaml", "sections"),
        ("--settings smokey", "did you mean 'smoke'?"),
        ("--set game.name=leduc_pokr", "did you mean 'leduc_poker'?"),
        ("--set game.name=mfg_garnet", "mean-field"),
        ("--set game.name=chess", "game.encoding=observation"),
        ("--set game.name=nowhere:Game", "nowhere"),
        ("--set run.device=cuda", "--set run.device=cpu"),
        ("--set network.hidden_size=1000000000", "lower 'network.hidden_size'"),
        ("--set advantage.memory_capacity=900000000", "lower 'advantage.memory_capacity'"),
        ("--run-dir file", "'file'"),
        ("--run-dir file/run", "'file/run'"),
        ("--run-dir taken", "'taken' is not empty"),
        # Root may write anywhere but here.
        *([("--run-dir /proc/run", "'/proc/run'")] if Path("/proc/self").exists() else []),
    ],
)
def test_training_refuses_bad_input_in_one_line_and_leaves_nothing(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, arguments: str, fragment: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 8 * 2**30)
    Path("broken.yaml").write_text("run:\n  seed: [1\nnetwork: 3\n")
    Path("list.yaml").write_text("- 1\n")
    Path("file").touch()
    Path("taken").mkdir()
    Path("taken/policy.pt").touch()
    assert fragment in refusal(runner, "train", "--settings", "smoke", *arguments.split())


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("evaluate nowhere", "no policy at 'nowhere"),
        ("evaluate damaged.pt", "'damaged.pt' is damaged"),
        ("check-game leduc_pokr", "did you mean 'leduc_poker'?"),
        ("check-game mfg_garnet", "mean-field"),
        ("check-game kuhn_poker --encoding all", "'game.encoding' is 'all'"),
    ],
)
def test_the_other_commands_refuse_bad_input_in_one_line(
    runner: CliRunner, arguments: str, fragment: str
) -> None:
    Path("damaged.pt").write_bytes(b"no policy")
    assert fragment in refusal(runner, *arguments.split())


@pytest.mark.parametrize(
    "arguments", ["train --nonsense", "nonsense", "evaluate", "check-game kuhn_poker --games 0"]
)
def test_a_command_line_that_cannot_be_parsed_is_bad_input_too(
    runner: CliRunner, arguments: str
) -> None:
    result = runner.invoke(app, arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_real_process_refuses_bad_input_alike(tmp_path: Path) -> None:
    done = call(tmp_path, "train", "--set", "game.name=kuhn")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown game 'kuhn'")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_says_so_in_one_line(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise FittingError("the loss became nan\nat step 3")

    monkeypatch.setattr("asynccfr.trainer.fit", diverge)
    result = runner.invoke(app, ["train", "--settings", "smoke"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[1:] == ["error: the loss became nan at step 3"]


# Good input.


@pytest.fixture(scope="module", params=["local", "async"])
def smoke(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder in which `smoke` was trained by the real command, and what that said."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, call(folder, "train", "--settings", "smoke", "--backend", request.param)


def test_smoke_trains_and_puts_the_result_on_stdout_and_progress_on_stderr(
    smoke: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = smoke
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "runs").iterdir()
    assert path.name.endswith("-smoke")
    run = path.relative_to(folder)
    assert done.stdout.endswith(f"next: python -m asynccfr evaluate {run}\n")
    assert "NashConv" in done.stdout
    assert "exploitability" in done.stdout
    plan, *progress = done.stderr.splitlines()
    assert plan.startswith("kuhn_poker: 2 x 16 networks on cpu, ")
    assert plan.endswith(" MiB available")
    assert [line.split()[:2] for line in progress] == [
        ["iteration", f"{number}/3"] for number in (1, 2, 3)
    ]
    assert "\x1b" not in done.stdout + done.stderr


def test_evaluate_agrees_with_what_training_measured(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], runner: CliRunner
) -> None:
    (path,) = (smoke[0] / "runs").iterdir()
    result = runner.invoke(app, ["evaluate", str(path), "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    last = RunDirectory(path).read_metrics()[-1]
    assert record["nash_conv"] == pytest.approx(last["nash_conv"], abs=1e-9)
    assert record["exploitability"] == record["nash_conv"] / 2
    assert (record["game"], record["iteration"]) == ("kuhn_poker", 3)
    text = runner.invoke(app, ["evaluate", str(path / "policy.pt")]).stdout
    assert f"NashConv          {record['nash_conv']:.6f}" in text
    assert f"exploitability    {record['exploitability']:.6f}" in text


def test_a_policy_of_a_game_past_the_gate_is_not_evaluated(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], runner: CliRunner
) -> None:
    (path,) = (smoke[0] / "runs").iterdir()
    line = refusal(runner, "evaluate", str(path), "--max-histories", "20")
    assert "more than 20 histories" in line


def test_train_prints_json_where_a_program_reads_it(runner: CliRunner) -> None:
    arguments = ["train", "--settings", "smoke", "--set", "run.iterations=2"]
    result = runner.invoke(app, [*arguments, "--run-dir", "here/run", "--json"])
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["run_directory"] == str(Path("here/run"))
    assert record["iterations"] == 2
    assert record["exploitability"] == record["nash_conv"] / 2
    directory = RunDirectory("here/run")
    assert directory.config.run.iterations == 2
    assert len(directory.read_metrics()) == 2


def test_a_warning_is_one_line_on_stderr(tmp_path: Path) -> None:
    done = call(tmp_path, "check-game", "kuhn_poker", "--encoding", "observation", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "kuhn_poker"
    assert done.stderr.startswith("warning: kuhn_poker is encoded by observation tensors")
    assert done.stderr.count("\n") == 1


def test_games_are_listed(runner: CliRunner) -> None:
    result = runner.invoke(app, ["games", "--json"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["kuhn_poker"]["playable"]
    assert rows["fhp"]["playable"]
    assert not rows["mfg_garnet"]["playable"]
    lines = runner.invoke(app, ["games"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(rows)


def test_a_game_is_checked(runner: CliRunner) -> None:
    result = runner.invoke(app, ["check-game", "kuhn_poker", "--games", "50", "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert (record["players"], record["actions"], record["games"]) == (2, 2, 50)
    assert record["problems"] == []
    text = runner.invoke(app, ["check-game", "kuhn_poker", "--games", "50"]).stdout
    assert "encoding size       11\n" in text
    assert text.endswith("problems: none\n")


def test_the_settings_command_prints_a_settings_file(runner: CliRunner) -> None:
    assert runner.invoke(app, ["settings"]).stdout == settings_yaml()


def test_the_version(runner: CliRunner) -> None:
    assert runner.invoke(app, ["--version"]).stdout == f"asynccfr {__version__}\n"


def test_every_command_explains_itself(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["--help"]).stdout
    for command in ("train", "evaluate", "games", "check-game", "settings"):
        assert command in shown
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


# Ctrl-C.

ENDLESS = {
    "fit advantage": "--set traversal.traversals_per_player=5 --set advantage.train_steps=10000000",
    "traverse": "--set traversal.traversals_per_player=100000000",
}


@pytest.mark.parametrize(
    ("backend", "phase"), [("async", "fit advantage"), ("async", "traverse"), ("local", "traverse")]
)
def test_ctrl_c_ends_the_run_and_says_what_is_on_disk(
    tmp_path: Path, backend: str, phase: str
) -> None:
    arguments = ["train", "--settings", "smoke", "--backend", backend, "--run-dir", "run"]
    arguments += ["--set", "inference.cache=off", *ENDLESS[phase].split()]
    with started(tmp_path, COMMAND_WITH_PHASES, *arguments) as process:
        wait_for(process, f"phase {phase}")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == (
        "error: interrupted before the first iteration ended; 'run' holds the settings alone"
    )
    assert "Traceback" not in stderr
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_a_second_ctrl_c_ends_a_run_that_the_first_cannot(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(BLOCKING_GAME)
    arguments = ["train", "--settings", "smoke", "--set", "game.name=stuck:Stuck"]
    with started(tmp_path, COMMAND, *arguments) as process:
        wait_for(process, "phase stuck")
        while process.poll() is None:  # The first is noted, a later one ends it.
            process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in stdout + stderr


def test_ctrl_c_before_training_begins_is_one_line(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asynccfr.trainer.Trainer.__init__", interrupt)
    result = runner.invoke(app, ["train", "--settings", "smoke"])
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")
    assert not list(Path().iterdir())
