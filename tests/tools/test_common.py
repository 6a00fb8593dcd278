import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from asynccfr import AsyncCFRError, InputError

COMMON = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools" / "common.py")))


def test_spread_is_the_median_between_the_extremes() -> None:
    spread = COMMON.Spread.of([3_000.0, 1_000.0, 1_500.0])
    assert (spread.minimum, spread.median, spread.maximum) == (1_000.0, 1_500.0, 3_000.0)
    assert spread.show(0) == "1,500 (1,000-3,000)"


def test_variants_take_turns_and_warm_ups_are_dropped() -> None:
    calls: list[str] = []

    def variant(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = COMMON.interleave(
        {"a": lambda: variant("a"), "b": lambda: variant("b")}, repeats=2, warmup=1
    )
    assert calls == ["a", "b"] * 3
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_table_shows_numbers_words_and_spreads(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"who": "us", "rate": 12_345.6, "seconds": COMMON.Spread(0.5, 0.25, 1.0), "none": None},
        {"who": "them", "rate": 0.5, "seconds": COMMON.Spread(250.0, 200.0, 300.0), "none": None},
    ]
    COMMON.print_table("a title", rows)
    shown = capsys.readouterr().out
    for text in ("a title", "12,346", "0.500", "0.5000 (0.2500-1.0000)", "250 (200-300)"):
        assert text in shown


def test_json_has_the_contracts_keys(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    COMMON.write_json(file, [{"seconds": COMMON.Spread(2.0, 1.0, 3.0)}], {"traversal": 2.0})
    record = json.loads(file.read_text(encoding="utf-8"))
    assert set(record) == {"machine", "command", "rows", "ratios"}
    assert record["rows"] == [{"seconds": {"median": 2.0, "minimum": 1.0, "maximum": 3.0}}]
    assert record["ratios"] == {"traversal": 2.0}
    COMMON.write_json(None, [], {})


def test_unwritable_files_are_refused_before_the_work(tmp_path: Path) -> None:
    COMMON.require_writable(None)
    COMMON.require_writable(tmp_path / "new.json")
    for file in (tmp_path, tmp_path / "missing" / "new.json"):
        with pytest.raises(InputError, match="cannot write"):
            COMMON.require_writable(file)


@pytest.mark.parametrize(("error", "code"), [(InputError, 2), (AsyncCFRError, 1)])
def test_what_the_library_refuses_is_one_line(
    error: type[Exception],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command() -> None:
        raise error("this is\nwrong")

    monkeypatch.setattr("sys.argv", ["tool"])
    with pytest.raises(SystemExit) as ended:
        COMMON.run_command(command)
    assert ended.value.code == code
    assert capsys.readouterr().err == "error: this is wrong\n"
