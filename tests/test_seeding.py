"""One seed, many generators: each its own, all reproducible."""

from itertools import product

import pytest
import torch

from asynccfr.seeding import Purpose, numpy_generator, torch_generator


def numpy_draw(*arguments: int) -> tuple[int, ...]:
    return tuple(numpy_generator(*arguments).integers(2**62, size=2).tolist())


def torch_draw(*arguments: int) -> tuple[int, ...]:
    return tuple(torch.randint(2**62, (2,), generator=torch_generator(*arguments)).tolist())


DRAWS = pytest.mark.parametrize("draw", [numpy_draw, torch_draw])


@DRAWS
def test_the_same_arguments_give_the_same_numbers(draw):
    assert draw(7, Purpose.ADVANTAGE_BATCHES, 3, 1) == draw(7, Purpose.ADVANTAGE_BATCHES, 3, 1)


@DRAWS
def test_seed_purpose_and_path_all_matter(draw):
    cases = list(product((0, 1, 2**32 - 1), Purpose, (0, 1, 2), (0, 1, 2)))

    assert len({draw(*case) for case in cases}) == len(cases)


@DRAWS
def test_the_process_wide_generators_are_left_alone(draw, global_generators):
    before = global_generators()
    draw(7, Purpose.STRATEGY_WEIGHTS, 3)

    assert global_generators() == before


def test_purposes_keep_their_numbers():
    # A number that changes would change what a run's seed means.
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "ADVANTAGE_WEIGHTS": 1,
        "ADVANTAGE_BATCHES": 2,
        "ADVANTAGE_RESERVOIR": 3,
        "STRATEGY_WEIGHTS": 4,
        "STRATEGY_BATCHES": 5,
        "STRATEGY_RESERVOIR": 6,
    }
