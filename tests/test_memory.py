"""The reservoir: a uniform sample of everything ever added."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asynccfr.config import NetworkSettings
from asynccfr.fitting import advantage_loss, strategy_loss
from asynccfr.memory import Batch, Reservoir, SampleBlock
from asynccfr.networks import new_network

F, A = 2, 3


def block(numbers: range) -> SampleBlock:
    """Rows that all carry their own number, in every column."""
    column = np.array(numbers, np.float32)[:, None]
    values = np.repeat(column, A, axis=1)
    legal = (np.array(numbers)[:, None] % np.array([1, 2, 3])) == 0
    return SampleBlock(np.repeat(column, F, axis=1), values, legal)


def reservoir(capacity: int, seed: int = 0) -> Reservoir:
    return Reservoir(capacity, F, A, np.random.default_rng(seed))


def add(memory: Reservoir, sizes: list[int]) -> None:
    """Adds blocks of those sizes; rows are numbered through, iterations count from 1."""
    start = 0
    for iteration, size in enumerate(sizes, 1):
        memory.add(block(range(start, start + size)), iteration)
        start += size


def draw(memory: Reservoir, batch_size: int, seed: int = 0) -> Batch:
    return memory.sample(batch_size, torch.Generator().manual_seed(seed))


def held(memory: Reservoir) -> set[int]:
    """The numbers of the rows held: of capacity c, 30 full draws miss one with odds c e**-30."""
    generator = torch.Generator().manual_seed(0)
    draws = (memory.sample(memory.capacity, generator).encodings[:, 0] for _ in range(30))
    return set(torch.cat(list(draws)).int().tolist())


SPLITS = pytest.mark.parametrize(
    "sizes",
    [[1] * 41, [41], [10, 31], [5, 5, 31], [7, 20, 14], [40, 1], [11, 0, 30]],
    ids=lambda sizes: "+".join(map(str, sizes)) if len(sizes) < 9 else "one by one",
)


@SPLITS
def test_every_row_is_held_with_the_same_probability(sizes: list[int]):
    # Of N = 41 rows n = 10 are held, each with probability p = 10/41. Over R runs the count of a
    # row has variance R p (1 - p) and two counts have covariance -R p (1 - p) / (N - 1), so
    # (N - 1) / N sum (count - R p)**2 / (R p (1 - p)) is chi-square with N - 1 = 40 degrees of
    # freedom; it exceeds 73.402 with probability 0.001 (NIST/SEMATECH e-Handbook of Statistical
    # Methods, 1.3.6.7.4). A ring buffer, which holds the latest ten, would give R * 40.
    runs, p = 200, 10 / 41
    counts = Counter()
    for seed in range(runs):
        memory = reservoir(10, seed)
        add(memory, sizes)
        rows = held(memory)
        assert len(rows) == 10
        counts.update(rows)

    squares = sum((counts[row] - runs * p) ** 2 for row in range(41))
    assert 40 / 41 * squares / (runs * p * (1 - p)) < 73.402


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [4], [2, 2], [1, 3], [3, 1]])
def test_every_set_of_rows_is_held_with_the_same_probability(sizes: list[int]):
    # Two of four rows: six pairs, each expected R / 6 times. Chi-square with five degrees of
    # freedom exceeds 20.515 with probability 0.001 (same table).
    runs = 600
    counts = Counter()
    for seed in range(runs):
        memory = reservoir(2, seed)
        add(memory, sizes)
        counts[frozenset(held(memory))] += 1

    assert len(counts) == 6
    assert sum((count - runs / 6) ** 2 for count in counts.values()) / (runs / 6) < 20.515


@given(st.lists(st.integers(0, 12), max_size=6), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_until_it_is_full_it_holds_every_row_and_then_always_its_capacity(
    sizes: list[int], capacity: int
):
    memory = reservoir(capacity)
    add(memory, sizes)

    assert memory.seen == sum(sizes)
    assert len(memory) == min(capacity, sum(sizes))
    if sum(sizes):
        rows = held(memory)
        assert len(rows) == len(memory)
        assert rows <= set(range(sum(sizes)))


def test_rows_stay_whole_through_replacement():
    memory = reservoir(10)
    add(memory, [7, 50, 0, 43])

    batch = draw(memory, 500)

    numbers = batch.encodings[:, 0]
    assert torch.equal(batch.encodings, numbers[:, None].expand(-1, F))
    assert torch.equal(batch.values, numbers[:, None].expand(-1, A))
    assert torch.equal(batch.legal, numbers[:, None].int() % torch.tensor([1, 2, 3]) == 0)
    # Rows 0 to 6 came in iteration 1, rows 7 to 56 in iteration 2, the rest in iteration 4.
    expected = torch.where(numbers < 7, 1.0, torch.where(numbers < 57, 2.0, 4.0))
    assert torch.equal(batch.weights, expected)


def test_a_batch_has_the_types_that_a_network_takes():
    memory = reservoir(10)
    add(memory, [20])

    batch = draw(memory, 4).to(torch.device("cpu"))

    assert batch.encodings.shape == (4, F)
    assert batch.values.shape == batch.legal.shape == (4, A)
    assert batch.weights.shape == (4,)
    assert batch.encodings.dtype == batch.values.dtype == batch.weights.dtype == torch.float32
    assert batch.legal.dtype == torch.bool


@pytest.mark.parametrize(
    ("rows", "batch_size", "count"), [(3, 10, 3), (3, 3, 3), (3, 2, 2), (1, 5, 1), (50, 20, 10)]
)
def test_a_memory_too_small_for_a_batch_gives_what_it_holds(rows: int, batch_size: int, count: int):
    memory = reservoir(10)
    add(memory, [rows])

    assert len(draw(memory, batch_size).encodings) == count


def test_draws_are_uniform_over_the_rows_held():
    # 5 rows, 400 draws of 5: each expected 400 times. Chi-square with four degrees of freedom
    # exceeds 18.467 with probability 0.001 (same table).
    memory = reservoir(20)
    add(memory, [5])
    generator = torch.Generator().manual_seed(1)
    counts = Counter()
    for _ in range(400):
        counts.update(memory.sample(5, generator).encodings[:, 0].int().tolist())

    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert sum((count - 400) ** 2 for count in counts.values()) / 400 < 18.467


def test_an_empty_memory_says_so():
    memory = reservoir(10)
    with pytest.raises(ValueError, match="empty"):
        draw(memory, 4)
    memory.add(block(range(0)), 1)
    with pytest.raises(ValueError, match="empty"):
        draw(memory, 4)


def test_the_generators_decide_everything(global_generators):
    before = global_generators()
    batches = []
    for _ in range(2):
        memory = reservoir(10, seed=3)
        add(memory, [30, 30])
        batches.append(draw(memory, 8, seed=4))

    assert torch.equal(batches[0].encodings, batches[1].encodings)
    assert not torch.equal(batches[0].encodings, draw(memory, 8, seed=5).encodings)
    assert global_generators() == before


def test_a_block_is_copied():
    rows = block(range(5))
    memory = reservoir(10)
    memory.add(rows, 1)
    rows.encodings[:] = -1

    assert held(memory) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("capacity", "size", "actions"), [(1, 1, 1), (1000, 30, 3), (7, 255, 22)])
def test_the_predicted_bytes_are_those_of_a_full_memory(capacity: int, size: int, actions: int):
    memory = Reservoir(capacity, size, actions, np.random.default_rng(0))
    memory.add(
        SampleBlock(
            np.zeros((capacity, size), np.float32),
            np.zeros((capacity, actions), np.float32),
            np.ones((capacity, actions), np.bool_),
        ),
        1,
    )
    everything = draw(memory, capacity)

    tensors = (everything.encodings, everything.values, everything.legal, everything.weights)
    keys = 8 * capacity  # By which equal information states find each other.
    stored = sum(tensor.nbytes for tensor in tensors)
    assert Reservoir.bytes_needed(capacity, size, actions) == stored + keys


def repeated_rows(seed=0):
    """3,000 rows of 7 information states, from three iterations, with values and masks of each."""
    chance = np.random.default_rng(seed)
    states = chance.normal(size=(7, F)).astype(np.float32)
    masks = chance.random((7, A)) < 0.6
    masks[:, 0] = True
    memory = Reservoir(5_000, F, A, np.random.default_rng(1))
    for t in (1, 2, 5):
        which = chance.integers(0, 7, 1_000)
        values = chance.random((1_000, A)).astype(np.float32) * masks[which]
        values /= values.sum(axis=1, keepdims=True) + 1e-9
        memory.add(SampleBlock(states[which], values, masks[which]), t)
    return memory


def test_merged_rows_are_weighted_means_of_equal_information_states():
    memory = repeated_rows()
    plain = memory.sample(400, torch.Generator().manual_seed(3))
    merged = memory.sample(400, torch.Generator().manual_seed(3), merge=True)
    assert len(merged) == 7
    for row in range(7):
        same = (plain.encodings == merged.encodings[row]).all(dim=1)
        weights = plain.weights[same]
        assert merged.weights[row] == weights.sum()
        mean = (weights[:, None] * plain.values[same]).sum(dim=0) / weights.sum()
        assert torch.allclose(merged.values[row], mean, atol=1e-6)
        assert (plain.legal[same] == merged.legal[row]).all()


@pytest.mark.parametrize("loss", [advantage_loss, strategy_loss])
def test_merging_leaves_the_gradient_as_it_is(loss):
    memory = repeated_rows()
    gradients = []
    for merge in (False, True):
        generator = torch.Generator().manual_seed(4)
        network = new_network(F, A, NetworkSettings(hidden_size=8), generator)
        torch.nn.init.normal_(network.layers[-1].weight, generator=generator)
        batch = memory.sample(400, generator, merge=merge)
        loss(network(batch.encodings), batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(*gradients, atol=1e-6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_different_information_states_are_never_merged(seed):
    """Encodings that differ in one entry only, as those of card games do."""
    chance = np.random.default_rng(seed)
    base = chance.integers(0, 2, 12).astype(np.float32)
    rows = np.repeat(base[None], 13, axis=0)
    rows[np.arange(12), np.arange(12)] = 1 - base
    memory = Reservoir(13, 12, A, np.random.default_rng(0))
    memory.add(SampleBlock(rows, np.zeros((13, A), np.float32), np.ones((13, A), bool)), 1)
    plain = memory.sample(13, torch.Generator().manual_seed(0))
    merged = memory.sample(13, torch.Generator().manual_seed(0), merge=True)
    assert len(merged) == len(torch.unique(plain.encodings, dim=0))
