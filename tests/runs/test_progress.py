import io

import pytest
from rich.console import Console

from asynccfr.config import RunSettings
from asynccfr.evaluation.exact import ExactEvaluation
from asynccfr.metrics import IterationReport
from asynccfr.runs import progress
from asynccfr.runs.progress import LiveDisplay, PlainLines, new_display

RUN = RunSettings(iterations=4)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(iteration: int, nash_conv: float | None = None) -> IterationReport:
    metrics = {
        "iteration_seconds": 1.25,
        "decision_nodes_per_second": 54_321.9,
        "inference": {"mean_batch": 480.25},
    }
    evaluation = None
    if nash_conv is not None:
        evaluation = ExactEvaluation(nash_conv, nash_conv / 2, (0.0, 0.0))
    return IterationReport(iteration, metrics, evaluation)


def screen(display: LiveDisplay) -> str:
    """What the display shows now, without colours."""
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(display._render())
    return capture.get()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as the display sees it."""
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def live(clock: list[float]) -> LiveDisplay:
    return LiveDisplay(RUN, Console(file=Terminal(), force_terminal=True))


def test_a_pipe_gets_lines_and_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(new_display(RUN, io.StringIO()), PlainLines)
    assert isinstance(new_display(RUN, Terminal()), LiveDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(new_display(RUN, Terminal()), PlainLines)


def test_plain_output_is_one_line_an_iteration_and_names_both_measures() -> None:
    stream = io.StringIO()
    with new_display(RUN, stream) as display:
        display.on_phase(1, "traverse")
        display.on_traversal(1, 0, 1, 10)
        display.on_report(report(1))
        display.on_report(report(2, nash_conv=0.5))
    assert stream.getvalue().splitlines() == [
        "iteration 1/4  1.2 s  54,322 decisions/s  mean batch 480.2",
        "iteration 2/4  1.2 s  54,322 decisions/s  mean batch 480.2  "
        "NashConv 0.5000  exploitability 0.2500",
    ]


def test_plain_output_says_that_a_run_is_stopping() -> None:
    stream = io.StringIO()
    new_display(RUN, stream).on_interrupt()
    assert stream.getvalue() == "stopping; a second Ctrl-C exits at once\n"


def test_the_display_shows_where_the_run_is(live: LiveDisplay) -> None:
    live.on_phase(1, "traverse")
    live.on_traversal(1, 0, 30, 50)
    shown = screen(live)
    assert "0/4" in shown
    assert "30/50" in shown
    assert "iteration 1: traverse" in shown
    assert "left" not in shown
    live.on_phase(1, "fit advantage")
    assert "iteration 1: fit advantage" in screen(live)


def test_the_display_keeps_the_last_nash_conv(live: LiveDisplay) -> None:
    live.on_report(report(1, nash_conv=0.5))
    live.on_report(report(2))
    shown = screen(live)
    assert "2/4" in shown
    assert "54,322 decisions/s  mean batch 480.2" in shown
    assert "NashConv 0.5000  exploitability 0.2500" in shown


def test_the_time_left_is_what_the_iterations_so_far_took(
    live: LiveDisplay, clock: list[float]
) -> None:
    clock[0] = 100.0
    live.on_report(report(1))
    clock[0] = 130.0
    # Three iterations of 100 s are ahead, 30 s of them have passed.
    assert "2:10 elapsed, about 4:30 left" in screen(live)
    clock[0] = 4_000.0
    assert "1:06:40 elapsed, about 0:00 left" in screen(live)


def test_the_time_left_respects_the_limit_in_minutes(clock: list[float]) -> None:
    run = RunSettings(iterations=1_000, max_minutes=3)
    live = LiveDisplay(run, Console(file=Terminal(), force_terminal=True))
    clock[0] = 100.0
    live.on_report(report(1))
    assert "about 1:20 left" in screen(live)


def test_the_display_says_that_the_run_is_stopping_and_returns_the_cursor() -> None:
    terminal = Terminal()
    live = LiveDisplay(RUN, Console(file=terminal, force_terminal=True))
    live.on_interrupt()
    assert "second Ctrl-C" in screen(live)
    assert "\x1b[?25h" in terminal.getvalue()


def test_traversals_do_not_write(live: LiveDisplay) -> None:
    terminal = live._console.file
    assert isinstance(terminal, Terminal)
    for done in range(10_000):
        live.on_traversal(1, 0, done, 10_000)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    with new_display(RUN, terminal) as display:
        display.on_traversal(1, 0, 30, 50)
        display.on_report(report(1))
    # 32 is the green of a finished count; cursor movements have other letters than m.
    assert ("\x1b[32m" in terminal.getvalue()) == (not no_color)
