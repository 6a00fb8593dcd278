import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import asynccfr
from asynccfr import InputError, Trainer, load_config

ROOT = Path(__file__).parent.parent


def test_the_public_names() -> None:
    assert sorted(asynccfr.__all__) == [
        "AsyncCFRError",
        "AveragePolicy",
        "Config",
        "Game",
        "InputError",
        "IterationReport",
        "State",
        "Trainer",
        "TrainingResult",
        "__version__",
        "load_config",
        "load_game",
        "load_policy",
        "train",
    ]


@pytest.mark.parametrize("name", asynccfr.__all__)
def test_each_public_name_can_be_had_and_is_documented(name: str) -> None:
    value = getattr(asynccfr, name)
    assert name == "__version__" or value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = asynccfr.nothing  # type: ignore[attr-defined]


def test_importing_the_package_and_its_command_line_loads_neither_torch_nor_open_spiel() -> None:
    script = (
        "import sys, asynccfr.cli;"
        "assert not {'torch', 'pyspiel', 'open_spiel', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_package_is_typed() -> None:
    assert files("asynccfr").joinpath("py.typed").is_file()


def test_the_wheel_carries_the_settings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"settings": "asynccfr/settings"}


def test_train_leaves_nothing_behind_without_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = asynccfr.train(load_config("smoke", {"run.iterations": 1}))
    assert len(result.reports) == 1
    assert result.policy.iteration == 1
    assert not list(tmp_path.iterdir())


async def test_train_under_a_running_loop_names_the_way_out() -> None:
    with pytest.raises(InputError, match=r"await Trainer\(config\)\.run\(\)"):
        asynccfr.train(load_config("smoke"))


async def test_that_way_out_works() -> None:
    result = await Trainer(load_config("smoke", {"run.iterations": 1})).run()
    assert result.evaluation is not None
