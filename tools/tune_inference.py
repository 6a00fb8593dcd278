"""Finds traversal and inference settings that are fast for a game, a network and a machine.

    python tools/tune_inference.py --settings fhp --minutes 2 --out tuned.yaml

What counts is decision nodes per second of traversals, measured as in training (see
`traversal_rate.py`); nothing is fitted. The search starts from the settings and goes along one
key at a time: times 4 or divided by 4, then 2, then 1.5, on in one direction for as long as that
wins. A candidate is measured in turn with the best so far, on the same trees, and wins where its
median of three is 2 % higher; one that is far behind at once is not repeated. At the end the best
and the settings are measured in turn again: the maximum of many noisy figures flatters, so only
this last comparison is the gain that is reported, and without one the settings stay.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from common import (
    JsonOption,
    OverridesOption,
    SettingsOption,
    Spread,
    print_table,
    require_writable,
    run_command,
    write_json,
)
from traversal_rate import (
    CONCURRENCY,
    MAX_BATCH,
    MAX_WAIT_US,
    THREADS,
    OutOfTime,
    TraversalRate,
    Values,
)

from asynccfr import event_loop, load_config
from asynccfr.preflight import available_cores

FACTORS = (4.0, 2.0, 1.5)
ROUNDS, LAST_ROUNDS = 3, 7
WINS_FROM = 1.02
"""A candidate is better where its median is this many times that of the best so far."""
GIVES_UP_BELOW = 0.8
"""Ends a comparison after one round; above it a cold start may be to blame."""
TRIALS = 70
"""How many trials should fit into the time."""
SEARCH_SHARE = 0.8
"""The part of the time after which only the last comparison is left."""


def main(
    settings: SettingsOption = None,
    overrides: OverridesOption = None,
    minutes: Annotated[
        float, typer.Option(help="The whole command takes no longer.", min=0.1, max=1440.0)
    ] = 1.9,
    out: Annotated[
        Path | None, typer.Option(help="Write the tuned settings here.", metavar="FILE")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Search the traversal and inference settings for the most decision nodes per second."""
    # Imports have taken seconds of the time; the table and the way out will take the last.
    begun = time.perf_counter() - max(0.0, time.time() - psutil.Process().create_time())
    ends = begun + 60.0 * 0.95 * minutes - 2.0
    require_writable(out)
    require_writable(json_file)
    config = load_config(settings, [*(overrides or []), "inference.backend=async"])
    bench = TraversalRate(config, 60.0 * minutes / TRIALS)
    search = Search(bench)
    event_loop.run(search.run(begun + SEARCH_SHARE * (ends - begun), ends))

    network, olds = config.network, bench.values
    about = (
        f"{config.game.name} on {bench.device.type}, {network.num_layers} x "
        f"{network.hidden_size}, cache {bench.cache}"
    )
    if search.rows:
        trials = f"thousand decision nodes per second, {bench.ranges:,} x {bench.traversals:,}"
        print_table(f"{about}\n{trials} traversals a trial; last: against settings", search.rows)
    gain = f"{search.gain:.2f} x the settings' decision nodes per second"
    print_table(
        "settings against tuned",
        [{"key": key, "settings": old, "tuned": search.best[key]} for key, old in olds.items()],
    )
    print("no clear gain: the settings stay" if search.best is olds else f"tuned: {gain}")
    fragment = f"# {about}: {gain}.\n{yaml.safe_dump(nested(search.best), sort_keys=False)}"
    if out is None:
        print(fragment, end="")
    else:
        out.write_text(fragment, encoding="utf-8")
    print("or " + " ".join(f"--set {key}={value}" for key, value in search.best.items()))
    write_json(json_file, search.rows, {"decision_nodes_per_second": search.gain})


class Search:
    """The search, and what it has found so far, whenever time is over."""

    def __init__(self, bench: TraversalRate) -> None:
        self._bench = bench
        self._tried = [bench.values]
        self._trials = 0
        self.best = bench.values
        self.gain = 1.0
        """Of `best` over the settings."""
        self.rows: list[dict[str, Any]] = []
        """A row for each comparison."""

    async def run(self, search_deadline: float, deadline: float) -> None:
        """Searches until the first deadline, then compares with the settings until the second."""
        with event_loop.tuned_interpreter():
            await self._bench.settle(search_deadline)
            try:
                await self._climb(search_deadline)
            except OutOfTime:
                typer.echo("the time for the search is over", err=True)
            if self.best is self._bench.values:
                return
            self.gain = await self._compare(
                self.best, self._bench.values, deadline, LAST_ROUNDS, last=True
            )
            if self.gain < WINS_FROM:
                self.best, self.gain = self._bench.values, 1.0

    async def _climb(self, deadline: float) -> None:
        for factor in FACTORS:
            for key in self._bench.values:
                for step in (factor, 1.0 / factor):
                    before = self.best
                    while (candidate := self._moved(key, step)) not in self._tried:
                        self._tried.append(candidate)
                        times = await self._compare(candidate, self.best, deadline, ROUNDS)
                        if times < WINS_FROM:
                            break
                        self.best = candidate
                    if self.best is not before:
                        break  # The other direction is where it came from.

    def _moved(self, key: str, factor: float) -> Values:
        """The best so far with one value multiplied, as far as that can make a difference."""
        smallest, largest = {
            CONCURRENCY: (1, self._bench.traversals),
            MAX_BATCH: (1, self.best[CONCURRENCY]),  # A coroutine has one request at a time.
            THREADS: (1, available_cores()),
            MAX_WAIT_US: (100.0, 100_000.0),
        }[key]
        value = min(self.best[key], largest)
        moved = max(smallest, min(largest, round(value * factor)))
        return self.best if moved == value else {**self.best, key: type(value)(moved)}

    async def _compare(
        self, candidate: Values, best: Values, deadline: float, rounds: int, last: bool = False
    ) -> float:
        """How many times as fast `candidate` is as `best`, by the medians of rounds in turn."""
        candidates: list[float] = []
        bests: list[float] = []
        for number in range(rounds):
            shown = ", ".join(f"{key}={value:g}" for key, value in candidate.items())
            typer.echo(f"round {number + 1}/{rounds}: {shown}", err=True)
            self._trials += 1
            turns = [(candidate, candidates), (best, bests)]
            try:
                for values, rates in turns if number % 2 else reversed(turns):
                    rates.append(await self._bench.rate(values, self._trials, deadline))
            except OutOfTime:
                if not last:
                    raise
                break
            if not last and candidates[0] < GIVES_UP_BELOW * bests[0]:
                break
        whole = min(len(candidates), len(bests))
        if not whole or not min(bests[:whole]):
            return 1.0  # Nothing is known.
        times = statistics.median(candidates[:whole]) / statistics.median(bests[:whole])
        row = {key.partition(".")[2].removeprefix("max_"): candidate[key] for key in candidate}
        row["candidate"] = Spread.of([rate / 1_000 for rate in candidates[:whole]])
        row["best so far"] = Spread.of([rate / 1_000 for rate in bests[:whole]])
        row["times"] = times
        row["better"] = "last" if last else "yes" if times >= WINS_FROM else "no"
        self.rows.append(row)
        return times


def nested(values: Values) -> dict[str, dict[str, Any]]:
    """Dotted keys as sections."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections


if __name__ == "__main__":
    run_command(main)
