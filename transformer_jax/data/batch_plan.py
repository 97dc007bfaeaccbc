"""The order of the data: lengths, seed and epoch → rows → batches. Pure NumPy.

The plan is that of the whole job, whatever the number of hosts, and batch i of epoch e is computed
from (lengths, seed, e) alone: to go on after batch i, nothing but (e, i) need be remembered.
"""

import itertools
from typing import NamedTuple

import numpy as np

from transformer_jax.config import DataConfig

OPEN_ROWS = 128
"""Rows that packing holds open; more leave less padding and take longer."""


class EpochPlan(NamedTuple):
    """The batches of one epoch."""

    pairs: np.ndarray
    """Every pair once, int64, in the order of the rows."""
    row_starts: np.ndarray
    """Row r holds pairs[row_starts[r]:row_starts[r + 1]]."""
    batch_starts: np.ndarray
    """Batch b holds the rows batch_starts[b]:batch_starts[b + 1], and filler rows below them."""
    shapes: np.ndarray
    """Of every batch (rows with the filler rows, tokens in a row), int64 [batches, 2]."""

    @property
    def num_batches(self) -> int:
        return len(self.shapes)


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    config: DataConfig,
    seed: int,
    epoch: int,
    row_multiple: int,
) -> EpochPlan:
    """Shuffles all pairs into batches of about `config.tokens_per_update` tokens a side.

    Lengths are those of every pair in tokens, end mark included, none above `config.max_length`.
    Filler rows make the rows of every batch a multiple of `row_multiple`, the devices which split
    a batch times the micro-batches; which pairs meet in a batch does not depend on it.
    """
    random = np.random.default_rng([seed, epoch])
    if config.batching == "packed":
        return _plan_packed(source_lengths, target_lengths, config, random, row_multiple)
    return _plan_bucketed(source_lengths, target_lengths, config, random, row_multiple)


def num_rows(config: DataConfig, length: int) -> int:
    """Rows of `length` tokens that a batch may fill."""
    return max(config.tokens_per_update // length, 1)


def padded_rows(rows: int, row_multiple: int) -> int:
    """Rows of a batch with the filler rows that let devices and micro-batches divide them."""
    return -(-rows // row_multiple) * row_multiple


def bucket_lengths(max_length: int) -> list[int]:
    """8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, ... up to `max_length`."""
    lengths = [8]
    while lengths[-1] < max_length:
        lengths.append(lengths[-1] + 2 ** max(3, lengths[-1].bit_length() - 3))
    return [*lengths[:-1], max_length]


def largest_shape(config: DataConfig, row_multiple: int) -> tuple[int, int]:
    """Rows and tokens in a row, on each side, of the batch that needs most memory."""
    packed = config.batching == "packed"
    lengths = [config.max_length] if packed else bucket_lengths(config.max_length)
    rows = [padded_rows(num_rows(config, length), row_multiple) for length in lengths]
    shapes = zip(rows, lengths, strict=True)
    # Of shapes with as many tokens the longest rows need the most: attention is quadratic.
    return max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))


def _plan_packed(source_lengths, target_lengths, config, random, row_multiple) -> EpochPlan:
    rows = _pack(
        source_lengths, target_lengths, random.permutation(len(source_lengths)), config.max_length
    )
    rows = [rows[i] for i in random.permutation(len(rows))]
    rows_per_batch = num_rows(config, config.max_length)
    batch_starts = _starts(len(rows), rows_per_batch)
    return EpochPlan(
        pairs=np.concatenate([np.array(row, np.int64) for row in rows]),
        row_starts=np.cumsum([0, *(len(row) for row in rows)]),
        batch_starts=batch_starts,
        shapes=np.tile(
            [padded_rows(rows_per_batch, row_multiple), config.max_length],
            (len(batch_starts) - 1, 1),
        ),
    )


def _pack(source_lengths, target_lengths, order, capacity) -> list[list[int]]:
    """Best fit: each pair goes into the open row that it fills most; full rows are closed."""
    room = np.full((2, OPEN_ROWS), capacity)
    lengths = np.stack([source_lengths, target_lengths], axis=1)[order]
    open_rows: list[list[int]] = [[] for _ in range(OPEN_ROWS)]
    closed = []
    for pair, length in zip(order.tolist(), lengths, strict=True):
        left = (room - length[:, None]).min(axis=0)
        # As unsigned, a row without room for the pair has the most left, and is not chosen.
        row = int(left.astype(np.uint32).argmin())
        if left[row] < 0:
            row = int(room.sum(axis=0).argmin())
            closed.append(open_rows[row])
            open_rows[row] = []
            room[:, row] = capacity
        open_rows[row].append(pair)
        room[:, row] -= length
    return closed + [row for row in open_rows if row]


def _plan_bucketed(source_lengths, target_lengths, config, random, row_multiple) -> EpochPlan:
    lengths = bucket_lengths(config.max_length)
    buckets = np.searchsorted(lengths, np.maximum(source_lengths, target_lengths))
    shuffled = random.permutation(len(buckets))
    batches: list[np.ndarray] = []
    shapes: list[tuple[int, int]] = []
    for bucket, length in enumerate(lengths):
        pairs = shuffled[buckets[shuffled] == bucket]
        rows = num_rows(config, length)
        starts = _starts(len(pairs), rows)
        batches += [pairs[a:b] for a, b in itertools.pairwise(starts)]
        shapes += [(padded_rows(rows, row_multiple), length)] * (len(starts) - 1)
    order = random.permutation(len(batches))
    return EpochPlan(
        pairs=np.concatenate([batches[i] for i in order]),
        row_starts=np.arange(len(shuffled) + 1),
        batch_starts=np.cumsum([0, *(len(batches[i]) for i in order)]),
        shapes=np.array(shapes)[order],
    )


def _starts(total: int, size: int) -> np.ndarray:
    """Where parts of `size` start in `total` things, and the end of the last part."""
    return np.append(np.arange(0, total, size), total)
