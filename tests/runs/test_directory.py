import json
import math
from datetime import datetime
from pathlib import Path

import pytest
import torch

from asynccfr import AveragePolicy, load_config, load_game, load_policy
from asynccfr.config import Config
from asynccfr.errors import InputError, RunDirectoryError
from asynccfr.policy import new_strategy_network
from asynccfr.runs.directory import RunDirectory, new_run_path

CONFIG = load_config("smoke")
NOON = datetime(2031, 2, 3, 12, 4, 5)


def new_policy(iteration: int, bias: float = 0.0) -> AveragePolicy:
    game = load_game(CONFIG.game.name)
    network = new_strategy_network(game, CONFIG.network)
    network.initialise(torch.Generator())
    with torch.no_grad():
        network.layers[-1].bias[0] = bias  # type: ignore[index, union-attr]
    return AveragePolicy(game, network, CONFIG, iteration)


def test_a_new_directory_holds_the_settings_as_resolved(tmp_path: Path) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path / "some" / "where")
    assert [file.name for file in directory.path.iterdir()] == ["config.yaml"]
    assert RunDirectory(directory.path).config == CONFIG


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    assert RunDirectory.create(CONFIG, tmp_path).config == CONFIG


def test_a_directory_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(RunDirectoryError, match="not empty"):
        RunDirectory.create(CONFIG, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "new" / ("x" * 300)):
        with pytest.raises(RunDirectoryError, match="cannot be written"):
            RunDirectory.create(CONFIG, path)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_settings_that_cannot_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        RunDirectory.create(CONFIG, tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_metrics_are_one_line_of_utf_8_for_each_iteration(tmp_path: Path) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path)
    assert directory.read_metrics() == []
    rows = [{"iteration": 1, "note": "Zürich\n"}, {"iteration": 2, "nested": {"a": [1, None]}}]
    for count, row in enumerate(rows, start=1):
        directory.append_metrics(row)
        # Whoever follows the file sees whole lines at once.
        assert directory.metrics_file.read_bytes().decode("utf-8").count("\n") == count
    assert directory.read_metrics() == rows


def test_what_json_lacks_becomes_null(tmp_path: Path) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path)
    directory.append_metrics({"loss": math.nan, "losses": (math.inf, 1.0), "in": {"x": -math.inf}})
    line = directory.metrics_file.read_text(encoding="utf-8")
    assert json.loads(line, parse_constant=pytest.fail) == {
        "loss": None,
        "losses": [None, 1.0],
        "in": {"x": None},
    }


def test_metrics_that_cannot_be_written_or_read_name_the_file(tmp_path: Path) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path)
    directory.metrics_file.write_bytes(b"{not json\n")
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl' cannot be read"):
        directory.read_metrics()
    directory.metrics_file.unlink()
    directory.metrics_file.mkdir()
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl' cannot be written"):
        directory.append_metrics({})


def test_a_saved_policy_replaces_the_one_before(tmp_path: Path) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path)
    state = load_game("kuhn_poker").new_initial_state()
    for _ in range(2):
        state.apply_action(state.chance_outcomes()[0][0])
    for iteration, bias in ((1, 0.0), (2, 3.0)):
        policy = new_policy(iteration, bias)
        directory.save_policy(policy)
        loaded = load_policy(directory.path)
        assert loaded.iteration == iteration
        assert loaded.action_probabilities(state) == policy.action_probabilities(state)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.yaml", "policy.pt"]


@pytest.mark.parametrize("error", [OSError(28, "full"), RuntimeError("write failed")])
def test_a_policy_that_cannot_be_saved_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    directory = RunDirectory.create(CONFIG, tmp_path)
    directory.save_policy(new_policy(1))

    def fail(self: AveragePolicy, path: Path) -> None:
        path.write_bytes(b"half a pol")
        raise error

    monkeypatch.setattr(AveragePolicy, "save", fail)
    with pytest.raises(RunDirectoryError, match=r"policy\.pt' cannot be written"):
        directory.save_policy(new_policy(2))
    assert load_policy(directory.path).iteration == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.yaml", "policy.pt"]


def test_reading_what_is_no_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.yaml"):
        _ = RunDirectory(tmp_path).config


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("leduc", "20310203-120405-leduc"),
        ("../../etc/passwd", "20310203-120405-etc-passwd"),
        ("a b\\c:d\n", "20310203-120405-a-b-c-d"),
        ("Zürich", "20310203-120405-Zürich"),
        ("...", "20310203-120405-run"),
    ],
)
def test_a_run_is_called_by_time_and_a_name_that_any_file_system_takes(
    name: str, folder: str
) -> None:
    assert new_run_path(name, now=NOON) == Path("runs") / folder


def test_even_the_longest_name_can_be_made(tmp_path: Path) -> None:
    path = new_run_path("\N{GRINNING FACE}語" * 500, root=tmp_path, now=NOON)
    RunDirectory.create(Config(), path)


def test_two_runs_of_one_second_have_two_paths(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = new_run_path("leduc", root=tmp_path, now=NOON)
        RunDirectory.create(CONFIG, path)
        names.append(path.name)
    first = "20310203-120405-leduc"
    assert names == [first, f"{first}-2", f"{first}-3"]
