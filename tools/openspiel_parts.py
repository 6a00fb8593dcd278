"""The four parts of the comparison with OpenSpiel's Deep CFR; each gives rows and ratios."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import openspiel_ours as ours
import torch
from common import Spread, interleave
from openspiel_peer import Peer, nash_conv_curve

from asynccfr import Config, load_config, load_game
from asynccfr.config import FitSettings, InferenceSettings, NetworkSettings
from asynccfr.errors import GameError
from asynccfr.evaluation.exact import enumerate_information_states
from asynccfr.event_loop import new_event_loop
from asynccfr.games.openspiel import OpenSpielGame
from asynccfr.inference.engines import computes_bfloat16
from asynccfr.preflight import available_cores

PEER_THREADS = (1, 2)
"""The torch threads that the peer is tried with; the better of them counts."""

OUR_FIT_THREADS = min(2, available_cores())
"""Torch threads of our fits: no more than the peer is tried with."""

FIT_STEPS = 100
"""Most steps of a fit where a single step is what is asked for."""

MARKS = 6
"""Evaluations of each learning curve, equally far apart."""

Row = dict[str, Any]
Ratios = dict[str, float]


@dataclass(frozen=True)
class Work:
    """What both sides do alike.

    Attributes:
        rows: what each memory holds at most, and holds from the start where only speed counts.
        traversals: a player and iteration.
        steps: training steps in an advantage fit.
        batch_size: rows in a training batch.
    """

    rows: int = 1_000_000
    traversals: int = 1_500
    steps: int = 750
    batch_size: int = 2_048

    def peer(self, game: OpenSpielGame, width: int, share: int = 1) -> Peer:
        """OpenSpiel's solver for this work, or for one part in `share` of each iteration's."""
        return Peer(
            game,
            (width,) * 3,
            traversals=max(1, self.traversals // share),
            train_steps=max(1, self.steps // share),
            batch_size=self.batch_size,
            rows=self.rows,
            strategy_steps=4 * self.steps,
        )

    def config(self) -> Config:
        """Our settings for this work on Leduc; what is left out keeps its default."""
        return load_config(
            None,
            {
                "run.device": "cpu",
                "game.name": "leduc_poker",
                "network.hidden_size": 64,
                "network.num_layers": 3,
                "traversal.traversals_per_player": self.traversals,
                "advantage.train_steps": self.steps,
                "advantage.batch_size": self.batch_size,
                "advantage.memory_capacity": self.rows,
                "strategy.memory_capacity": self.rows,
                "training.threads": OUR_FIT_THREADS,
                "evaluation.eval_every": 0,
            },
        )


@dataclass(frozen=True)
class Variant:
    """One of the things that take turns.

    Attributes:
        about: tells its rows from the others'; `who` and `torch_threads` at least.
        run: one measurement, measure -> value.
    """

    about: Row
    run: Callable[[], dict[str, float]]


def traversal_part(
    game_name: str, *, seconds: float, traversals: int, concurrency: int, repeats: int
) -> tuple[list[Row], Ratios]:
    """Policy calls (visits to decision nodes) per second, with networks of 3 x 512.

    Our event loop takes one more thread than the rows say, which are about torch alone.
    """
    game = open_spiel_game(game_name)
    peer = Peer(game, (512, 512, 512))
    measure = "policy calls/s"

    def peer_round() -> dict[str, float]:
        return {measure: peer.traversal_rate(seconds)}

    part = {"part": "traversal", "game": game_name}
    variants = [Variant({**part, **_openspiel(threads)}, peer_round) for threads in PEER_THREADS]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sides = []
        for precision in ("float32", "bfloat16"):
            for cache in ("off", "auto"):
                side = ours.Traversals(
                    runner,
                    game,
                    NetworkSettings(hidden_size=512, num_layers=3),
                    InferenceSettings(precision=precision, cache=cache, threads=1),
                    traversals=traversals,
                    concurrency=concurrency,
                )
                sides.append(side)

                def our_round(side: ours.Traversals = side) -> dict[str, float]:
                    rate, batch, hits = side.rate(seconds)
                    return {measure: rate, "rows/forward": batch, "hit share": hits}

                about = {
                    "who": "asynccfr",
                    "torch_threads": 1,
                    "precision": precision,
                    "cache": cache,
                }
                variants.append(Variant({**part, **about}, our_round))
        rows = measured(variants, repeats)
        for side in sides:
            side.close()
    best = max(row["median"] for row in rows if row["who"] == "OpenSpiel")
    return rows, {
        f"traversal/{game_name}/{row['precision']}/{row['cache']}": row["median"] / best
        for row in rows
        if row["who"] == "asynccfr" and row["measure"] == measure
    }


def fit_part(work: Work, *, repeats: int) -> tuple[list[Row], Ratios]:
    """Seconds of one step of an advantage fit on Leduc, at two sizes of network."""
    work = replace(work, steps=min(work.steps, FIT_STEPS))
    game = open_spiel_game("leduc_poker")
    advantages, strategies = ours.sampled_rows(game, work.rows)
    memory = ours.filled_reservoir(advantages[0])
    settings = FitSettings(train_steps=work.steps, batch_size=work.batch_size)
    rows: list[Row] = []
    ratios: Ratios = {}
    for width in (64, 512):
        peer = work.peer(game, width)
        peer.fill(advantages, strategies)
        network = NetworkSettings(hidden_size=width, num_layers=3)

        def peer_fit(peer: Peer = peer) -> dict[str, float]:
            return {"s/step": peer.seconds_per_fit_step()}

        def our_fit(amp: bool, network: NetworkSettings = network) -> dict[str, float]:
            seconds = ours.seconds_per_fit_step(memory, game, network, settings, amp)
            return {"s/step": seconds}

        part = {"part": "fit", "network": f"3 x {width}"}
        variants = [Variant({**part, **_openspiel(threads)}, peer_fit) for threads in PEER_THREADS]
        us = {**part, "who": "asynccfr", "torch_threads": OUR_FIT_THREADS}
        variants += [
            Variant({**us, "precision": "float32"}, partial(our_fit, False)),
            Variant({**us, "precision": "bfloat16"}, partial(our_fit, True)),
        ]
        found = measured(variants, repeats)
        best = min(row["median"] for row in found if row["who"] == "OpenSpiel")
        for row in found:
            if row["who"] == "asynccfr":
                ratios[f"fit_step/3x{width}/{row['precision']}"] = best / row["median"]
        rows += found
    # The plain name is the network of the whole iteration, in the peer's arithmetic.
    return rows, {"fit_step": ratios["fit_step/3x64/float32"], **ratios}


def iteration_part(work: Work, *, repeats: int) -> tuple[list[Row], Ratios]:
    """Seconds of one whole Leduc iteration without a strategy fit, from full memories."""
    game = open_spiel_game("leduc_poker")
    blocks = ours.sampled_rows(game, work.rows)
    peer = work.peer(game, 64)
    peer.fill(*blocks)
    config = work.config()

    def peer_iteration() -> dict[str, float]:
        took = peer.iterate()
        return _phases(took.total, took.traversal, took.fit)

    def our_iteration() -> dict[str, float]:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            metrics = runner.run(ours.second_iteration(config, *blocks))
        return _phases(
            metrics["iteration_seconds"],
            metrics["traversal_seconds"] + metrics["memory_add_seconds"],
            metrics["advantage_train_seconds"],
        )

    part = {"part": "iteration", "game": "leduc_poker"}
    variants = [
        Variant({**part, **_openspiel(threads)}, peer_iteration) for threads in PEER_THREADS
    ]
    us = {"who": "asynccfr", "torch_threads": OUR_FIT_THREADS, "precision": _fit_precision(config)}
    variants.append(Variant({**part, **us}, our_iteration))
    rows = measured(variants, repeats)
    whole = [row for row in rows if row["measure"] == "s/iteration"]
    best = min(row["median"] for row in whole if row["who"] == "OpenSpiel")
    (own,) = [row["median"] for row in whole if row["who"] == "asynccfr"]
    return rows, {"iteration": best / own}


def _phases(total: float, traversal: float, fits: float) -> dict[str, float]:
    return {
        "s/iteration": total,
        "s/iteration, traversal": traversal,
        "s/iteration, fits": fits,
    }


def nash_conv_part(work: Work, settings: str | None, *, seconds: float) -> tuple[list[Row], Ratios]:
    """NashConv on Leduc against training time: first asynccfr's curve, then OpenSpiel's.

    asynccfr trains by `settings`; OpenSpiel does `work` at a learning rate of 1e-3.
    """
    marks = [seconds * (index + 1) / MARKS for index in range(MARKS)]
    threads = load_config(settings).training.threads or OUR_FIT_THREADS
    config = load_config(
        settings,
        {
            "run.iterations": 10**9,
            "run.max_minutes": None,
            "run.device": "cpu",
            "game.name": "leduc_poker",
            "training.threads": threads,
            "evaluation.eval_every": 0,
        },
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        own = runner.run(ours.nash_conv_curve(config, marks, _tell))

    game = open_spiel_game("leduc_poker")
    states = enumerate_information_states(game, config.evaluation.max_histories)
    peer_threads = _faster_threads(work, game)
    torch.set_num_threads(peer_threads)
    theirs = nash_conv_curve(work.peer(game, 64), game, states, marks, _tell)

    us = {"who": "asynccfr", "torch_threads": threads, "precision": _fit_precision(config)}
    rows = []
    for who, points in ((us, own), (_openspiel(peer_threads), theirs)):
        for iteration, clock, value in points:
            about = {"part": "nash_conv", "game": "leduc_poker", **who}
            when = {"iteration": iteration, "seconds": clock}
            rows.append({**about, **when, **_figures("NashConv", [value])})
    return rows, {"nash_conv_300s": theirs[-1][2] / own[-1][2]}


def _faster_threads(work: Work, game: OpenSpielGame) -> int:
    """The torch threads at which the peer iterates faster, told by a fifteenth of the work."""
    peer = work.peer(game, 64, share=15)
    peer.fill(*ours.sampled_rows(game, work.rows))
    variants = [
        Variant(_openspiel(threads), lambda: {"s": peer.iterate().total})
        for threads in PEER_THREADS
    ]
    fastest = min(measured(variants, repeats=3), key=lambda row: row["median"])
    threads: int = fastest["torch_threads"]
    return threads


def _openspiel(threads: int) -> Row:
    return {"who": "OpenSpiel", "torch_threads": threads, "precision": "float32"}


def _fit_precision(config: Config) -> str:
    """The precision of the forwards in our fits; a trainer decides alike."""
    amp = config.training.amp
    on = computes_bfloat16(torch.device("cpu")) if amp == "auto" else amp == "bf16"
    return "bfloat16" if on else "float32"


def measured(variants: Sequence[Variant], repeats: int) -> list[Row]:
    """Runs the variants in turn; one row for each measure of each."""

    def with_threads(variant: Variant) -> dict[str, float]:
        torch.set_num_threads(variant.about["torch_threads"])
        return variant.run()

    named = {", ".join(map(str, variant.about.values())): variant for variant in variants}
    runs = {name: partial(with_threads, variant) for name, variant in named.items()}
    results = interleave(runs, repeats)
    return [
        {**named[name].about, **_figures(measure, [found[measure] for found in outcomes])}
        for name, outcomes in results.items()
        for measure in outcomes[0]
    ]


def _figures(measure: str, values: Sequence[float]) -> Row:
    spread = Spread.of(values)
    return {
        "measure": measure,
        "median": spread.median,
        "min": spread.minimum,
        "max": spread.maximum,
    }


def open_spiel_game(name: str) -> OpenSpielGame:
    """The game that both sides play.

    Raises:
        GameError: for what is no game of OpenSpiel.
    """
    game = load_game(name)
    if not isinstance(game, OpenSpielGame):
        raise GameError(f"{name!r} is not a game of OpenSpiel, which cannot play it; drop it")
    return game


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
