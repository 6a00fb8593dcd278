"""The training loop: Algorithm 1's promises, several seeds to convergence, embedded use."""

import asyncio
import gc
import subprocess
import sys
import threading

import numpy as np
import pyspiel
import pytest
import torch

from asynccfr.config import load_config
from asynccfr.errors import GameError, SettingsError
from asynccfr.event_loop import run
from asynccfr.games import load_game
from asynccfr.policy import load_policy
from asynccfr.trainer import Trainer

TINY = {
    "game.name": "kuhn_poker",
    "run.iterations": 3,
    "run.device": "cpu",
    "network.hidden_size": 16,
    "network.num_layers": 2,
    "traversal.traversals_per_player": 30,
    "advantage.train_steps": 5,
    "advantage.memory_capacity": 5_000,
    "strategy.train_steps": 5,
    "strategy.memory_capacity": 5_000,
}


def tiny(**overrides):
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(None, {**TINY, **changes})


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


class Recorder:
    """An observer that looks at the networks at the start of each phase."""

    def __init__(self):
        self.trainer = None
        self.phases = []

    def on_traversal(self, iteration, player, done, total):
        pass

    def on_phase(self, iteration, phase):
        self.phases.append((iteration, phase, [weights(n) for n in self.trainer._networks]))

    def on_report(self, report):
        pass


@pytest.mark.parametrize("reinitialise", [True, False])
async def test_fitting_one_player_leaves_the_others_untouched(reinitialise):
    recorder = Recorder()
    config = tiny(game__name="kuhn_poker(players=3)", advantage__reinitialise=reinitialise)
    recorder.trainer = Trainer(config, observer=recorder)
    await recorder.trainer.run()
    fits = [i for i, (_, phase, _) in enumerate(recorder.phases) if phase == "fit advantage"]
    assert len(fits) == 9
    for number, index in enumerate(fits):
        fitted = number % 3
        before, after = recorder.phases[index][2], recorder.phases[index + 1][2]
        for player in range(3):
            assert same(before[player], after[player]) == (player != fitted)


async def test_after_each_fit_the_inferer_answers_with_the_new_network():
    trainer = Trainer(tiny(inference__precision="float32"))
    state = trainer.game.new_initial_state()
    state.apply_action(1)
    state.apply_action(0)
    row = np.zeros((1, trainer.game.encoding_size), np.float32)
    trainer.game.encode(state, 0, row[0])
    async for _ in trainer:
        with torch.inference_mode():
            outputs = trainer._networks[0](torch.from_numpy(row)).numpy()
        expected = trainer._head(outputs, np.ones((1, 2), bool))[0]
        answer = await trainer._inferer.infer("advantage/0", row.tobytes(), (0, 1))
        assert answer == pytest.approx(expected, abs=1e-6)


async def test_rows_carry_their_iteration_and_every_visit_is_stored():
    trainer = Trainer(tiny())
    result = await trainer.run()
    nodes = sum(report.metrics["decision_nodes"] for report in result.reports)
    memories = [*trainer._advantage_memories, trainer._strategy_memory]
    assert sum(memory.seen for memory in memories) == nodes
    for memory in memories:
        stored = memory.sample(5_000, torch.Generator().manual_seed(0)).weights
        assert set(stored.tolist()) == {1.0, 2.0, 3.0}


async def test_the_first_iteration_plays_uniformly():
    trainer = Trainer(tiny(run__iterations=1))
    seen = []
    add = trainer._strategy_memory.add
    trainer._strategy_memory.add = lambda block, t: (seen.append(block), add(block, t))
    # Player 0's traversals meet player 1's unfitted network; player 1's, player 0's fitted one.
    await trainer.run()
    assert (seen[0].values == 0.5).all()


@pytest.mark.parametrize("backend", ["local", "async"])
@pytest.mark.parametrize("seed", [0, 1])
def test_kuhn_converges(backend, seed):
    config = load_config(
        None,
        {
            "game.name": "kuhn_poker",
            "run.seed": seed,
            "run.device": "cpu",
            "run.iterations": 12,
            "inference.backend": backend,
            "network.hidden_size": 32,
            "traversal.traversals_per_player": 300,
            "advantage.train_steps": 100,
            "advantage.memory_capacity": 100_000,
            "strategy.train_steps": 300,
            "strategy.memory_capacity": 100_000,
        },
    )
    result = run(Trainer(config).run())
    # Uniform play: 11/12. A solver that does not learn stays there.
    assert result.evaluation.nash_conv < 0.15
    assert result.evaluation.expected_returns[0] == pytest.approx(-1 / 18, abs=0.05)
    assert result.evaluation.exploitability == result.evaluation.nash_conv / 2


@pytest.mark.parametrize(
    "name",
    [
        "leduc_poker",
        "kuhn_poker(players=3)",
        "goofspiel(num_cards=4,imp_info=True)",
        "python_kuhn_poker",
        "dark_hex(board_size=2)",
        "asynccfr.games.one_card_poker:OneCardPoker",
    ],
)
async def test_many_games_train_without_a_warning(name):
    config = tiny(
        game__name=name,
        traversal__traversals_per_player=2,
        evaluation__max_histories=20_000,
    )
    trainer = Trainer(config)
    result = await trainer.run()
    assert [report.iteration for report in result.reports] == [1, 2, 3]
    assert (result.evaluation is None) == bool(result.note)


@pytest.mark.parametrize("name", ["liars_dice", "fhp"])
async def test_large_presets_train_and_say_why_there_is_no_nash_conv(name):
    config = tiny(
        game__name=name,
        traversal__traversals_per_player=2,
        advantage__memory_capacity=50_000,
        evaluation__max_histories=10_000,
    )
    result = await Trainer(config).run()
    assert result.evaluation is None
    assert "more than 10,000 histories" in result.note
    assert "nash_conv" not in result.reports[-1].metrics


async def test_evaluations_fall_due_and_the_last_iteration_is_always_evaluated():
    reports = [r async for r in Trainer(tiny(run__iterations=5, evaluation__eval_every=2))]
    assert [r.evaluation is not None for r in reports] == [False, True, False, True, True]
    assert [r.metrics["strategy_loss"] is not None for r in reports] == [
        r.evaluation is not None for r in reports
    ]


async def test_max_minutes_ends_the_run_with_a_policy():
    result = await Trainer(tiny(run__iterations=10_000, run__max_minutes=0.02)).run()
    assert len(result.reports) < 10_000
    assert result.evaluation is not None


async def test_two_runs_from_one_seed_learn_the_same_and_another_seed_does_not():
    first, again, other = [
        (await Trainer(tiny(run__seed=seed)).run()).evaluation.nash_conv for seed in (0, 0, 1)
    ]
    assert first == pytest.approx(again, abs=1e-3)
    assert first != pytest.approx(other, abs=1e-3)


async def test_leaving_the_iteration_early_gives_everything_back():
    threads, collecting = threading.active_count(), gc.isenabled()
    interval = sys.getswitchinterval()
    reports = aiter(Trainer(tiny(run__iterations=1_000)))
    async for report in reports:
        if report.iteration == 2:
            break
    await reports.aclose()
    assert threading.active_count() <= threads
    assert (gc.isenabled(), sys.getswitchinterval()) == (collecting, interval)


@pytest.mark.parametrize("phase", ["traverse", "fit advantage", "fit strategy"])
async def test_cancelling_ends_promptly_in_every_phase(phase):
    threads, tasks = threading.active_count(), asyncio.all_tasks()
    reached = asyncio.Event()

    class Watcher(Recorder):
        def on_phase(self, iteration, name):
            if name == phase:
                reached.set()

    config = tiny(
        run__iterations=1_000,
        traversal__traversals_per_player=100_000 if phase == "traverse" else 30,
        advantage__train_steps=1_000_000 if phase == "fit advantage" else 5,
        strategy__train_steps=1_000_000 if phase == "fit strategy" else 5,
        evaluation__eval_every=1,
    )
    running = asyncio.ensure_future(Trainer(config, observer=Watcher()).run())
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert threading.active_count() <= threads
    assert asyncio.all_tasks() == tasks


async def test_a_trainer_works_beside_other_coroutines():
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.ensure_future(tick())
    await Trainer(tiny(advantage__train_steps=200)).run()
    ticker.cancel()
    assert ticks > 100


def test_utilities_are_scaled_by_the_games_largest():
    assert Trainer(tiny())._utility_scale == 2.0
    assert Trainer(tiny(game__name="leduc_poker"))._utility_scale == 13.0
    assert Trainer(tiny(game__utility_scale=5.0))._utility_scale == 5.0


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"game__name": "kuhn_pokr"}, GameError, "kuhn_poker"),
        ({"game__name": "mfg_garnet"}, GameError, "mean-field"),
        ({"game__name": "chess"}, GameError, "game.encoding=observation"),
        ({"advantage__memory_capacity": 10**12}, SettingsError, "advantage.memory_capacity"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_iteration(overrides, error, words):
    with pytest.raises(error, match=words):
        Trainer(tiny(**overrides))


async def test_a_saved_policy_loads_in_a_clean_process_and_plays_the_same(tmp_path):
    result = await Trainer(tiny(run__iterations=2)).run()
    path = tmp_path / "policy.pt"
    result.policy.save(path)
    code = (
        "import sys\n"
        "from asynccfr import load_policy\n"
        "policy = load_policy(sys.argv[1])\n"
        "assert 'asynccfr.trainer' not in sys.modules\n"
        "state = policy.played_game.new_initial_state()\n"
        "state.apply_action(2); state.apply_action(0)\n"
        "print(policy.action_probabilities(state))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout
    state = load_game("kuhn_poker").new_initial_state()
    state.apply_action(2)
    state.apply_action(0)
    assert eval(printed) == pytest.approx(result.policy.action_probabilities(state))
    assert load_policy(path).iteration == 2


async def test_the_policy_serves_open_spiels_own_tools():
    from open_spiel.python.algorithms import exploitability

    result = await Trainer(tiny(run__iterations=2)).run()
    game = pyspiel.load_game("kuhn_poker")
    theirs = exploitability.nash_conv(game, result.policy)
    assert result.evaluation.nash_conv == pytest.approx(theirs, abs=1e-6)
    assert sum(result.policy.to_tabular().action_probability_array.sum(axis=1)) == pytest.approx(12)


async def test_a_trainer_trains_once():
    trainer = Trainer(tiny(run__iterations=1))
    await trainer.run()
    with pytest.raises(RuntimeError, match="trains once"):
        await trainer.run()


class Guess:
    """Player 0 guesses a coin that chance has tossed; player 1 pays, and never decides."""

    def __init__(self, moves=()):
        self.moves = moves
        self.name, self.num_players, self.num_actions, self.encoding_size = "guess", 2, 2, 1
        self.min_utility, self.max_utility = -1.0, 1.0

    def new_initial_state(self):
        return Guess()

    def encode(self, state, player, out):
        out[0] = 1.0

    def current_player(self):
        return (-1, 0, -4)[len(self.moves)]

    def legal_actions(self):
        return [0, 1]

    def chance_outcomes(self):
        return [(0, 0.75), (1, 0.25)]

    def apply_action(self, action):
        self.moves = (*self.moves, action)

    def child(self, action):
        return Guess((*self.moves, action))

    def clone(self):
        return Guess(self.moves)

    def is_terminal(self):
        return len(self.moves) == 2

    def returns(self):
        return [1.0, -1.0] if self.moves[0] == self.moves[1] else [-1.0, 1.0]

    def information_state_string(self, player):
        return "guess"


async def test_a_player_who_never_decides_keeps_an_unfitted_network():
    trainer = Trainer(tiny(advantage__train_steps=50), game=Guess())
    result = await trainer.run()
    for report in result.reports:
        fitted, never = report.metrics["advantage_loss"]
        assert fitted is not None
        assert never is None
    state = Guess((0,))
    row = np.ones((1, 1), np.float32)
    with torch.inference_mode():
        advantages = trainer._networks[0](torch.from_numpy(row))[0]
    # By hand: guessing heads is right three times in four, so it alone has a positive regret.
    assert advantages[0] > 0 > advantages[1]
    assert result.policy.action_probabilities(state)[0] > 0.5


class HiddenPennies(Guess):
    """Matching pennies; both players' information states have the same encoding."""

    def __init__(self, moves=()):
        super().__init__(moves)
        self.name = "pennies"

    def new_initial_state(self):
        return HiddenPennies()

    def current_player(self):
        return (0, 1, -4)[len(self.moves)]

    def child(self, action):
        return HiddenPennies((*self.moves, action))

    def clone(self):
        return HiddenPennies(self.moves)

    def returns(self):
        # Heads on heads is worth 3, so the equilibrium plays heads with 1/3 and 2/3 at most.
        if self.moves == (0, 0):
            return [1.0, -1.0]
        return [1 / 3, -1 / 3] if self.moves == (1, 1) else [-1 / 3, 1 / 3]

    def information_state_string(self, player):
        return f"player {player}"


async def test_one_strategy_network_tells_players_with_one_encoding_apart():
    trainer = Trainer(tiny(strategy__train_steps=200), game=HiddenPennies())
    memory = trainer._strategy_memory
    result = await trainer.run()
    rows = memory.sample(200, torch.Generator().manual_seed(0)).encodings
    assert {tuple(row) for row in rows.tolist()} == {(1.0, 1.0, 0.0), (1.0, 0.0, 1.0)}
    first, second = HiddenPennies(), HiddenPennies((0,))
    played = [result.policy.action_probabilities(state)[0] for state in (first, second)]
    assert played[0] != pytest.approx(played[1], abs=1e-3)


class LateFault(HiddenPennies):
    """Raises, or returns nonsense, once it has been played often enough to pass the check."""

    played = 0

    def __init__(self, moves=(), fault=None):
        super().__init__(moves)
        self.fault = fault

    def new_initial_state(self):
        LateFault.played += 1
        return LateFault((), self.fault)

    def child(self, action):
        return LateFault((*self.moves, action), self.fault)

    def returns(self):
        if LateFault.played < 100:
            return super().returns()
        if isinstance(self.fault, BaseException):
            raise self.fault
        return [self.fault, 0.0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ZeroDivisionError("late"), "raises ZeroDivisionError: late"),
        (SystemExit(7), "raises SystemExit: 7"),
        (float("nan"), "NaN or infinite"),
    ],
)
async def test_a_game_that_fails_late_is_named(fault, words):
    LateFault.played = 0
    threads = threading.active_count()
    with pytest.raises(GameError, match=f"'pennies' .*{words}"):
        await Trainer(tiny(run__iterations=50), game=LateFault((), fault)).run()
    assert threading.active_count() <= threads


async def test_trainers_that_overlap_give_the_interpreter_back():
    before = gc.isenabled(), sys.getswitchinterval(), torch.get_num_threads()
    short = Trainer(tiny(run__iterations=1, inference__backend="local"))
    longer = Trainer(tiny(run__iterations=4, inference__backend="local"))
    await asyncio.gather(short.run(), longer.run())
    assert (gc.isenabled(), sys.getswitchinterval(), torch.get_num_threads()) == before


async def test_a_policy_of_a_given_game_loads_as_that_game(tmp_path):
    from asynccfr.games.one_card_poker import OneCardPoker

    class Five(OneCardPoker):
        name = "asynccfr.games.one_card_poker:OneCardPoker"

    result = await Trainer(tiny(), game=Five()).run()
    result.policy.save(tmp_path / "policy.pt")
    assert load_policy(tmp_path / "policy.pt").played_game.name == Five.name


async def test_the_result_holds_the_evaluation_of_its_policy():
    trainer = Trainer(tiny(run__iterations=10, evaluation__eval_every=2))
    async for report in trainer:
        if report.iteration == 3:
            break
    result = trainer.result()
    assert result.policy.iteration == 2
    assert result.evaluation == result.reports[1].evaluation
