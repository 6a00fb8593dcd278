"""The networks: information-state encodings in, one number per action out."""

import torch
from torch import Tensor, nn

from asynccfr.config import NetworkSettings


class ActionNetwork(nn.Module):
    """A fully connected network, float[B, F] -> float[B, A].

    The same shape serves as advantage network (outputs are advantages) and as strategy network
    (outputs are logits). Hidden layers start with He's initialisation; the last layer starts at
    zero, so an unfitted network plays uniformly.
    """

    def __init__(self, encoding_size: int, num_actions: int, settings: NetworkSettings) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = encoding_size
        for _ in range(settings.num_layers):
            layers += [_linear(width, settings.hidden_size), nn.ReLU()]
            width = settings.hidden_size
        self.layers = nn.Sequential(*layers, _linear(width, num_actions))

    def forward(self, encodings: Tensor) -> Tensor:
        """float[B, F] -> float[B, A]."""
        return self.layers(encodings)  # type: ignore[no-any-return]

    def initialise(self, generator: torch.Generator) -> None:
        """Draws fresh weights from `generator`; the last layer and all biases become zero.

        Source: He, Zhang, Ren, Sun 2015 (arXiv 1502.01852), equation 10.
        """
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        for linear in linears:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(linear.bias)
        nn.init.zeros_(linears[-1].weight)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    # nn.Linear draws its weights from the global generator, which belongs to the user.
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    return linear


def new_network(
    encoding_size: int, num_actions: int, settings: NetworkSettings, generator: torch.Generator
) -> ActionNetwork:
    """A network with fresh weights drawn from `generator`."""
    network = ActionNetwork(encoding_size, num_actions, settings)
    network.initialise(generator)
    return network


def parameter_count(network: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(parameter.numel() for parameter in network.parameters())
