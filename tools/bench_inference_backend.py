"""`local` against `async`: the same training, one forward a request or many requests a forward.

    python tools/bench_inference_backend.py --settings kuhn
    python tools/bench_inference_backend.py --settings remote \\
        --set traversal.traversals_per_player=200 --set advantage.train_steps=10 \\
        --set strategy.train_steps=10

Both trainers have the same seed and settings, the policy cache included, and live in one process.
They take turns iteration by iteration, so whatever else the machine does meets both alike.
Nothing is evaluated; the last iteration ends with one strategy fit, which is shown by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import typer
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

from asynccfr import Config, InputError, Trainer, event_loop, load_config
from asynccfr.inference.engines import computes_bfloat16, resolve_precision
from asynccfr.preflight import available_cores
from asynccfr.torch_threads import use_threads

BACKENDS = ("local", "async")

QUANTITIES = {
    "iteration": "s",
    "traversal": "s",
    "advantage fit": "s",
    "strategy fit": "s",
    "memory add": "s",
    "batch building": "s",
    "policy network": "s",
    "decision nodes": "",
    "decision node rate": "1/s",
    "mean batch": "rows",
}
"""What is shown for each iteration, and its unit."""

DECIDED = {"inference.backend", "run.iterations"}

REPORTED_RATIOS = ("traversal", "iteration", "advantage fit", "memory add")

Metrics = Mapping[str, Any]


def main(
    settings: SettingsOption = None,
    overrides: OverridesOption = None,
    iterations: Annotated[
        int, typer.Option(help="Iterations measured for each backend.", min=2)
    ] = 5,
    warmup: Annotated[int, typer.Option(help="Iterations before those.", min=0)] = 1,
    json_file: JsonOption = None,
) -> None:
    """Compare the inference backends, iteration by iteration, from one seed."""
    require_writable(json_file)
    configs = {
        backend: backend_config(settings, overrides or [], backend, warmup + iterations)
        for backend in BACKENDS
    }
    trainers = {backend: Trainer(config) for backend, config in configs.items()}
    reports = event_loop.run(take_turns(trainers, warmup + iterations))
    measured = {backend: reports[backend][warmup:] for backend in BACKENDS}
    spreads = {backend: quantities(measured[backend]) for backend in BACKENDS}
    rows = [
        compared(name, *(spreads[backend][name] for backend in BACKENDS)) for name in QUANTITIES
    ]
    print_table(title(trainers["async"], measured, warmup), rows)
    print(
        "Medians (min-max) of an iteration, all players together; the iteration without its\n"
        "strategy fit, of which there is one, in the last. Times faster: above 1 async is faster.\n"
        "The policy network's time is on a thread beside the traversal's in async, and inside\n"
        "the traversal in local."
    )
    ratios = {row["quantity"]: row["times faster"] for row in rows}
    write_json(json_file, rows, {name.replace(" ", "_"): ratios[name] for name in REPORTED_RATIOS})


def backend_config(
    settings: str | None, overrides: Sequence[str], backend: str, iterations: int
) -> Config:
    """The settings to compare under, with what this comparison decides by itself."""
    for key in {override.partition("=")[0].strip() for override in overrides} & DECIDED:
        raise InputError(
            f"leave out {key!r}: both backends run, for --warmup and --iterations iterations"
        )
    decided = [
        f"inference.backend={backend}",
        f"run.iterations={iterations}",
        "run.max_minutes=null",
        "evaluation.eval_every=0",
        "evaluation.exact=false",
    ]
    return load_config(settings, [*overrides, *decided])


async def take_turns(trainers: Mapping[str, Trainer], iterations: int) -> dict[str, list[Metrics]]:
    """Every trainer's metrics, the trainers advancing by one iteration in turn.

    Two trainers alive at once share this thread's number of torch threads, which a local inferer
    sets as it starts: so each finds here what it left. The interpreter is tuned once around both;
    otherwise the one that ends first would switch garbage collection on for the other.
    """
    runs = {name: aiter(trainer) for name, trainer in trainers.items()}
    threads = dict.fromkeys(trainers, torch.get_num_threads())
    reports: dict[str, list[Metrics]] = {name: [] for name in trainers}

    async def advance(name: str) -> None:
        use_threads(threads[name])
        report = await anext(runs[name], None)
        if report is not None:
            reports[name].append(report.metrics)
        threads[name] = torch.get_num_threads()

    with event_loop.tuned_interpreter():
        for number in range(iterations):
            for name in runs:
                typer.echo(f"iteration {number + 1}/{iterations}: {name}", err=True)
                await advance(name)
        for name in runs:  # Past the last iteration: closes the inferer.
            await advance(name)
    return reports


def quantities(measured: Sequence[Metrics]) -> dict[str, Spread]:
    """Quantity -> its spread over one backend's iterations, of which the last fits the strategy."""

    def spread(key: str, iterations: Sequence[Metrics] = measured) -> Spread:
        return Spread.of([metrics[key] for metrics in iterations])

    last = measured[-1]
    iteration_seconds = [
        metrics["iteration_seconds"]
        - metrics["strategy_train_seconds"]
        - metrics["evaluation_seconds"]
        for metrics in measured
    ]
    return {
        "iteration": Spread.of(iteration_seconds),
        "traversal": spread("traversal_seconds"),
        "advantage fit": spread("advantage_train_seconds"),
        "strategy fit": spread("strategy_train_seconds", [last]),
        "memory add": spread("memory_add_seconds"),
        # The last iteration's includes the strategy fit's batches.
        "batch building": spread("batch_tensor_seconds", measured[:-1]),
        "policy network": spread("policy_network_seconds"),
        "decision nodes": spread("decision_nodes"),
        "decision node rate": spread("decision_nodes_per_second"),
        "mean batch": Spread.of([metrics["inference"]["mean_batch"] for metrics in measured]),
    }


def compared(name: str, local: Spread, batched: Spread) -> dict[str, Any]:
    """One quantity of both backends; how many times faster async is, where that makes sense."""
    unit = QUANTITIES[name]
    over, under = (local, batched) if unit == "s" else (batched, local)
    timed = unit in {"s", "1/s"} and under.median > 0
    return {
        "quantity": name,
        "unit": unit,
        "local": local,
        "async": batched,
        "times faster": over.median / under.median if timed else None,
    }


def title(trainer: Trainer, measured: Mapping[str, Sequence[Metrics]], warmup: int) -> str:
    """What was compared: the game, the network, the arithmetic and the threads."""
    config, device = trainer.config, trainer.device
    network, inference, training = config.network, config.inference, config.training
    precision = resolve_precision(inference.precision, device, network.hidden_size)
    amp = training.amp == "bf16" or (training.amp == "auto" and computes_bfloat16(device))
    threads = {backend: measured[backend][-1]["inference"]["threads"] for backend in BACKENDS}
    return (
        f"{config.game.name} on {device.type}, {network.num_layers} x {network.hidden_size}, "
        f"{config.traversal.traversals_per_player:,} traversals a player, seed {config.run.seed}\n"
        f"forwards: {precision}, torch threads {threads['local']} local, {threads['async']} async, "
        f"cache {inference.cache}\n"
        f"fits: {'bfloat16 autocast' if amp else 'float32'}, "
        f"torch threads {training.threads or available_cores()}; "
        f"{len(measured['local'])} iterations after {warmup} of warm-up"
    )


if __name__ == "__main__":
    run_command(main)
