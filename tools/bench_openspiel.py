"""Times asynccfr against OpenSpiel's own PyTorch Deep CFR, in one run, taking turns.

    python tools/bench_openspiel.py --games leduc_poker,liars_dice,fhp --json FILE --plot FILE

- `traversal`: policy calls (visits to decision nodes) per second, networks of 3 x 512.
- `fit`: seconds of one step of an advantage fit on Leduc, from a full memory.
- `iteration`: seconds of one Leduc iteration, memories full, strategy fits left out.
- `nash_conv`: NashConv on Leduc against training time, evaluations left out.

Both run on the CPU. OpenSpiel is tried with one and with two torch threads, and the better of the
two counts. A ratio above 1 is in asynccfr's favour.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from common import print_table, require_writable, run_command, write_json

from asynccfr.errors import InputError

PARTS = ("traversal", "fit", "iteration", "nash_conv")

Row = dict[str, Any]

LOOKS = {"asynccfr": ("#0072B2", "o", "-"), "OpenSpiel": ("#D55E00", "s", "--")}
"""Colour, marker and line of each curve, told apart by the colour-blind and in grey."""


def main(
    games: Annotated[
        str, typer.Option(help="Games of the part `traversal`, separated by commas.")
    ] = "leduc_poker,liars_dice,fhp",
    parts: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = (
        "traversal,fit,iteration,nash_conv"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Rounds that count, after one more.")] = 5,
    seconds_per_round: Annotated[
        float, typer.Option(min=0.01, help="Length of each measurement of traversals, in seconds.")
    ] = 5.0,
    nash_conv_seconds: Annotated[
        float, typer.Option(min=0.01, help="Training time of each learning curve, in seconds.")
    ] = 300.0,
    settings: Annotated[
        str,
        typer.Option(help="asynccfr's settings in `nash_conv`, as for `train`; played on Leduc."),
    ] = "leduc",
    rows: Annotated[
        int, typer.Option(min=1, help="Rows that a memory holds in the parts on Leduc.")
    ] = 1_000_000,
    traversals: Annotated[
        int, typer.Option(min=1, help="Traversals a player and iteration in the parts on Leduc.")
    ] = 1_500,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a fit.")] = 750,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a training batch.")] = 2_048,
    traversals_per_network: Annotated[
        int, typer.Option(min=1, help="asynccfr's traversals a player in the part `traversal`.")
    ] = 3_000,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Traversals in flight in the part `traversal`.")
    ] = 1_024,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here too.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the learning curves here.", metavar="FILE")
    ] = None,
) -> None:
    """Time asynccfr against OpenSpiel's own PyTorch Deep CFR, in one run, taking turns."""
    wanted = check_parts(parts)
    require_writable(json_file)
    require_writable(plot)
    require_module("tree", "OpenSpiel's PyTorch Deep CFR needs dm-tree")
    if plot is not None:
        require_module("matplotlib", "--plot needs matplotlib")
        if "nash_conv" not in wanted:
            raise InputError("--plot draws the part nash_conv; add it to --parts")
    # Not before it is known that OpenSpiel's solver can be imported.
    import openspiel_parts as bench

    work = bench.Work(rows, traversals, steps, batch_size)
    results: list[Row] = []
    ratios: dict[str, float] = {}

    def report(title: str, outcome: tuple[list[Row], dict[str, float]]) -> None:
        results.extend(outcome[0])
        ratios.update(outcome[1])
        print_table(title, table(outcome[0]))

    if "traversal" in wanted:
        names = [name.strip() for name in games.split(",")]
        for name in names:
            bench.open_spiel_game(name)  # Whatever is misspelt is refused before the first.
        for name in names:
            report(
                f"Traversal of {name}, networks 3 x 512",
                bench.traversal_part(
                    name,
                    seconds=seconds_per_round,
                    traversals=traversals_per_network,
                    concurrency=concurrency,
                    repeats=repeats,
                ),
            )
    if "fit" in wanted:
        title = f"One step of an advantage fit on Leduc, batch {batch_size:,}, {rows:,} rows held"
        report(title, bench.fit_part(work, repeats=repeats))
    if "iteration" in wanted:
        title = (
            f"One iteration on Leduc, networks 3 x 64; each player: {traversals:,} traversals, "
            f"{steps:,} steps of {batch_size:,}, {rows:,} rows held"
        )
        report(title, bench.iteration_part(work, repeats=repeats))
    if "nash_conv" in wanted:
        title = "NashConv of the average policy on Leduc, evaluations left out of the time"
        report(title, bench.nash_conv_part(work, settings, seconds=nash_conv_seconds))
    print_table(
        "Ratios; above 1: asynccfr is ahead",
        [{"ratio": name, "value": value} for name, value in ratios.items()],
    )
    write_json(json_file, results, ratios)
    if plot is not None:
        draw(results, plot)


def check_parts(text: str) -> list[str]:
    """The parts named in `text`.

    Raises:
        InputError: where there is no such part.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in PARTS:
            raise InputError(f"there is no part {part!r}; the parts are {', '.join(PARTS)}")
    return parts


def require_module(module: str, sentence: str) -> None:
    """Raises InputError, naming the extra, where `module` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise InputError(f"{sentence}, which is missing; run pip install -e '.[bench]'")


def table(rows: Sequence[Row]) -> list[Row]:
    """The rows under one set of columns, without what the title says, rounded."""
    columns = dict.fromkeys(key for row in rows for key in row if key not in ("part", "game"))
    for last in ("measure", "median", "min", "max"):
        columns[last] = columns.pop(last)
    return [{key: _shown(row.get(key)) for key in columns} for row in rows]


def _shown(value: object) -> object:
    if not isinstance(value, float):
        return "" if value is None else value
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def draw(results: Sequence[Row], file: Path) -> None:
    """Draws both learning curves, NashConv on a log scale over training time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for who, (colour, marker, line) in LOOKS.items():
        points = [row for row in results if row["part"] == "nash_conv" and row["who"] == who]
        seconds = [row["seconds"] for row in points]
        values = [row["median"] for row in points]
        axes.plot(seconds, values, color=colour, marker=marker, linestyle=line, label=who)
    axes.set_xlabel("training time (seconds, evaluations left out)")
    axes.set_ylabel("NashConv of the average policy (antes)")
    axes.set_title("Leduc poker, two players, CPU")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter("")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    run_command(main)
