"""Policy heads: a batch of network outputs and legal masks in, a batch of policies out.

Pure functions on numpy arrays. They run in the inference thread, where a numpy call needs the
interpreter lock once, and on the host, so a GPU copies its raw outputs back and nothing else.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from asynccfr.errors import InferenceError, NonFiniteOutputError
from asynccfr.games.base import BoolArray, FloatArray

Head = Callable[[FloatArray, BoolArray], FloatArray]
"""(outputs float32[B, A], legal bool[B, A]) -> policies float32[B, A], rows summing to 1."""

Fallback = Literal["best", "uniform"]


def regret_matching(
    advantages: FloatArray, legal: BoolArray, fallback: Fallback = "best"
) -> FloatArray:
    """Policies in proportion to the positive advantages of the legal actions.

    Where no legal action has a positive advantage, `fallback` decides: `best` puts all mass on
    the legal action with the largest advantage, exact ties sharing it equally; `uniform` plays
    every legal action alike.

    Source: Brown, Lerer, Gross, Sandholm 2019 (arXiv 1811.00164), section 2, equation 5, and
    section 5.1 on the fallback.

    Args:
        advantages: float32[B, A], finite.
        legal: bool[B, A], at least one legal action a row.
        fallback: what to play where nothing is positive.

    Returns:
        float32[B, A]; illegal actions have probability 0.

    Raises:
        NonFiniteOutputError: where an advantage is NaN or infinite.
    """
    require_finite(advantages)
    positive = np.maximum(advantages, 0.0) * legal
    largest = positive.max(axis=1, keepdims=True)
    # Dividing by the largest first keeps the sum finite for advantages near the float's limit,
    # and keeps a row of denormals from vanishing.
    with np.errstate(invalid="ignore", divide="ignore"):
        positive /= largest
        positive /= positive.sum(axis=1, keepdims=True)
    none_positive = largest[:, 0] <= 0.0
    if none_positive.any():
        positive[none_positive] = _fallback_policies(
            advantages[none_positive], legal[none_positive], fallback
        )
    return positive


def _fallback_policies(advantages: FloatArray, legal: BoolArray, fallback: Fallback) -> FloatArray:
    chosen = legal
    if fallback == "best":
        masked = np.where(legal, advantages, -np.inf)
        chosen = masked == masked.max(axis=1, keepdims=True)
    policies: FloatArray = (chosen / chosen.sum(axis=1, keepdims=True)).astype(np.float32)
    return policies


def masked_softmax(logits: FloatArray, legal: BoolArray) -> FloatArray:
    """Softmax over the legal actions of each row; illegal actions have probability 0.

    Args:
        logits: float32[B, A], finite.
        legal: bool[B, A], at least one legal action a row.

    Raises:
        NonFiniteOutputError: where a logit is NaN or infinite.
    """
    require_finite(logits)
    masked = np.where(legal, logits, -np.inf)
    with np.errstate(over="ignore"):  # Too far below the largest logit: probability 0.
        masked -= masked.max(axis=1, keepdims=True)
    exponentials = np.exp(masked)
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    return exponentials.astype(np.float32, copy=False)


def apply_head(head: Head, outputs: FloatArray, legal: BoolArray) -> FloatArray:
    """`head`'s policies, float32[B, A], with the shapes checked on the way in and out.

    Raises:
        InferenceError: where there is not one result a request. NumPy would stretch one row of
            outputs over a whole batch without a word.
    """
    _require_shape("network", outputs, legal.shape)
    policies = head(outputs, legal)
    _require_shape("policy head", policies, legal.shape)
    return policies


def _require_shape(source: str, results: FloatArray, shape: tuple[int, ...]) -> None:
    if results.shape != shape:
        raise InferenceError(
            f"the {source} gave results of shape {results.shape} for requests of shape {shape}"
        )


def require_finite(outputs: FloatArray) -> None:
    """Raises NonFiniteOutputError if any entry is NaN or infinite."""
    if not np.isfinite(outputs).all():
        rows = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
        raise NonFiniteOutputError(
            f"the network's output is NaN or infinite in {len(rows)} of {len(outputs)} rows, "
            f"first in row {rows[0]}; lower the learning rate or set training.amp=off"
        )
