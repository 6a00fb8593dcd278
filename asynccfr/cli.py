"""The command line: parse, call the library, print.

Results go to stdout, progress and complaints to stderr. Exit codes: 0 good, 1 failed, 2 bad
input, 130 after Ctrl-C. PyTorch and OpenSpiel are imported inside the commands that need them,
so that `--help` answers at once.
"""

import asyncio
import dataclasses
import io
import json
import signal
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from asynccfr import __version__
from asynccfr.config import load_config, presets, settings_yaml
from asynccfr.errors import AsyncCFRError, InputError, Interrupted

T = TypeVar("T")

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class _Commands(TyperGroup):
    """Turns what commands raise into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except InputError as error:
                _complain(error, BAD_INPUT)
            except Interrupted as error:
                _complain(error, INTERRUPTED)
            except AsyncCFRError as error:
                _complain(error, FAILED)
            except KeyboardInterrupt:
                _complain("interrupted", INTERRUPTED)


app = typer.Typer(
    cls=_Commands,
    help="Deep CFR on one box: thousands of traversals, one batching inferer, one process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"asynccfr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
def train(
    settings: Annotated[
        str | None,
        typer.Option(help=f"A YAML file or one of: {', '.join(presets())}.", metavar="FILE|NAME"),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Short for inference.backend.", metavar="local|async")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one setting; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="A new or empty folder for the run.  [default: runs/<time>-<name>]"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy; with no option at all, for Leduc poker."""
    short = [] if backend is None else [f"inference.backend={backend}"]
    config = load_config(settings, [*(overrides or []), *short])

    from asynccfr import event_loop
    from asynccfr.preflight import plan
    from asynccfr.runs.directory import RunDirectory, new_run_path
    from asynccfr.runs.progress import new_display
    from asynccfr.runs.recording import record
    from asynccfr.runs.summary import interruption, summary_record, summary_text
    from asynccfr.trainer import Trainer

    display = new_display(config.run)
    trainer = Trainer(config, observer=display)
    directory = RunDirectory.create(config, run_dir or new_run_path(config.run.name))
    print(plan(config, trainer.game), file=sys.stderr)
    try:
        with display:
            result = event_loop.run(_stoppable(record(trainer, directory), display.on_interrupt))
    except KeyboardInterrupt:
        raise Interrupted(interruption(trainer, directory)) from None
    if as_json:
        _print_json(summary_record(config, result, directory))
    else:
        print(summary_text(config, result, directory))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory or a policy file.", metavar="RUN")],
    max_histories: Annotated[
        int | None,
        typer.Option(help="Largest game to walk; as the run was trained with if not given.", min=1),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compute the exact NashConv of a trained policy."""
    from asynccfr.evaluation.exact import enumerate_information_states, evaluate_exactly
    from asynccfr.policy import load_policy
    from asynccfr.runs.summary import aligned, evaluation_lines, evaluation_record

    policy = load_policy(run)
    limit = max_histories or policy.config.evaluation.max_histories
    states = enumerate_information_states(policy.played_game, limit)
    evaluation = evaluate_exactly(policy.played_game, states, policy.probabilities)
    game, iteration = policy.config.game.name, policy.iteration
    if as_json:
        about = {"policy": str(run), "game": game, "iteration": iteration}
        _print_json(about | evaluation_record(evaluation))
    else:
        lines = {"policy": f"{run}, after iteration {iteration}", "game": game}
        print(aligned(lines | evaluation_lines(evaluation)))


@app.command()
def games(as_json: JsonFlag = False) -> None:
    """List the games that can be named, and which of them can be trained on."""
    from asynccfr.games import list_games

    rows = list_games()
    if as_json:
        _print_json([dataclasses.asdict(row) for row in rows])
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        playable = "yes" if row.playable else "no"
        print(f"{row.name:<{width}}  {row.players:<7}  {playable:<3}  {row.note}".rstrip())


@app.command()
def check_game(
    game: Annotated[
        str,
        typer.Argument(
            help="A name, a game string, or package.module:Factory.",
            metavar="GAME",
            show_default=False,
        ),
    ],
    games: Annotated[int, typer.Option(help="How many random games to play.", min=1)] = 200,
    encoding: Annotated[
        str, typer.Option(help="As game.encoding.", metavar="information_state|observation")
    ] = "information_state",
    as_json: JsonFlag = False,
) -> None:
    """Play random games and look for what would spoil training; exit 1 where there is some."""
    config = load_config(None, {"game.name": game, "game.encoding": encoding})

    from asynccfr.games import examine, load_game
    from asynccfr.runs.summary import aligned

    found = examine(load_game(config.game.name, config.game.encoding), games)
    record = dataclasses.asdict(found)
    if as_json:
        _print_json(record)
    else:
        lists = {"notes": found.notes, "problems": found.problems}
        shown = {key: value for key, value in record.items() if key not in lists}
        print(aligned({key.replace("_", " "): str(value) for key, value in shown.items()}))
        for title, sentences in lists.items():
            print(f"\n{title}: {len(sentences) or 'none'}")
            print("".join(f"- {sentence}\n" for sentence in sentences), end="")
    if found.problems:
        raise typer.Exit(FAILED)


@app.command()
def settings() -> None:
    """Print every setting with its default and what it does, as a settings file."""
    print(settings_yaml(), end="")


async def _stoppable(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    """Awaits `work`; the first Ctrl-C cancels it, a second one ends the process there and then."""
    cancel = signal.getsignal(signal.SIGINT)
    if not callable(cancel):  # Ignored, as in a background job: so it stays.
        return await work
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        # The operating system's own way out needs neither the event loop nor the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        loop.call_soon_threadsafe(on_interrupt)
        cancel(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        return await work
    finally:
        signal.signal(signal.SIGINT, cancel)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _complain(what: object, exit_code: int) -> None:
    print(f"error: {' '.join(str(what).split())}", file=sys.stderr)
    raise typer.Exit(exit_code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def main() -> None:
    """The `asynccfr` command."""
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's encoding lacks is shown escaped, not as a failure.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
