"""The training loop of Deep CFR."""

import asyncio
import copy
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

from asynccfr import preflight
from asynccfr.config import Config
from asynccfr.errors import NotEnumerableError
from asynccfr.evaluation.exact import (
    ExactEvaluation,
    InformationStates,
    enumerate_information_states,
    evaluate_exactly,
)
from asynccfr.event_loop import collect_garbage, tuned_interpreter
from asynccfr.fitting import FitReport, advantage_loss, fit, strategy_loss
from asynccfr.games.base import Game
from asynccfr.games.checks import blame, require_playable
from asynccfr.games.registry import load_game
from asynccfr.inference import Inferer, new_inferer
from asynccfr.inference.engines import computes_bfloat16
from asynccfr.inference.heads import regret_matching
from asynccfr.memory import Reservoir
from asynccfr.metrics import IterationMetrics, IterationReport
from asynccfr.networks import ActionNetwork, new_network
from asynccfr.policy import AveragePolicy, new_strategy_network, strategy_encoding_size
from asynccfr.seeding import Purpose, numpy_generator, torch_generator
from asynccfr.torch_threads import use_threads
from asynccfr.traversal.runner import TraversalResult, TraversalTask, run_traversals

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        policy: the average policy.
        reports: every iteration's report.
        evaluation: exact evaluation of `policy`, where the game is small enough.
        note: why there is no exact evaluation, or an empty string.
    """

    policy: AveragePolicy
    reports: list[IterationReport]
    evaluation: ExactEvaluation | None
    note: str


class Observer(Protocol):
    """Is told how a run goes on; every method is called on the event loop and must be quick."""

    def on_traversal(self, iteration: int, player: int, done: int, total: int) -> None:
        """One more traversal of (iteration, player) is done."""

    def on_phase(self, iteration: int, phase: str) -> None:
        """A phase begins: `traverse`, `fit advantage`, `fit strategy` or `evaluate`."""

    def on_report(self, report: IterationReport) -> None:
        """An iteration is complete."""


class Trainer:
    """Trains the average policy of one game by external-sampling Deep CFR.

    `await Trainer(config).run()`, or `async for report in Trainer(config)` to follow each
    iteration; `policy` then holds what was learned. Works in any running event loop, fits run on
    a thread of their own. Cancelling the task ends a fit between two steps.

    Source: arXiv 1811.00164, Algorithm 1.

    Args:
        config: every setting.
        game: what to play, if not what `config.game.name` loads; a policy that is saved loads
            again where `load_game(game.name)` makes the same game.
        observer: is told about progress.

    Raises:
        InputError: for anything that can be known to fail before the first iteration.
    """

    def __init__(
        self, config: Config, *, game: Game | None = None, observer: Observer | None = None
    ) -> None:
        if game is not None:  # So that a saved policy names the game that it plays.
            named = config.game.model_copy(update={"name": game.name})
            config = config.model_copy(update={"game": named})
        self.config = config
        self.game = game or load_game(config.game.name, config.game.encoding)
        require_playable(self.game)
        self.device = preflight.resolve_device(config.run.device)
        preflight.check_memory(config, self.game)
        self.policy: AveragePolicy | None = None
        """The latest fitted average policy."""
        self._evaluation: ExactEvaluation | None = None
        self.reports: list[IterationReport] = []
        self.note = ""
        """Why there is no exact evaluation, or an empty string."""
        self._observer = observer
        self._utility_scale = preflight.utility_scale(config, self.game)
        self._players = range(self.game.num_players)
        self._names = tuple(f"advantage/{player}" for player in self._players)
        self._networks = [self._new_advantage_network(0, player) for player in self._players]
        self._advantage_memories = [
            Reservoir(
                config.advantage.memory_capacity,
                self.game.encoding_size,
                self.game.num_actions,
                numpy_generator(config.run.seed, Purpose.ADVANTAGE_RESERVOIR, player),
            )
            for player in self._players
        ]
        self._strategy_memory = Reservoir(
            config.strategy.memory_capacity,
            strategy_encoding_size(self.game),
            self.game.num_actions,
            numpy_generator(config.run.seed, Purpose.STRATEGY_RESERVOIR),
        )
        amp = config.training.amp
        self._amp = computes_bfloat16(self.device) if amp == "auto" else amp == "bf16"
        self._head = partial(regret_matching, fallback=config.advantage.fallback)
        self._information_states: InformationStates | None = None
        self._inferer: Inferer
        self._fit_thread: ThreadPoolExecutor
        self._started = 0.0
        self._used = False

    async def run(self) -> TrainingResult:
        """Every iteration, then the result."""
        async for _ in self:
            pass
        return self.result()

    def result(self) -> TrainingResult:
        """What the finished run reached.

        Raises:
            RuntimeError: where no policy has been fitted yet.
        """
        if self.policy is None:
            raise RuntimeError("the run has not reached its first evaluation")
        return TrainingResult(self.policy, self.reports, self._evaluation, self.note)

    async def __aiter__(self) -> AsyncGenerator[IterationReport, None]:
        if self._used:
            raise RuntimeError("a trainer trains once; make a new one")
        self._used = True
        self._started = perf_counter()
        async with AsyncExitStack() as stack:
            stack.enter_context(tuned_interpreter())
            self._fit_thread = stack.enter_context(ThreadPoolExecutor(1, "asynccfr-fit"))
            self._inferer = new_inferer(
                self.config.inference, self.game, self.device, self.config.network.hidden_size
            )
            stack.push_async_callback(self._inferer.aclose)
            for player in self._players:
                self._inferer.load(self._names[player], self._networks[player], self._head)
            t, last = 0, False
            while not last:
                t += 1
                report, last = await self._iteration(t)
                self.reports.append(report)
                if self._observer is not None:
                    self._observer.on_report(report)
                yield report
                collect_garbage()

    async def _iteration(self, t: int) -> tuple[IterationReport, bool]:
        started = perf_counter()
        metrics = IterationMetrics()
        self._inferer.reset_statistics()
        for player in self._players:
            samples = await self._traverse(t, player)
            metrics.add_traversals(samples)

            adding = perf_counter()
            self._advantage_memories[player].add(samples.advantages, t)
            self._strategy_memory.add(samples.strategies, t)
            metrics.memory_add_seconds += perf_counter() - adding

            fitted = await self._fit_advantage(t, player)
            metrics.advantage_fits.append(fitted)
            self._inferer.load(self._names[player], self._networks[player], self._head)
        metrics.inference = self._inferer.statistics()

        every = self.config.evaluation.eval_every
        due = bool(every) and t % every == 0
        last = t == self.config.run.iterations or self._out_of_time(started, due, metrics)
        if last or due:
            policy, metrics.strategy_fit = await self._fit_strategy(t)
            evaluating = perf_counter()
            metrics.evaluation = await self._evaluate(t, policy)
            metrics.evaluation_seconds = perf_counter() - evaluating
            self.policy, self._evaluation = policy, metrics.evaluation
        now = perf_counter()
        return metrics.report(t, now - started, now - self._started), last

    async def _traverse(self, t: int, player: int) -> TraversalResult:
        settings = self.config.traversal
        total = settings.traversals_per_player
        task = TraversalTask(
            run_seed=self.config.run.seed,
            iteration=t,
            traverser=player,
            indices=range(total),
            networks=self._names,
            utility_scale=self._utility_scale,
        )
        on_progress: Callable[[int], None] | None = None
        if self._observer is not None:
            self._observer.on_phase(t, "traverse")
            on_traversal = self._observer.on_traversal

            def on_progress(done: int) -> None:
                on_traversal(t, player, done, total)

        return await run_traversals(
            self.game,
            self._inferer,
            task,
            concurrency=settings.concurrency,
            on_progress=on_progress,
        )

    async def _fit_advantage(self, t: int, player: int) -> FitReport:
        self._tell_phase(t, "fit advantage")
        if self.config.advantage.reinitialise:
            network = self._new_advantage_network(t, player)
        else:
            network = copy.deepcopy(self._networks[player])
        report = await self._in_fit_thread(
            partial(
                fit,
                network,
                self._advantage_memories[player],
                advantage_loss,
                self.config.advantage,
                torch_generator(self.config.run.seed, Purpose.ADVANTAGE_BATCHES, t, player),
                amp=self._amp,
            )
        )
        self._networks[player] = network
        return report

    async def _fit_strategy(self, t: int) -> tuple[AveragePolicy, FitReport]:
        self._tell_phase(t, "fit strategy")
        network = new_strategy_network(self.game, self.config.network).to(self.device)
        network.initialise(torch_generator(self.config.run.seed, Purpose.STRATEGY_WEIGHTS, t))
        report = await self._in_fit_thread(
            partial(
                fit,
                network,
                self._strategy_memory,
                strategy_loss,
                self.config.strategy,
                torch_generator(self.config.run.seed, Purpose.STRATEGY_BATCHES, t),
                amp=self._amp,
            )
        )
        return AveragePolicy(self.game, network, self.config, t), report

    async def _evaluate(self, t: int, policy: AveragePolicy) -> ExactEvaluation | None:
        if not self.config.evaluation.exact or self.note:
            return None
        self._tell_phase(t, "evaluate")
        limit = self.config.evaluation.max_histories
        try:
            return await self._in_fit_thread(lambda stop: self._nash_conv(policy, limit))
        except NotEnumerableError as error:
            self.note = str(error)
            return None

    def _nash_conv(self, policy: AveragePolicy, max_histories: int) -> ExactEvaluation:
        with blame(self.game):
            if self._information_states is None:
                self._information_states = enumerate_information_states(self.game, max_histories)
            return evaluate_exactly(self.game, self._information_states, policy.probabilities)

    async def _in_fit_thread(self, work: Callable[..., T]) -> T:
        stop = threading.Event()
        threads = preflight.fit_threads(self.config)

        def job() -> T:
            use_threads(threads)
            return work(stop=stop)

        future = asyncio.get_running_loop().run_in_executor(self._fit_thread, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([future])
            future.exception()
            raise

    def _out_of_time(self, iteration_started: float, due: bool, metrics: IterationMetrics) -> bool:
        """Whether one more iteration and the last evaluation would end after max_minutes."""
        minutes = self.config.run.max_minutes
        if minutes is None:
            return False
        evaluated = [r.metrics for r in self.reports if r.metrics["strategy_train_seconds"]]
        if evaluated:
            last = evaluated[-1]
            evaluation: float = last["strategy_train_seconds"] + last["evaluation_seconds"]
        else:
            advantage, strategy = self.config.advantage, self.config.strategy
            rows = advantage.train_steps * advantage.batch_size
            seconds_a_row = max(fitted.seconds for fitted in metrics.advantage_fits) / rows
            evaluation = seconds_a_row * strategy.train_steps * strategy.batch_size
        now = perf_counter()
        ahead = now - iteration_started + evaluation * (2 if due else 1)
        return now - self._started + ahead > 60.0 * minutes

    def _new_advantage_network(self, t: int, player: int) -> ActionNetwork:
        generator = torch_generator(self.config.run.seed, Purpose.ADVANTAGE_WEIGHTS, t, player)
        return new_network(
            self.game.encoding_size, self.game.num_actions, self.config.network, generator
        ).to(self.device)

    def _tell_phase(self, t: int, phase: str) -> None:
        if self._observer is not None:
            self._observer.on_phase(t, phase)
