"""Policy heads: values worked out by hand, and what must hold for any outputs."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from asynccfr.errors import InferenceError, NonFiniteOutputError
from asynccfr.games.base import BoolArray, FloatArray
from asynccfr.inference.heads import (
    Head,
    apply_head,
    masked_softmax,
    regret_matching,
    require_finite,
)

HEADS = pytest.mark.parametrize("head", [regret_matching, masked_softmax])
A = 5
ROUNDING = 1e-6


def floats(*rows: list[float]) -> FloatArray:
    return np.array(rows, np.float32)


def masks(*rows: list[int]) -> BoolArray:
    return np.array(rows, bool)


@st.composite
def outputs_and_legal(draw: st.DrawFn) -> tuple[FloatArray, BoolArray]:
    """Any finite outputs, denormals and the float's limits included; a legal action in each row."""
    count = draw(st.integers(1, 6))
    outputs = draw(
        arrays(
            np.float32,
            (count, A),
            elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
        )
    )
    legal = draw(arrays(np.bool_, (count, A)))
    legal[np.arange(count), draw(arrays(np.int64, count, elements=st.integers(0, A - 1)))] = True
    return outputs, legal


anything = given(outputs_and_legal())
few = settings(max_examples=60, deadline=None)


@HEADS
@few
@anything
def test_every_row_is_a_policy_over_its_legal_actions(
    head: Head, case: tuple[FloatArray, BoolArray]
) -> None:
    outputs, legal = case

    policies = head(outputs, legal)

    assert policies.dtype == np.float32
    assert (policies >= 0).all()
    assert (policies[~legal] == 0).all()
    np.testing.assert_allclose(policies.sum(axis=1), 1, atol=ROUNDING)


@HEADS
@few
@anything
def test_rows_are_independent(head: Head, case: tuple[FloatArray, BoolArray]) -> None:
    outputs, legal = case

    together = head(outputs, legal)

    alone = [head(outputs[i : i + 1], legal[i : i + 1])[0] for i in range(len(outputs))]
    np.testing.assert_allclose(together, alone, atol=ROUNDING)


@HEADS
@few
@anything
def test_what_an_illegal_action_is_worth_does_not_matter(
    head: Head, case: tuple[FloatArray, BoolArray]
) -> None:
    outputs, legal = case

    changed = np.where(legal, outputs, np.float32(1e30))

    np.testing.assert_array_equal(head(changed, legal), head(outputs, legal))


@HEADS
@few
@anything
def test_inputs_are_left_as_they_are(head: Head, case: tuple[FloatArray, BoolArray]) -> None:
    outputs, legal = case
    before = outputs.copy(), legal.copy()

    head(outputs, legal)

    np.testing.assert_array_equal(outputs, before[0])
    np.testing.assert_array_equal(legal, before[1])


def test_regret_matching_by_hand() -> None:
    advantages = floats([1, 3, -2, 4], [1, 3, -2, 4], [-1, 0.5, 0, 0])
    legal = masks([1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1])

    policies = regret_matching(advantages, legal)

    # Positive parts 1, 3, 0, 4 sum to 8; without the last action to 4; then one alone.
    expected = floats([1 / 8, 3 / 8, 0, 4 / 8], [1 / 4, 3 / 4, 0, 0], [0, 1, 0, 0])
    np.testing.assert_allclose(policies, expected, atol=ROUNDING)


@few
@anything
def test_regret_matching_is_in_proportion_to_positive_parts(
    case: tuple[FloatArray, BoolArray],
) -> None:
    advantages, legal = case
    positive = np.maximum(advantages.astype(np.float64), 0) * legal

    policies = regret_matching(advantages, legal)

    for policy, parts in zip(policies, positive, strict=True):
        if parts.sum() > 0:
            np.testing.assert_allclose(policy, parts / parts.sum(), atol=ROUNDING)


@few
@given(outputs_and_legal(), st.integers(-20, 20))
def test_regret_matching_does_not_depend_on_the_unit_of_utility(
    case: tuple[FloatArray, BoolArray], exponent: int
) -> None:
    advantages, legal = case
    advantages = np.round(np.clip(advantages, -1000, 1000), 2)  # Far from both float limits.

    scaled = regret_matching(advantages * np.float32(2.0**exponent), legal)

    np.testing.assert_allclose(scaled, regret_matching(advantages, legal), atol=ROUNDING)


@pytest.mark.parametrize(
    ("advantages", "legal", "best", "uniform"),
    [
        # The largest is at an illegal action; of the legal ones the third is the largest.
        ([-1, -5, -2, -3], [0, 1, 1, 1], [0, 0, 1, 0], [0, 1 / 3, 1 / 3, 1 / 3]),
        # An exact tie of the best legal actions is shared equally.
        ([-2, -2, -7, -2], [1, 1, 1, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]),
        # An unfitted network answers 0 everywhere: all legal actions tie.
        ([0, 0, 0, 0], [1, 0, 1, 1], [1 / 3, 0, 1 / 3, 1 / 3], [1 / 3, 0, 1 / 3, 1 / 3]),
        # A positive advantage at an illegal action does not count as positive.
        ([9, -1, -2, -3], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1 / 2, 1 / 2, 0]),
        # The next float below is no tie.
        (
            [-1, np.nextafter(np.float32(-1), np.float32(0)), -2, -2],
            [1, 1, 1, 1],
            [0, 1, 0, 0],
            [1 / 4] * 4,
        ),
        # Zero beats everything negative.
        ([-1, 0, -2, -3], [1, 1, 1, 1], [0, 1, 0, 0], [1 / 4] * 4),
    ],
)
def test_fallback_where_no_legal_action_has_a_positive_advantage(
    advantages: list[float], legal: list[int], best: list[float], uniform: list[float]
) -> None:
    rows, mask = floats(advantages), masks(legal)

    np.testing.assert_allclose(regret_matching(rows, mask), [best], atol=ROUNDING)
    np.testing.assert_allclose(regret_matching(rows, mask, "best"), [best], atol=ROUNDING)
    np.testing.assert_allclose(regret_matching(rows, mask, "uniform"), [uniform], atol=ROUNDING)


def test_fallback_touches_only_the_rows_that_need_it() -> None:
    advantages = floats([1, 1, 2], [-1, -2, -3], [0, 5, 5])
    legal = masks([1, 1, 1], [1, 1, 1], [1, 1, 1])

    policies = regret_matching(advantages, legal)

    expected = floats([1 / 4, 1 / 4, 1 / 2], [1, 0, 0], [0, 1 / 2, 1 / 2])
    np.testing.assert_allclose(policies, expected, atol=ROUNDING)


@pytest.mark.parametrize("unit", [1e-45, 1e-38, 1e-20, 1e20, 1.6e38])
def test_regret_matching_of_tiny_and_huge_advantages(unit: float) -> None:
    # Multiples of the smallest denormal are exact, and 2 * 1.6e38 is just below the float's limit,
    # where the sum of the positive parts overflows.
    advantages = np.float32(unit) * floats([1, 2, 2, -1])

    policies = regret_matching(advantages, masks([1, 1, 1, 1]))

    np.testing.assert_allclose(policies, floats([1 / 5, 2 / 5, 2 / 5, 0]), atol=ROUNDING)


def test_masked_softmax_by_hand() -> None:
    logits = np.log(floats([1, 2, 5, 8], [1, 2, 5, 8]))
    legal = masks([1, 1, 1, 1], [1, 0, 1, 0])

    policies = masked_softmax(logits, legal)

    # Exponentials 1, 2, 5, 8 sum to 16; the first and the third to 6.
    expected = floats([1 / 16, 2 / 16, 5 / 16, 8 / 16], [1 / 6, 0, 5 / 6, 0])
    np.testing.assert_allclose(policies, expected, atol=ROUNDING)


@few
@given(outputs_and_legal(), st.integers(-1000, 1000))
def test_masked_softmax_does_not_change_with_a_constant(
    case: tuple[FloatArray, BoolArray], constant: int
) -> None:
    logits, legal = case
    logits = np.round(np.clip(logits, -50, 50))  # Whole numbers: adding a constant is exact.

    shifted = masked_softmax(logits + np.float32(constant), legal)

    np.testing.assert_allclose(shifted, masked_softmax(logits, legal), atol=ROUNDING)


def test_masked_softmax_at_the_floats_limits() -> None:
    limit = float(np.finfo(np.float32).max)
    logits = floats([limit, -limit, 0, limit], [-limit, -limit, limit, -limit])

    policies = masked_softmax(logits, masks([1, 1, 1, 1], [1, 1, 0, 0]))

    expected = floats([1 / 2, 0, 0, 1 / 2], [1 / 2, 1 / 2, 0, 0])
    np.testing.assert_allclose(policies, expected, atol=ROUNDING)


@HEADS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("action", [0, 2], ids=["legal", "illegal"])
def test_outputs_that_are_not_finite_are_refused(head: Head, value: float, action: int) -> None:
    outputs = np.zeros((4, 3), np.float32)
    outputs[1, action] = outputs[3, action] = value
    legal = masks(*[[1, 1, 0]] * 4)

    with pytest.raises(NonFiniteOutputError, match="in 2 of 4 rows, first in row 1"):
        head(outputs, legal)


def test_finite_outputs_pass() -> None:
    require_finite(floats([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1e-45]))


def test_apply_head_gives_what_the_head_gives() -> None:
    outputs, legal = floats([1, 3], [2, 2]), masks([1, 1], [1, 1])

    policies = apply_head(regret_matching, outputs, legal)

    np.testing.assert_allclose(policies, floats([1 / 4, 3 / 4], [1 / 2, 1 / 2]), atol=ROUNDING)


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (4, 3), (3, 1), (3, 2), (3,)])
def test_wrong_number_of_outputs_is_refused_even_where_numpy_would_stretch_them(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(InferenceError, match="the network gave results of shape"):
        apply_head(regret_matching, np.ones(shape, np.float32), np.ones((3, 3), bool))


@pytest.mark.parametrize("change", [lambda p: p[:1], lambda p: np.vstack((p, p)), np.transpose])
def test_wrong_number_of_policies_is_refused(change: Callable[[FloatArray], FloatArray]) -> None:
    def head(outputs: FloatArray, legal: BoolArray) -> FloatArray:
        return change(outputs)

    with pytest.raises(InferenceError, match="the policy head gave results of shape"):
        apply_head(head, np.ones((3, 2), np.float32), np.ones((3, 2), bool))
