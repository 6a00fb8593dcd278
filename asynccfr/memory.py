"""Reservoirs of training samples, in tensors.

A reservoir holds a uniform random sample of all rows ever added (Vitter 1985, algorithm R),
which is what makes a fit estimate the average over all iterations and not over the latest.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asynccfr.games.base import BoolArray, FloatArray


@dataclass(frozen=True)
class SampleBlock:
    """Rows of one iteration, in traversal order.

    Attributes:
        encodings: information states, float32[N, F].
        values: what to learn, float32[N, A]: sampled advantages, or the policy that was played;
            0 at illegal actions.
        legal: bool[N, A].
    """

    encodings: FloatArray
    values: FloatArray
    legal: BoolArray

    def __len__(self) -> int:
        return len(self.encodings)


@dataclass(frozen=True)
class Batch:
    """Rows drawn for one training step.

    Attributes:
        encodings: float32[B, F].
        values: float32[B, A].
        legal: bool[B, A].
        weights: float32[B], the iteration t that stored the row; for merged rows the sum of
            theirs.
    """

    encodings: Tensor
    values: Tensor
    legal: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def to(self, device: torch.device) -> "Batch":
        """The same rows on `device`."""
        return Batch(
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (self.encodings, self.values, self.legal, self.weights)
            )
        )


class Reservoir:
    """A uniform sample of at most `capacity` of the rows added so far.

    Args:
        capacity: the most rows held.
        encoding_size: F.
        num_actions: A.
        generator: decides which rows stay.
    """

    def __init__(
        self, capacity: int, encoding_size: int, num_actions: int, generator: np.random.Generator
    ) -> None:
        self.capacity = capacity
        self.seen = 0
        """How many rows were ever added."""
        self._generator = generator
        self._encodings = torch.empty(capacity, encoding_size)
        self._values = torch.empty(capacity, num_actions)
        self._legal = torch.empty(capacity, num_actions, dtype=torch.bool)
        self._iterations = torch.empty(capacity)
        self._keys = torch.empty(capacity, dtype=torch.int64)
        self._multipliers = _key_multipliers(encoding_size)

    @staticmethod
    def bytes_needed(capacity: int, encoding_size: int, num_actions: int) -> int:
        """What a full reservoir occupies, in bytes."""
        return capacity * (4 * encoding_size + 5 * num_actions + 12)

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def add(self, block: SampleBlock, iteration: int) -> None:
        """Adds the rows of one iteration; the same in distribution as adding them one by one."""
        slots = self._slots(len(block))
        kept = np.flatnonzero(slots >= 0)
        index = torch.from_numpy(slots[kept])
        if len(kept) < len(block):
            block = SampleBlock(block.encodings[kept], block.values[kept], block.legal[kept])
        for stored, rows in (
            (self._encodings, block.encodings),
            (self._values, block.values),
            (self._legal, block.legal),
            (self._keys, self._block_keys(block)),
        ):
            stored[index] = torch.from_numpy(rows)
        self._iterations[index] = float(iteration)
        self.seen += len(slots)

    def _slots(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """For each of `count` new rows the slot it ends up in, -1 where it is not kept.

        Row number i (from 0, over all rows ever added) takes slot i while there is room; after
        that it draws j uniformly from 0..i and replaces slot j if there is one. Of several new
        rows that draw one slot the last wins.
        """
        numbers = np.arange(self.seen, self.seen + count, dtype=np.int64)
        free = min(max(self.capacity - self.seen, 0), count)
        slots = numbers.copy()
        slots[free:] = self._generator.integers(0, numbers[free:] + 1)
        slots[slots >= self.capacity] = -1
        _, first_from_the_end = np.unique(slots[::-1], return_index=True)
        last = np.zeros(count, dtype=np.bool_)
        last[count - 1 - first_from_the_end] = True
        slots[~last] = -1
        return slots

    def _block_keys(self, block: SampleBlock) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        bits = block.encodings.view(np.uint32)
        # Small whole numbers differ in their exponent alone. Rotated, a bijection, it comes to
        # the low bits, where a product modulo 2**64 keeps it.
        words = ((bits >> np.uint32(23)) | (bits << np.uint32(9))).astype(np.uint64)
        keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = words @ self._multipliers
        return keys.view(np.int64)

    def sample(self, batch_size: int, generator: torch.Generator, *, merge: bool = False) -> Batch:
        """Rows drawn uniformly with replacement: `batch_size`, or as many as are held if fewer.

        Args:
            batch_size: how many rows to draw.
            generator: draws them.
            merge: put rows of one information state together, as one row with their weighted mean
                value and the sum of their weights. Weighted squared error and cross-entropy have
                the same gradient on the merged batch, at the cost of a smaller one.

        Raises:
            ValueError: where the reservoir is empty.
        """
        if not len(self):
            raise ValueError("an empty reservoir has nothing to train on")
        count = min(batch_size, len(self))
        index = torch.randint(len(self), (count,), generator=generator)
        if merge:
            return self._merged(index)
        return Batch(
            self._encodings.index_select(0, index),
            self._values.index_select(0, index),
            self._legal.index_select(0, index),
            self._iterations.index_select(0, index),
        )

    def _merged(self, index: Tensor) -> Batch:
        keys, group = torch.unique(self._keys.index_select(0, index), return_inverse=True)
        weights = self._iterations.index_select(0, index)
        weighted = self._values.index_select(0, index) * weights[:, None]
        sums = torch.zeros(len(keys)).index_add_(0, group, weights)
        values = torch.zeros(len(keys), weighted.shape[1]).index_add_(0, group, weighted)
        one_of_each = torch.empty_like(keys).scatter_(0, group, index)
        return Batch(
            self._encodings.index_select(0, one_of_each),
            values / sums[:, None],
            self._legal.index_select(0, one_of_each),
            sums,
        )


def _key_multipliers(encoding_size: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Random odd 64-bit numbers for multilinear hashing.

    Two given encodings share a key with a probability of about 2**-55, or less: their difference,
    times an odd number, loses as many bits as the difference has factors of two.

    Source: Lemire & Kaser 2014 (arXiv 1202.4961), multilinear hashing.
    """
    chance = np.random.default_rng(0x5EED)
    return chance.integers(0, 2**63, encoding_size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
