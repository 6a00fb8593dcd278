"""What a run shows on stderr while it goes on."""

import contextlib
import sys
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from asynccfr.config import RunSettings
from asynccfr.metrics import IterationReport
from asynccfr.trainer import Observer

REPAINTS_PER_SECOND = 8


class Display(Observer, Protocol):
    """An observer that is shown within a `with` block."""

    def on_interrupt(self) -> None:
        """The run was asked to stop, and will."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def new_display(run: RunSettings, stream: TextIO | None = None) -> Display:
    """A live display where `stream` (stderr if None) is a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    console = Console(file=stream)
    # Rich alone would take a pipe for a terminal where FORCE_COLOR is set.
    if stream.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(run, console)
    return PlainLines(run, stream)


class PlainLines:
    """One line for each iteration, for log files and pipes."""

    def __init__(self, run: RunSettings, stream: TextIO) -> None:
        self._run = run
        self._stream = stream

    def on_traversal(self, iteration: int, player: int, done: int, total: int) -> None:
        """See `Observer.on_traversal`; shows nothing."""

    def on_phase(self, iteration: int, phase: str) -> None:
        """See `Observer.on_phase`; shows nothing."""

    def on_report(self, report: IterationReport) -> None:
        """See `Observer.on_report`."""
        metrics = report.metrics
        parts = [
            f"iteration {report.iteration}/{self._run.iterations}",
            f"{metrics['iteration_seconds']:.1f} s",
            *_figures(report),
            *_quality(report),
        ]
        self._print("  ".join(parts))

    def on_interrupt(self) -> None:
        """See `Display.on_interrupt`."""
        self._print("stopping; a second Ctrl-C exits at once")

    def _print(self, line: str) -> None:
        # A log that can no longer be written is no reason to end a run of hours.
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class LiveDisplay:
    """Bars, figures and the time left, repainted by a thread of Rich's own.

    The observer's methods only note numbers, so a call costs well under a microsecond however
    many traversals end between two repaints.
    """

    def __init__(self, run: RunSettings, console: Console) -> None:
        self._run = run
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            console=console,
        )
        self._iterations = self._bars.add_task("iterations", total=run.iterations)
        self._traversals = self._bars.add_task("traversals", total=None)
        self._started = perf_counter()
        self._iteration = 1
        self._phase = "starting"
        self._done = 0
        self._total = 0
        self._completed = 0
        self._completed_at = self._started
        self._figures = ""
        self._quality = ""
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=REPAINTS_PER_SECOND
        )

    def on_traversal(self, iteration: int, player: int, done: int, total: int) -> None:
        """See `Observer.on_traversal`."""
        self._done = done
        self._total = total

    def on_phase(self, iteration: int, phase: str) -> None:
        """See `Observer.on_phase`."""
        self._iteration = iteration
        self._phase = phase

    def on_report(self, report: IterationReport) -> None:
        """See `Observer.on_report`."""
        self._completed = report.iteration
        self._completed_at = perf_counter()
        self._figures = "  ".join(_figures(report))
        self._quality = "  ".join(_quality(report)) or self._quality

    def on_interrupt(self) -> None:
        """See `Display.on_interrupt`."""
        self._phase = "stopping; a second Ctrl-C exits at once"
        # Exiting at once leaves no time to give the cursor back.
        self._console.show_cursor(True)

    def _render(self) -> RenderableType:
        self._bars.update(self._iterations, completed=self._completed)
        self._bars.update(self._traversals, completed=self._done, total=self._total or None)
        view = Table.grid()
        view.add_row(self._bars)
        view.add_row(f"iteration {self._iteration}: {self._phase}  {self._time()}")
        for line in (self._figures, self._quality):
            if line:
                view.add_row(line)
        return view

    def _time(self) -> str:
        now = perf_counter()
        text = f"{_clock(now - self._started)} elapsed"
        left = self._seconds_left(now)
        return text if left is None else f"{text}, about {_clock(left)} left"

    def _seconds_left(self, now: float) -> float | None:
        """Iterations cost alike, so those behind tell what those ahead will take."""
        if self._completed in (0, self._run.iterations):
            return None
        per_iteration = (self._completed_at - self._started) / self._completed
        left = per_iteration * (self._run.iterations - self._completed)
        if self._run.max_minutes is not None:
            left = min(left, 60.0 * self._run.max_minutes - (self._completed_at - self._started))
        return max(0.0, left - (now - self._completed_at))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._phase = "done" if kind is None else "stopped"
        self._live.stop()


def _figures(report: IterationReport) -> list[str]:
    metrics = report.metrics
    return [
        f"{metrics['decision_nodes_per_second']:,.0f} decisions/s",
        f"mean batch {metrics['inference']['mean_batch']:.1f}",
    ]


def _quality(report: IterationReport) -> list[str]:
    evaluation = report.evaluation
    if evaluation is None:
        return []
    return [
        f"NashConv {evaluation.nash_conv:.4f}",
        f"exploitability {evaluation.exploitability:.4f}",
    ]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
