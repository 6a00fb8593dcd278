"""Fitting: the losses by hand, what a fit converges to, and how it ends."""

import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asynccfr.config import FitSettings, NetworkSettings
from asynccfr.errors import FittingError, Interrupted
from asynccfr.fitting import advantage_loss, fit, normalised, strategy_loss
from asynccfr.memory import Batch, Reservoir, SampleBlock
from asynccfr.networks import new_network

LOSSES = pytest.mark.parametrize("loss", [advantage_loss, strategy_loss])


def batch(values: list[list[float]], legal: list[list[int]], iterations: list[float]) -> Batch:
    return Batch(
        torch.zeros(len(values), 1),
        torch.tensor(values, dtype=torch.float32),
        torch.tensor(legal, dtype=torch.bool),
        torch.tensor(iterations, dtype=torch.float32),
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def memory_of(
    encodings: list[list[float]],
    values: list[list[float]],
    legal: list[list[int]],
    iterations: list[int],
    copies: int = 1,
) -> Reservoir:
    """A memory that holds each of the rows given `copies` times."""
    capacity = copies * len(values)
    memory = Reservoir(capacity, len(encodings[0]), len(values[0]), np.random.default_rng(0))
    for encoding, value, mask, t in zip(encodings, values, legal, iterations, strict=True):
        rows = SampleBlock(
            np.array([encoding] * copies, np.float32),
            np.array([value] * copies, np.float32),
            np.array([mask] * copies, np.bool_),
        )
        memory.add(rows, t)
    return memory


def random_memory(scale: int = 1) -> Reservoir:
    """200 random rows from iterations 1 to 4; `scale` is the unit in which those count."""
    chance = np.random.default_rng(1)
    memory = Reservoir(200, 5, 3, np.random.default_rng(0))
    for t in range(1, 5):
        legal = chance.random((50, 3)) < 0.7
        legal[:, 0] = True
        policies = legal * chance.random((50, 3))
        policies /= policies.sum(axis=1, keepdims=True)
        rows = SampleBlock(
            chance.normal(size=(50, 5)).astype(np.float32), policies.astype(np.float32), legal
        )
        memory.add(rows, t * scale)
    return memory


def small_network(inputs: int = 5, outputs: int = 3) -> nn.Module:
    return new_network(inputs, outputs, NetworkSettings(hidden_size=16, num_layers=2), generator())


def settings(**changes) -> FitSettings:
    values = {"train_steps": 50, "batch_size": 64, "learning_rate": 0.01} | changes
    return FitSettings(**values)


def parameters(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# The losses.


def test_weights_have_mean_one_and_are_in_proportion_to_t():
    # The mean of 1, 2, 3, 6 is 3.
    weights = normalised(torch.tensor([1.0, 2.0, 3.0, 6.0]))

    torch.testing.assert_close(weights, torch.tensor([1 / 3, 2 / 3, 1, 2]))


def test_advantage_loss_by_hand():
    outputs = torch.tensor([[1.0, 9.0, 3.0], [2.0, 0.0, 0.0]])
    rows = batch([[0, 0, 1], [1, 1, 0]], [[1, 0, 1], [1, 1, 1]], [1, 3])

    # Squared errors on legal actions: 1 + 4 = 5 and 1 + 1 + 0 = 2; weights 1/2 and 3/2.
    assert advantage_loss(outputs, rows).item() == pytest.approx((0.5 * 5 + 1.5 * 2) / 2)


def test_strategy_loss_by_hand():
    outputs = torch.tensor([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0]]).log()
    rows = batch([[0.5, 0, 0.5], [0, 1, 0]], [[1, 0, 1], [1, 1, 1]], [1, 3])

    # Policies (1/6, -, 5/6) and (1/4, 1/4, 1/2); weights 1/2 and 3/2.
    first = -(0.5 * np.log(1 / 6) + 0.5 * np.log(5 / 6))
    second = -np.log(1 / 4)
    expected = (0.5 * first + 1.5 * second) / 2
    assert strategy_loss(outputs, rows).item() == pytest.approx(expected, rel=1e-6)


@LOSSES
def test_the_gradient_at_illegal_outputs_is_exactly_zero(loss):
    legal = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    outputs = torch.tensor([[1.0, 1e20, 3.0], [-1e20, 0.5, 0.0], [0.0, 1.0, 7.0]])
    outputs.requires_grad_()
    rows = Batch(torch.zeros(3, 1), torch.eye(3) * legal, legal, torch.tensor([1.0, 2.0, 3.0]))

    loss(outputs, rows).backward()

    assert (outputs.grad[~legal] == 0).all()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad[legal] != 0).any()


@LOSSES
def test_fitting_leaves_what_feeds_only_illegal_outputs_as_it_was(loss):
    rows = [[1.0, 0.0], [0.0, 1.0]]
    memory = memory_of(rows, [[1, 0, 0], [0.5, 0.5, 0]], [[1, 1, 0], [1, 1, 0]], [1, 2])
    network = nn.Linear(2, 3)
    before = parameters(network).clone()

    fit(network, memory, loss, settings(), generator())

    weight, bias = before[:6].reshape(3, 2), before[6:]
    assert torch.equal(network.weight[2], weight[2])
    assert torch.equal(network.bias[2], bias[2])
    assert not torch.equal(network.weight[:2], weight[:2])


# What a fit finds.


class Constant(nn.Module):
    """The same outputs, its only parameters, for every row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.zeros(size))

    def forward(self, encodings: Tensor) -> Tensor:
        return self.outputs.expand(len(encodings), -1)


def test_advantages_become_the_t_weighted_mean_of_the_samples():
    # The same information state with targets (4, -2) at t = 1 and (0, 2) at t = 3: the weighted
    # mean is (1 * 4 + 3 * 0, 1 * -2 + 3 * 2) / 4 = (1, 1). Batches are drawn at random, hence 0.1.
    memory = memory_of(
        [[1.0], [1.0]], [[4, -2, 0], [0, 2, 0]], [[1, 1, 0], [1, 1, 0]], [1, 3], copies=500
    )
    network = Constant(3)

    fit(
        network,
        memory,
        advantage_loss,
        settings(train_steps=300, batch_size=1000, learning_rate=0.05),
        generator(),
    )

    torch.testing.assert_close(
        network.outputs.detach(), torch.tensor([1.0, 1.0, 0.0]), atol=0.1, rtol=0
    )


def test_strategies_become_the_t_weighted_mean_of_the_policies():
    # Policies (1, 0) at t = 1 and (1/5, 4/5) at t = 3: (1 + 3/5, 12/5) / 4 = (2/5, 3/5).
    memory = memory_of(
        [[1.0], [1.0]], [[1, 0, 0], [0.2, 0.8, 0]], [[1, 1, 0], [1, 1, 0]], [1, 3], copies=500
    )
    network = Constant(3)

    fit(
        network,
        memory,
        strategy_loss,
        settings(train_steps=300, batch_size=1000, learning_rate=0.05),
        generator(),
    )

    policy = network.outputs[:2].softmax(0).detach()
    torch.testing.assert_close(policy, torch.tensor([0.4, 0.6]), atol=0.03, rtol=0)


def test_a_network_tells_information_states_apart():
    memory = memory_of(
        [[1.0, 0.0], [0.0, 1.0]], [[2, -1, 0], [0, 0, 3]], [[1, 1, 0], [1, 0, 1]], [1, 1]
    )
    network = small_network(2, 3)

    report = fit(
        network, memory, advantage_loss, settings(train_steps=400, learning_rate=0.02), generator()
    )

    outputs = network(torch.eye(2)).detach()
    torch.testing.assert_close(outputs[0, :2], torch.tensor([2.0, -1.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(outputs[1, [0, 2]], torch.tensor([0.0, 3.0]), atol=0.05, rtol=0)
    assert report.loss < 0.01


@LOSSES
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_the_unit_of_t_changes_nothing(loss, clip: float | None):
    # Multiplying by a power of two is exact, so every bit must agree, with clipping or without.
    fitted = []
    for scale in (1, 1024):
        network = small_network()
        fit(network, random_memory(scale), loss, settings(gradient_clip=clip), generator())
        fitted.append(parameters(network))

    assert torch.equal(*fitted)


@LOSSES
def test_the_unit_of_t_changes_no_more_than_rounding(loss):
    fitted = []
    for scale in (1, 1000):
        network = small_network()
        fit(network, random_memory(scale), loss, settings(), generator())
        fitted.append(parameters(network))

    torch.testing.assert_close(*fitted, atol=1e-4, rtol=0)


@LOSSES
def test_later_iterations_weigh_more(loss):
    memory = memory_of([[1.0], [1.0]], [[1, 0], [0, 1]], [[1, 1]] * 2, [1, 9], copies=50)
    network = Constant(2)

    fit(network, memory, loss, settings(train_steps=200, batch_size=100), generator())

    assert network.outputs[1] > network.outputs[0]


# The steps.


def slope(outputs: Tensor, rows: Batch) -> Tensor:
    """A loss whose gradient is 1 everywhere: Adam then moves by exactly the learning rate."""
    return outputs.sum(dim=1).mean()


@pytest.mark.parametrize(
    ("steps", "final_share", "sum_of_rates"),
    [
        (1, 0.05, 1.0),  # The first step has the full rate.
        (2, 0.0, 1.0),  # The second of two has none of it.
        (3, 0.0, 1.5),  # 1, 1/2, 0.
        (5, 0.2, 3.0),  # 1, 0.8, 0.6, 0.4, 0.2.
        (4, 1.0, 4.0),  # Constant.
    ],
)
def test_the_rate_falls_linearly(steps: int, final_share: float, sum_of_rates: float):
    network = Constant(1)
    memory = memory_of([[1.0]], [[0.0]], [[1]], [1])
    chosen = settings(train_steps=steps, final_learning_rate_share=final_share, gradient_clip=None)

    fit(network, memory, slope, chosen, generator())

    assert network.outputs.item() == pytest.approx(-0.01 * sum_of_rates, rel=1e-5)


def test_gradients_are_clipped():
    # Adam divides by |gradient| + 1e-8: a gradient clipped to 1e-10 moves by 1 % of the rate.
    network = Constant(1)
    memory = memory_of([[1.0]], [[0.0]], [[1]], [1])
    chosen = settings(train_steps=1, gradient_clip=1e-10)

    fit(network, memory, slope, chosen, generator())

    assert network.outputs.item() == pytest.approx(-0.01 * 0.01, rel=0.02)


def test_a_memory_smaller_than_a_batch_trains_on_what_it_holds():
    weights = []

    def loss(outputs: Tensor, rows: Batch) -> Tensor:
        weights.append(rows.weights.sum().item())
        return advantage_loss(outputs, rows)

    memory = memory_of([[1.0]] * 3, [[1, 0]] * 3, [[1, 1]] * 3, [1, 2, 3])
    network = Constant(2)
    report = fit(network, memory, loss, settings(train_steps=20, batch_size=1024), generator())

    # Three rows a step, with weights from 1 to 3.
    assert len(weights) == 20
    assert all(3 <= weight <= 9 for weight in weights)
    assert report.steps == 20
    assert network.outputs[0] > 0.05


def test_an_empty_memory_leaves_the_network_as_it_is():
    network = small_network()
    before = parameters(network)
    memory = Reservoir(10, 5, 3, np.random.default_rng(0))
    report = fit(network, memory, advantage_loss, settings(), generator())
    assert torch.equal(parameters(network), before)
    assert (report.steps, report.loss) == (0, None)


def test_the_report():
    losses = []

    def loss(outputs: Tensor, rows: Batch) -> Tensor:
        value = advantage_loss(outputs, rows)
        losses.append(value.item())
        return value

    network = small_network()
    report = fit(network, random_memory(), loss, settings(train_steps=30), generator())

    assert report.steps == len(losses) == 30
    assert report.loss == pytest.approx(sum(losses[-3:]) / 3, rel=1e-5)  # The last tenth.
    assert 0 < report.batch_tensor_seconds < report.seconds
    assert not network.training


# How it ends early.


@pytest.mark.parametrize("step", [1, 4, 10])
def test_a_loss_that_is_not_finite_raises_and_names_step_and_rate(step: int):
    steps = 0

    def loss(outputs: Tensor, rows: Batch) -> Tensor:
        nonlocal steps
        steps += 1
        return advantage_loss(outputs, rows) * (float("nan") if steps == step else 1.0)

    with pytest.raises(FittingError, match=rf"nan at step {step} of 10.*0\.0123"):
        fit(
            small_network(),
            random_memory(),
            loss,
            settings(train_steps=10, learning_rate=0.0123),
            generator(),
        )


def test_a_rate_far_too_high_raises():
    chosen = settings(train_steps=20, learning_rate=1e30, gradient_clip=None)
    with pytest.raises(FittingError, match=r"lower the learning rate \(1e\+30\)"):
        fit(small_network(), random_memory(), advantage_loss, chosen, generator())


def test_a_fit_that_is_stopped_before_it_begins_changes_nothing():
    stop = threading.Event()
    stop.set()
    network = small_network()
    before = parameters(network).clone()

    with pytest.raises(Interrupted):
        fit(network, random_memory(), advantage_loss, settings(), generator(), stop=stop)

    assert torch.equal(parameters(network), before)


def test_a_fit_stops_between_two_steps():
    stop = threading.Event()
    steps = 0

    def loss(outputs: Tensor, rows: Batch) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 3:
            stop.set()
        return advantage_loss(outputs, rows)

    with pytest.raises(Interrupted):
        fit(small_network(), random_memory(), loss, settings(), generator(), stop=stop)

    assert steps == 3


def test_a_stop_that_nobody_sets_changes_nothing():
    fitted = []
    for stop in (None, threading.Event()):
        network = small_network()
        fit(network, random_memory(), advantage_loss, settings(), generator(), stop=stop)
        fitted.append(parameters(network))

    assert torch.equal(*fitted)


# Random numbers and precision.


@LOSSES
def test_the_generator_decides_everything(loss, global_generators):
    before = global_generators()
    fitted = []
    for seed in (1, 1, 2):
        network = small_network()
        fit(network, random_memory(), loss, settings(), generator(seed))
        fitted.append(parameters(network))

    assert torch.equal(fitted[0], fitted[1])
    assert not torch.equal(fitted[0], fitted[2])
    assert global_generators() == before


@LOSSES
def test_amp_is_close_to_float32(loss):
    # bfloat16 keeps 8 bits. Both fits see the same batches; their losses agree to a few percent,
    # and the weights stay float32.
    reports = []
    for amp in (False, True):
        network = small_network()
        chosen = settings(train_steps=200, learning_rate=2e-3)
        reports.append(fit(network, random_memory(), loss, chosen, generator(), amp=amp))
        assert all(parameter.dtype == torch.float32 for parameter in network.parameters())

    assert reports[1].loss != reports[0].loss
    assert reports[1].loss == pytest.approx(reports[0].loss, rel=0.05)
