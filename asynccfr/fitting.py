"""Fitting a network to a reservoir."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from asynccfr.config import FitSettings
from asynccfr.errors import FittingError, Interrupted
from asynccfr.memory import Batch, Reservoir

Loss = Callable[[Tensor, Batch], Tensor]
"""(outputs float32[B, A], the batch) -> a scalar."""


def normalised(weights: Tensor) -> Tensor:
    """The weights of a batch's rows, float32[B], with mean 1.

    Weighting iteration t's rows by t is linear CFR (Brown & Sandholm 2019, arXiv 1809.04040).
    Dividing by the batch's mean makes the loss, its gradient and so the effect of clipping the
    same whatever unit t is counted in.
    """
    return weights / weights.mean()


def advantage_loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Weighted squared error on the legal actions; illegal outputs have gradient exactly 0.

    Source: arXiv 1811.00164, Algorithm 1, line 9, with `normalised` weights.
    """
    errors = (outputs - batch.values).masked_fill(~batch.legal, 0.0)
    return (normalised(batch.weights) * errors.square().sum(dim=1)).mean()


def strategy_loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Weighted cross-entropy between the stored policies and the softmax over legal actions.

    Its minimum is the t-weighted mean of the stored policies, the average strategy, exactly
    where the squared error of arXiv 1811.00164, Algorithm 1, line 12, has its own.
    """
    masked = outputs.masked_fill(~batch.legal, float("-inf"))
    log_policies = masked.log_softmax(dim=1).masked_fill(~batch.legal, 0.0)
    cross_entropy = -(batch.values * log_policies).sum(dim=1)
    return (normalised(batch.weights) * cross_entropy).mean()


@dataclass(frozen=True)
class FitReport:
    """What a fit did.

    Attributes:
        steps: training steps taken.
        loss: mean loss over the last tenth of the steps; None where there were no steps.
        seconds: the whole fit.
        batch_tensor_seconds: the part spent on building batches.
    """

    steps: int
    loss: float | None
    seconds: float
    batch_tensor_seconds: float


def fit(
    network: nn.Module,
    memory: Reservoir,
    loss: Loss,
    settings: FitSettings,
    generator: torch.Generator,
    *,
    amp: bool = False,
    stop: threading.Event | None = None,
) -> FitReport:
    """Fits `network`, in place, to rows drawn from `memory`, by Adam with a falling rate.

    A memory with fewer rows than a batch trains on what it holds. An empty one, of a player who
    has not yet had to decide anything, takes no step: an unfitted network plays uniformly.

    The learning rate falls linearly from `settings.learning_rate` to
    `settings.final_learning_rate_share` of it. The network stays on its device.

    Args:
        generator: draws the batches; nothing else random happens here.
        amp: run the forwards in bfloat16 where autocast finds it safe; losses stay float32.
        stop: set from another thread, ends the fit between two steps.

    Raises:
        FittingError: where the loss is NaN or infinite.
        Interrupted: where `stop` was set.
    """
    started = perf_counter()
    if not len(memory):
        return FitReport(0, None, 0.0, 0.0)
    device = next(network.parameters()).device
    parameters = list(network.parameters())
    optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
    steps = settings.train_steps
    losses = torch.zeros(steps, device=device)
    batch_seconds = 0.0
    network.train()
    merge = True
    for step in range(steps):
        if stop is not None and stop.is_set():
            raise Interrupted("the fit was asked to stop")
        for group in optimiser.param_groups:
            group["lr"] = _learning_rate(settings, step)
        drawing = perf_counter()
        batch = memory.sample(settings.batch_size, generator, merge=merge)
        # Where information states seldom repeat, looking for them is not worth its time.
        merge = merge and len(batch) <= settings.batch_size // 2
        if device.type != "cpu":
            batch = batch.to(device)
        batch_seconds += perf_counter() - drawing
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            outputs = network(batch.encodings)
        value = loss(outputs.float(), batch)
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        if settings.gradient_clip is not None:
            nn.utils.clip_grad_norm_(parameters, settings.gradient_clip)
        optimiser.step()
        losses[step] = value.detach()
    network.eval()
    last = float(losses[-max(1, steps // 10) :].mean())
    if not torch.isfinite(losses).all():
        first = int(torch.isfinite(losses).logical_not().nonzero()[0])
        raise FittingError(
            f"the loss became {float(losses[first])} at step {first + 1} of {steps}; lower the "
            f"learning rate ({settings.learning_rate:g}) or set training.amp=off"
        )
    return FitReport(steps, last, perf_counter() - started, batch_seconds)


def _learning_rate(settings: FitSettings, step: int) -> float:
    progress = step / max(1, settings.train_steps - 1)
    share = 1.0 - (1.0 - settings.final_learning_rate_share) * progress
    return settings.learning_rate * share
