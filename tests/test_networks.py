"""The network: shapes, a uniform start, and nobody else's random numbers."""

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.config import NetworkSettings
from asynccfr.inference.heads import masked_softmax, regret_matching
from asynccfr.networks import ActionNetwork, new_network, parameter_count


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0, hidden_size: int = 16, num_layers: int = 3) -> ActionNetwork:
    settings = NetworkSettings(hidden_size=hidden_size, num_layers=num_layers)
    return new_network(7, 4, settings, generator(seed))


@pytest.mark.parametrize("num_layers", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_shapes(num_layers: int, rows: int):
    assert network(num_layers=num_layers)(torch.ones(rows, 7)).shape == (rows, 4)


@pytest.mark.parametrize(
    ("hidden_size", "num_layers", "count"),
    [
        (3, 1, (7 * 3 + 3) + (3 * 4 + 4)),
        (5, 2, (7 * 5 + 5) + (5 * 5 + 5) + (5 * 4 + 4)),
    ],
)
def test_the_number_of_parameters_by_hand(hidden_size: int, num_layers: int, count: int):
    assert parameter_count(network(0, hidden_size, num_layers)) == count


@pytest.mark.parametrize("head", [regret_matching, masked_softmax])
def test_an_unfitted_network_plays_uniformly(head):
    outputs = network()(torch.randn(5, 7, generator=generator(1))).detach().numpy()
    legal = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 0, 0]], bool)

    policies = head(outputs, legal)

    assert (outputs == 0).all()
    np.testing.assert_allclose(policies, legal / legal.sum(axis=1, keepdims=True), atol=1e-6)


def test_the_generator_decides_the_weights(global_generators):
    before = global_generators()
    first, same, other = network(1), network(1), network(2)

    for name, weights in first.state_dict().items():
        assert torch.equal(weights, same.state_dict()[name])
    assert not torch.equal(first.layers[0].weight, other.layers[0].weight)
    assert global_generators() == before


def test_initialising_again_starts_from_nothing_that_was_learned():
    fresh, used = network(1), network(2)
    with torch.no_grad():
        for parameter in used.parameters():
            parameter.fill_(float("nan"))

    used.initialise(generator(1))

    for name, weights in fresh.state_dict().items():
        assert torch.equal(weights, used.state_dict()[name])


def test_hidden_layers_keep_the_size_of_what_passes_through():
    # He's initialisation: weights of variance 2 / inputs, so that the mean square of a layer's
    # inputs survives a ReLU. 512 units and 2,000 rows put the mean within a few percent.
    wide = network(hidden_size=512, num_layers=2)
    rows = torch.randn(2000, 7, generator=generator(3))

    with torch.no_grad():
        first = wide.layers[:2](rows)
        second = wide.layers[:4](rows)

    assert second.square().mean().item() == pytest.approx(first.square().mean().item(), rel=0.15)
    weights = wide.layers[2].weight
    assert weights.var().item() == pytest.approx(2 / 512, rel=0.02)
    assert all((m.bias == 0).all() for m in wide.modules() if isinstance(m, nn.Linear))


def test_the_first_step_moves_an_unfitted_network():
    unfitted = network()
    (unfitted(torch.ones(1, 7)) - 1).square().sum().backward()

    assert (unfitted.layers[-1].weight.grad != 0).any()
