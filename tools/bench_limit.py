"""How near traversal comes to the limits of its two halves, and where one decision's time goes.

    python tools/bench_limit.py [--games leduc_poker,fhp] [--rounds 5] [--json FILE]

Two bounds hold whatever the batching does: the event loop's, measured with an inferer that has no
network, and the forward's, measured by answering batches of the size that the pipeline saw, one
after the other, on one thread. `efficiency` is what the pipeline reaches over the lower of the two.
The policy cache is off throughout.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated

import torch
import typer
from common import (
    JsonOption,
    Spread,
    print_table,
    random_network,
    require_writable,
    run_command,
    write_json,
)
from torch import nn

from asynccfr import Game, load_config, load_game
from asynccfr.event_loop import collect_garbage, run, tuned_interpreter
from asynccfr.games.base import EncodeBytes, LegalMasks, bytes_encoder, stack_encodings
from asynccfr.inference import BatchingInferer, Inferer
from asynccfr.inference.doubles import UniformInferer
from asynccfr.inference.engines import EagerEngine, resolve_precision
from asynccfr.inference.heads import regret_matching
from asynccfr.preflight import utility_scale
from asynccfr.torch_threads import use_threads
from asynccfr.traversal.external_sampling import Infer, Rows, sample_action, traverse
from asynccfr.traversal.runner import TraversalTask, run_traversals

GAMES = {"leduc_poker": 4_000, "liars_dice": 1_000, "fhp": 4_000}
"""Traversals in a round, enough for start and tail to be a small part of it."""


@dataclass(frozen=True)
class Bench:
    """One game with everything that its measurements share."""

    game: Game
    task: TraversalTask
    engine: EagerEngine
    networks: dict[str, nn.Module]
    concurrency: int
    max_batch: int

    @classmethod
    def of(cls, name: str, traversals: int, overrides: list[str]) -> "Bench":
        """Networks of 3 x 512 unless overridden, with random last layers."""
        config = load_config(
            None,
            [
                "network.hidden_size=512",
                "traversal.concurrency=1024",
                *overrides,
                f"game.name={name}",
            ],
        )
        game = load_game(name)
        names = tuple(f"advantage/{player}" for player in range(game.num_players))
        networks: dict[str, nn.Module] = {}
        for seed, network_name in enumerate(names):
            generator = torch.Generator().manual_seed(seed)
            networks[network_name] = random_network(game, config.network, generator)
        device = torch.device("cpu")
        precision = resolve_precision(
            config.inference.precision, device, config.network.hidden_size
        )
        scale = utility_scale(config, game)
        task = TraversalTask(0, 1, 0, range(traversals), names, scale)
        return cls(
            game,
            task,
            EagerEngine(device, precision),
            networks,
            config.traversal.concurrency,
            config.inference.max_batch,
        )

    async def traversal_rate(self, inferer: Inferer) -> float:
        """Decision nodes per second of the whole task, answered by `inferer`."""
        for name, network in self.networks.items():
            inferer.load(name, network, regret_matching)
        result = await run_traversals(self.game, inferer, self.task, concurrency=self.concurrency)
        collect_garbage()
        return result.decision_nodes / result.seconds

    def forward_rate(self, rows: Sequence[tuple[bytes, tuple[int, ...]]], batch: int) -> float:
        """Rows per second through stacking, forward, regret matching and unpacking."""
        masks = LegalMasks(self.game.num_actions)
        name, network = next(iter(self.networks.items()))
        self.engine.load(name, network)
        answered, started = 0, perf_counter()
        while answered < 30_000:
            for start in range(0, len(rows) - batch + 1, batch):
                encodings, legals = zip(*rows[start : start + batch], strict=True)
                stacked = stack_encodings(encodings, self.game.encoding_size)
                outputs = self.engine.forward(name, stacked)
                answered += len(regret_matching(outputs, masks.stack(legals)).tolist())
        return answered / (perf_counter() - started)


def bench_limit(
    games: Annotated[str, typer.Option(help="Comma-separated.")] = "leduc_poker,fhp",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which medians are taken.")] = 5,
    traversals: Annotated[
        int | None, typer.Option(min=1, help="Traversals in a round, if not the game's own.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override one setting; may be repeated.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Measure the loop's bound, the forward's bound, the pipeline, and one decision's parts."""
    require_writable(json)
    rows, ratios = [], {}
    for name in games.split(","):
        bench = Bench.of(name, traversals or GAMES.get(name, 1_000), overrides or [])
        bounds, parts = run(_measure(bench, rounds))
        row = {"game": name, "precision": bench.engine.precision, **bounds}
        loop, forward, reached = (
            row[key].median for key in ("loop nodes/s", "forward rows/s", "pipeline nodes/s")
        )
        ratios[f"efficiency/{name}"] = reached / min(loop, forward)
        rows.append({**row, "efficiency": ratios[f"efficiency/{name}"]})
        print_table(f"{name}: one decision, us on the event loop", [parts])
        rows[-1] |= {f"{part} us": value for part, value in parts.items()}
    print_table(
        "the loop's bound, the forward's bound, the pipeline: median (min-max)",
        [{key: value for key, value in row.items() if not key.endswith(" us")} for row in rows],
    )
    write_json(json, rows, ratios)


async def _measure(bench: Bench, rounds: int) -> tuple[dict[str, object], dict[str, float]]:
    loop_rates, pipeline_rates, forward_rates = [], [], []
    parts: dict[str, list[float]] = {}
    mean_batch = 0.0
    requests = await _requests(bench)
    with tuned_interpreter():
        for number in range(rounds + 1):
            loop_rate = await bench.traversal_rate(UniformInferer(bench.game.num_actions))
            async with BatchingInferer(
                bench.engine,
                encoding_size=bench.game.encoding_size,
                num_actions=bench.game.num_actions,
                max_batch=bench.max_batch,
                max_wait_us=20_000,
            ) as inferer:
                pipeline_rate = await bench.traversal_rate(inferer)
                mean_batch = inferer.statistics().mean_batch
            before = torch.get_num_threads()
            use_threads(1)
            forward_rate = bench.forward_rate(requests, max(1, round(mean_batch)))
            use_threads(before)
            measured = await _parts(bench)
            measured["policy (inference thread)"] = 1e6 / forward_rate
            if number:  # The first round warms caches and compiles kernels.
                loop_rates.append(loop_rate)
                pipeline_rates.append(pipeline_rate)
                forward_rates.append(forward_rate)
                for part, value in measured.items():
                    parts.setdefault(part, []).append(value)
    bounds: dict[str, object] = {
        "loop nodes/s": Spread.of(loop_rates),
        "forward rows/s": Spread.of(forward_rates),
        "mean batch": mean_batch,
        "pipeline nodes/s": Spread.of(pipeline_rates),
    }
    return bounds, {part: Spread.of(values).median for part, values in parts.items()}


async def _requests(bench: Bench) -> list[tuple[bytes, tuple[int, ...]]]:
    """Some thousands of the requests that traversals make."""
    seen: list[tuple[bytes, tuple[int, ...]]] = []
    uniform = UniformInferer(bench.game.num_actions)

    def infer(network: str, encoding: bytes, legal: tuple[int, ...]) -> Awaitable[list[float]]:
        seen.append((encoding, legal))
        return uniform.infer(network, encoding, legal)

    while len(seen) < 4_096:
        await _traversals(bench, infer, bytes_encoder(bench.game), Rows, limit=200)
    return seen


class _Forgetful(list[object]):
    """A list that stores nothing, to see what storing costs."""

    def append(self, item: object) -> None:
        pass


async def _parts(bench: Bench) -> dict[str, float]:
    """Microseconds of one decision by part: each part is left out in turn, and missed."""
    policies: dict[tuple[int, ...], list[float]] = {}

    def policy(legal: tuple[int, ...]) -> list[float]:
        if legal not in policies:
            policies[legal] = [
                1 / len(legal) if action in legal else 0.0
                for action in range(bench.game.num_actions)
            ]
        return policies[legal]

    async def at_once(network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        return policy(legal)

    encode = bytes_encoder(bench.game)
    suspending = UniformInferer(bench.game.num_actions).infer
    whole = await _traversals(bench, suspending, encode, Rows)
    no_wait = await _traversals(bench, at_once, encode, Rows)
    no_encoding = await _traversals(bench, at_once, lambda state, player: b"", Rows)
    no_storing = await _traversals(
        bench,
        at_once,
        encode,
        lambda: Rows(_Forgetful(), _Forgetful()),  # type: ignore[arg-type]
    )
    legal = tuple(range(min(3, bench.game.num_actions)))
    started = perf_counter()
    for number in range(20_000):
        sample_action(legal, policy(legal), number / 20_000)
    sampling = (perf_counter() - started) / 20_000 * 1e6
    encoding, storing = no_wait - no_encoding, no_wait - no_storing
    return {
        "whole": whole,
        "awaiting": whole - no_wait,
        "encoding": encoding,
        "storing": storing,
        "sampling an action": sampling,
        "state calls and the rest": no_wait - encoding - storing - sampling,
    }


async def _traversals(
    bench: Bench,
    infer: Infer,
    encode: EncodeBytes,
    new_rows: Callable[[], Rows],
    limit: int | None = None,
) -> float:
    """Microseconds per decision node of the task's traversals, without the runner's packing."""
    nodes = 0
    indices = iter(bench.task.indices[:limit])

    async def counted(network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        nonlocal nodes
        nodes += 1
        return await infer(network, encoding, legal)

    async def work(ask: Infer) -> None:
        for index in indices:
            await traverse(
                bench.game.new_initial_state(),
                bench.task.traverser,
                bench.task.networks,
                ask,
                encode,
                bench.task.generator(index),
                bench.task.utility_scale,
                new_rows(),
            )

    started = perf_counter()
    await asyncio.gather(*(work(infer) for _ in range(bench.concurrency)))
    seconds = perf_counter() - started
    if limit is not None:
        return 0.0
    # Counting costs time of its own, so it has a run of its own, which draws the same trees.
    indices = iter(bench.task.indices)
    await asyncio.gather(*(work(counted) for _ in range(bench.concurrency)))
    collect_garbage()
    return seconds / nodes * 1e6


if __name__ == "__main__":
    run_command(bench_limit)
