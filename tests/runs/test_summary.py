import json
from dataclasses import replace
from pathlib import Path

import pytest

from asynccfr import Config, Trainer, TrainingResult, load_config, train
from asynccfr.runs.directory import RunDirectory
from asynccfr.runs.summary import evaluation_record, interruption, summary_record, summary_text

CONFIG = load_config("smoke", {"run.iterations": 2})


@pytest.fixture(scope="module")
def result() -> TrainingResult:
    return train(CONFIG)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(CONFIG, tmp_path / "my run")


def test_the_summary_names_what_was_reached_where_it_lies_and_what_to_do_next(
    result: TrainingResult, directory: RunDirectory
) -> None:
    assert result.evaluation is not None
    text = summary_text(CONFIG, result, directory)
    labels = {line.split("  ")[0] for line in text.splitlines()}
    assert labels >= {"iterations", "time", "decisions", "run directory", "expected returns"}
    assert f"NashConv          {result.evaluation.nash_conv:.6f}\n" in text
    assert f"exploitability    {result.evaluation.exploitability:.6f} " in text
    assert "of 2" not in text
    assert text.endswith(f"next: python -m asynccfr evaluate '{directory.path}'")


def test_a_run_that_time_ended_says_so(result: TrainingResult, directory: RunDirectory) -> None:
    config = load_config("smoke", {"run.iterations": 50})
    assert "2 of 50 (run.max_minutes was reached)" in summary_text(config, result, directory)


@pytest.mark.parametrize(
    ("config", "note", "shown", "following"),
    [
        (CONFIG, "NashConv is not computed: too large", "too large", "load_policy("),
        (
            load_config("smoke", {"run.iterations": 2, "evaluation.exact": False}),
            "",
            "evaluation.exact is false",
            "asynccfr evaluate",
        ),
    ],
)
def test_a_run_without_nash_conv_says_why(
    result: TrainingResult,
    directory: RunDirectory,
    config: Config,
    note: str,
    shown: str,
    following: str,
) -> None:
    unevaluated = replace(result, evaluation=None, note=note)
    text = summary_text(config, unevaluated, directory)
    assert "exploitability" not in text
    assert shown in text
    assert following in text.splitlines()[-1]
    assert shown in summary_record(config, unevaluated, directory)["note"]


def test_the_record_is_plain_json(result: TrainingResult, directory: RunDirectory) -> None:
    record = summary_record(CONFIG, result, directory)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["iterations"] == 2
    assert record["exploitability"] == record["nash_conv"] / 2
    assert len(record["expected_returns"]) == 2
    assert record["decision_nodes"] == sum(r.metrics["decision_nodes"] for r in result.reports)
    assert set(evaluation_record(None).values()) == {None}


def test_an_interruption_says_what_is_on_disk(
    result: TrainingResult, directory: RunDirectory
) -> None:
    trainer = Trainer(CONFIG)
    assert "holds the settings alone" in interruption(trainer, directory)
    directory.append_metrics({"iteration": 1})
    text = interruption(trainer, directory)
    assert "after iteration 1" in text
    assert "no policy" in text
    trainer.policy = result.policy
    directory.save_policy(result.policy)
    assert "the policy of iteration 2" in interruption(trainer, directory)
