"""Times asynccfr against OpenSpiel's own PyTorch Deep CFR, in one run, taking turns.

    python tools/bench_openspiel.py --games leduc_poker,liars_dice,fhp --json FILE --plot FILE

- `traversal`: policy calls (visits to decision nodes) per second, networks of 3 x 512.
- `fit`: seconds of one step of an advantage fit on Leduc, from a full memory.
- `iteration`: seconds of one Leduc iteration, memories full, strategy fits left out.
- `nash_conv`: NashConv on Leduc against training time, evaluations left out.

Both run on the CPU. OpenSpiel is tried with one and with two torch threads, and the better of the
two counts. A ratio above 1 is in asynccfr's favour.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from common import Spread, interleave, print_table, write_json

from asynccfr import Config, InputError, load_config, load_game
from asynccfr.config import FitSettings, InferenceSettings, NetworkSettings, presets
from asynccfr.evaluation.exact import enumerate_information_states
from asynccfr.event_loop import new_event_loop
from asynccfr.games.openspiel import OpenSpielGame
from asynccfr.preflight import available_cores

if TYPE_CHECKING:
    from openspiel_peer import Peer

PARTS = ("traversal", "fit", "iteration", "nash_conv")
MARKS = 8
"""Evaluations of each learning curve, equally far apart."""

PEER, OURS = "OpenSpiel", "asynccfr"
Row = dict[str, Any]


class Bench:
    """The parts, which gather rows and ratios."""

    def __init__(self, repeats: int, rows: int, traversals: int, steps: int) -> None:
        self.repeats = repeats
        self.rows = rows
        self.traversals = traversals
        self.steps = steps
        self.our_threads = min(2, available_cores())
        """Torch threads of our fits: no more than the peer is tried with."""
        self.results: list[Row] = []
        self.ratios: dict[str, float] = {}

    def traversal(self, game_name: str, seconds: float, traversals: int, concurrency: int) -> None:
        """Policy calls per second in traversals of one game, with networks of 3 x 512."""
        import openspiel_ours
        from openspiel_peer import THREADS, Peer

        game = _open_spiel_game(game_name)
        peer = Peer(game, (512, 512, 512))
        network = NetworkSettings(hidden_size=512, num_layers=3)
        variants: dict[str, Callable[[], tuple[float, ...]]] = {}
        about: dict[str, Row] = {}
        for threads in THREADS:
            name = f"{PEER}, {_threads(threads)}"
            variants[name] = _with_threads(threads, lambda: (peer.traversal_rate(seconds),))
            about[name] = {"who": PEER, "precision": "float32", "cache": "", "threads": threads}
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            ours = []
            for precision in ("float32", "bfloat16"):
                for cache in ("off", "auto"):
                    settings = InferenceSettings(precision=precision, cache=cache, threads=1)
                    traverse = openspiel_ours.Traversals(
                        runner,
                        game,
                        network,
                        settings,
                        traversals=traversals,
                        concurrency=concurrency,
                    )
                    ours.append(traverse)
                    name = f"{OURS}, {precision}, cache {cache}"
                    variants[name] = _with_threads(1, partial(traverse.rate, seconds))
                    about[name] = {
                        "who": OURS, "precision": precision, "cache": cache, "threads": 1
                    }  # fmt: skip
            results = interleave(variants, self.repeats)
            for traverse in ours:
                traverse.close()
        rates = {name: Spread.of([rate for rate, *_ in runs]) for name, runs in results.items()}
        best = max(rates[name].median for name in rates if about[name]["who"] == PEER)
        for name, rate in rates.items():
            row = {"part": "traversal", "game": game_name, **about[name]}
            if row["who"] == OURS:
                key = f"traversal/{game_name}/{row['precision']}/{row['cache']}"
                self.ratios[key] = rate.median / best
                row["mean_batch"] = Spread.of([batch for _, batch, _ in results[name]]).median
                row["hit_share"] = Spread.of([hits for _, _, hits in results[name]]).median
            self._add(row, "policy calls per second", rate)

    def fit(self, batch_size: int) -> None:
        """Seconds of one training step on Leduc, at two sizes of network."""
        import openspiel_ours
        from openspiel_peer import THREADS, Peer

        game = _open_spiel_game("leduc_poker")
        advantages, strategies = openspiel_ours.sampled_rows(game, self.rows)
        memory = openspiel_ours.filled_reservoir(advantages[0])
        settings = FitSettings(train_steps=self.steps, batch_size=batch_size)
        for width in (64, 512):
            peer = Peer(
                game, (width,) * 3, train_steps=self.steps, batch_size=batch_size, rows=self.rows
            )
            peer.fill(advantages, strategies)
            network = NetworkSettings(hidden_size=width, num_layers=3)
            variants: dict[str, Callable[[], float]] = {}
            about: dict[str, Row] = {}
            for threads in THREADS:
                name = f"{PEER}, 3 x {width}, {_threads(threads)}"
                variants[name] = _with_threads(threads, peer.seconds_per_fit_step)
                about[name] = {"who": PEER, "precision": "float32", "threads": threads}
            for amp in ("off", "bf16"):
                name = f"{OURS}, 3 x {width}, amp {amp}"
                step = partial(
                    openspiel_ours.seconds_per_fit_step,
                    memory,
                    game,
                    network,
                    settings,
                    amp == "bf16",
                )
                variants[name] = _with_threads(self.our_threads, step)
                precision = "bfloat16" if amp == "bf16" else "float32"
                about[name] = {"who": OURS, "precision": precision, "threads": self.our_threads}
            spreads = _spreads(interleave(variants, self.repeats))
            best = min(spreads[name].median for name in spreads if about[name]["who"] == PEER)
            for name, spread in spreads.items():
                row = {"part": "fit", "network": f"3 x {width}", **about[name]}
                if row["who"] == OURS:
                    key = f"fit_step/3x{width}/{row['precision']}"
                    self.ratios[key] = best / spread.median
                self._add(row, "seconds per step", spread)
        # The plain name: the network of `iteration`, and arithmetic like the peer's.
        self.ratios["fit_step"] = self.ratios["fit_step/3x64/float32"]

    def iteration(self, batch_size: int) -> None:
        """Seconds of one whole Leduc iteration, at equal work and from full memories."""
        import openspiel_ours
        from openspiel_peer import THREADS

        game = _open_spiel_game("leduc_poker")
        advantages, strategies = openspiel_ours.sampled_rows(game, self.rows)
        peer = self._leduc_peer(game, batch_size)
        peer.fill(advantages, strategies)
        config = self._leduc_config(batch_size)
        variants: dict[str, Callable[[], tuple[float, float, float]]] = {}

        def peer_iteration() -> tuple[float, float, float]:
            took = peer.iterate()
            return took.total, took.traversal, took.fit

        def our_iteration() -> tuple[float, float, float]:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                metrics = runner.run(
                    openspiel_ours.second_iteration(config, advantages, strategies)
                )
            return (
                metrics["iteration_seconds"],
                metrics["traversal_seconds"] + metrics["memory_add_seconds"],
                metrics["advantage_train_seconds"],
            )

        for threads in THREADS:
            variants[f"{PEER}, {_threads(threads)}"] = _with_threads(threads, peer_iteration)
        variants[OURS] = _with_threads(self.our_threads, our_iteration)
        results = interleave(variants, self.repeats)
        totals = {}
        for name, runs in results.items():
            who = OURS if name == OURS else PEER
            threads = self.our_threads if who == OURS else int(name.split()[1])
            for index, phase in enumerate(("whole iteration", "traversal", "advantage fits")):
                spread = Spread.of([run[index] for run in runs])
                row = {"part": "iteration", "who": who, "phase": phase, "threads": threads}
                self._add(row, "seconds", spread)
                if index == 0:
                    totals[name] = spread.median
        ours = totals.pop(OURS)
        self.ratios["iteration"] = min(totals.values()) / ours

    def nash_conv(self, seconds: float, batch_size: int) -> None:
        """NashConv on Leduc against training time: first asynccfr, then OpenSpiel."""
        import openspiel_ours
        from openspiel_peer import nash_conv_curve

        marks = [seconds * (index + 1) / MARKS for index in range(MARKS)]
        settings = "leduc" if "leduc" in presets() else None
        config = load_config(settings, {"run.iterations": 10**9, "run.device": "cpu"})
        threads = config.training.threads or self.our_threads
        config = load_config(
            settings,
            {
                "run.iterations": 10**9,
                "run.max_minutes": None,
                "run.device": "cpu",
                "training.threads": threads,
                "evaluation.eval_every": 0,
            },
        )
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            ours = runner.run(openspiel_ours.nash_conv_curve(config, marks, _tell))
        game = _open_spiel_game("leduc_poker")
        states = enumerate_information_states(game, config.evaluation.max_histories)
        peer_threads = self._faster_threads(game, batch_size)
        torch.set_num_threads(peer_threads)
        peer = self._leduc_peer(game, batch_size)
        theirs = nash_conv_curve(peer, game, states, marks, _tell)
        for who, count, points in ((OURS, threads, ours), (PEER, peer_threads, theirs)):
            for iteration, clock, value in points:
                row = {
                    "part": "nash_conv",
                    "who": who,
                    "threads": count,
                    "settings": (settings or "defaults") if who == OURS else "as `iteration`",
                    "iteration": iteration,
                    "training_seconds": clock,
                }
                self._add(row, "NashConv", Spread.of([value]))
        self.ratios["nash_conv_300s"] = theirs[-1][2] / ours[-1][2]

    def _leduc_config(self, batch_size: int) -> Config:
        return load_config(
            None,
            {
                "run.iterations": 1_000,
                "run.device": "cpu",
                "game.name": "leduc_poker",
                "network.hidden_size": 64,
                "network.num_layers": 3,
                "traversal.traversals_per_player": self.traversals,
                "advantage.train_steps": self.steps,
                "advantage.batch_size": batch_size,
                "advantage.memory_capacity": self.rows,
                "strategy.memory_capacity": self.rows,
                "training.threads": self.our_threads,
                "evaluation.eval_every": 0,
            },
        )

    def _leduc_peer(self, game: OpenSpielGame, batch_size: int, share: int = 1) -> "Peer":
        """What `_leduc_config` sets, or one part in `share` of an iteration's work."""
        from openspiel_peer import Peer

        return Peer(
            game,
            (64, 64, 64),
            traversals=max(1, self.traversals // share),
            train_steps=max(1, self.steps // share),
            batch_size=batch_size,
            rows=self.rows,
            strategy_steps=STRATEGY_STEPS_PER_STEP * self.steps,
        )

    def _faster_threads(self, game: OpenSpielGame, batch_size: int) -> int:
        """The number of torch threads at which the peer's iterations are faster."""
        import openspiel_ours
        from openspiel_peer import THREADS

        peer = self._leduc_peer(game, batch_size, share=15)
        peer.fill(*openspiel_ours.sampled_rows(game, self.rows))
        variants = {
            threads: _with_threads(threads, lambda: peer.iterate().total) for threads in THREADS
        }
        seconds = _spreads(
            interleave({_threads(count): run for count, run in variants.items()}, repeats=3)
        )
        return min(THREADS, key=lambda count: seconds[_threads(count)].median)
