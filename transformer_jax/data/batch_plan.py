"""The order of the data: lengths, seed and epoch → rows → batches. Pure NumPy.

The plan is that of the whole job, whatever the number of hosts, and batch i of epoch e is computed
from (lengths, seed, e) alone: to go on after batch i, nothing but (e, i) need be remembered.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.config import DataConfig

GROUP_PAIRS = 1_024
"""Pairs that are packed for themselves; with more, rows get emptier or the search slower."""
OPEN_ROWS = 128
"""Rows of a group that packing holds open at most."""

_PACKED_STEP = 8
_DISORDER = 0.25
_BUCKET_STEP = 4
_BUCKET_STEPS = 100
_BUCKET_PADDING = 0.09
_TOO_FULL = 2**15
"""As unsigned 16-bit numbers, negative ones are not below this."""


class BatchShape(NamedTuple):
    """Rows of a batch with its filler rows, and tokens in a row of either side."""

    rows: int
    source_length: int
    target_length: int


class EpochPlan(NamedTuple):
    """The batches of one epoch."""

    pairs: np.ndarray
    """Every pair that was asked for, int64, in the order of the rows."""
    row_starts: np.ndarray
    """Row r holds pairs[row_starts[r]:row_starts[r + 1]]."""
    batch_starts: np.ndarray
    """Batch b holds the rows batch_starts[b]:batch_starts[b + 1], and filler rows below them."""
    shapes: np.ndarray
    """The `BatchShape` of every batch, int64 [batches, 3]."""

    @property
    def num_batches(self) -> int:
        return len(self.shapes)


def draw_pairs(starts: np.ndarray, weights: Sequence[float], seed: int, epoch: int) -> np.ndarray:
    """The pairs of an epoch, int64: those of source i `weights[i]` times.

    Source i has the pairs starts[i]:starts[i + 1]. Of a weight with a fraction, such as 2.25, all
    pairs come twice, and a quarter of them once more: in the next epoch the next quarter, so that
    four epochs have seen all equally often.
    """
    drawn = []
    for source, weight in enumerate(weights):
        start, size = starts[source], starts[source + 1] - starts[source]
        whole = int(weight)
        extra = round((weight - whole) * size)
        drawn += [np.arange(start, start + size)] * whole
        if extra:
            order = np.random.default_rng([seed, source]).permutation(size)
            drawn.append(start + order[np.arange(epoch * extra, (epoch + 1) * extra) % size])
    return np.concatenate([np.zeros(0, np.int64), *drawn])


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    config: DataConfig,
    seed: int,
    epoch: int,
    row_multiple: int,
    pairs: np.ndarray | None = None,
    shapes: np.ndarray | None = None,
) -> EpochPlan:
    """Shuffles pairs into batches of about `config.tokens_per_update` tokens a side.

    Lengths are those of every pair in tokens, end mark included, none above `config.max_length`.
    `pairs` are those of the epoch, perhaps some of them several times; None is each of them once.
    `shapes` are the lengths of rows, as `row_shapes` gives them, which is asked where it is None.
    Filler rows make the rows of every batch a multiple of `row_multiple`, the devices which split
    a batch times the micro-batches; which pairs meet in a batch does not depend on it.
    """
    random = np.random.default_rng([seed, epoch])
    if shapes is None:
        shapes = row_shapes(source_lengths, target_lengths, config)
    if pairs is None:
        shuffled = random.permutation(len(source_lengths))
    else:
        shuffled = random.permutation(pairs)
    if not len(shuffled):
        raise ValueError("there are no pairs to plan")
    plan = _plan_packed if config.batching == "packed" else _plan_bucketed
    return plan(source_lengths, target_lengths, shuffled, shapes, config, random, row_multiple)


def row_shapes(
    source_lengths: np.ndarray, target_lengths: np.ndarray, config: DataConfig
) -> np.ndarray:
    """The few (source, target) lengths of a row that a corpus needs, int64 [shapes, 2].

    Packed, rows have `max_length` tokens on the side of the corpus with more tokens, and on the
    other as many fewer as it has fewer; there is a second shape where single sentences are longer
    than that. Bucketed, there are as few as leave 9 % padding, `max_buckets` at most.
    """
    if config.batching == "packed":
        return _packed_shapes(source_lengths, target_lengths, config.max_length)
    return _bucket_shapes(source_lengths, target_lengths, config)


def with_largest(shapes: np.ndarray, config: DataConfig) -> np.ndarray:
    """Shapes in which any pair fits, that of another corpus too."""
    if (shapes[-1] == config.max_length).all():
        return shapes
    return np.append(shapes, np.full((1, 2), config.max_length), axis=0)


def num_rows(config: DataConfig, length: int) -> int:
    """Rows whose longer side has `length` tokens that a batch may fill."""
    return max(config.tokens_per_update // length, 1)


def padded_rows(rows: int, row_multiple: int) -> int:
    """Rows of a batch with the filler rows that let devices and micro-batches divide them."""
    return -(-rows // row_multiple) * row_multiple


def largest_shape(config: DataConfig, row_multiple: int, shapes: np.ndarray) -> BatchShape:
    """The batch that needs most memory, of those with rows of some (source, target) lengths."""
    batches = [_batch_shape(config, shape, row_multiple) for shape in shapes.tolist()]
    # Of batches with as many tokens the longest rows need the most: attention is quadratic.
    return max(batches, key=lambda one: (one.rows * sum(one[1:]), max(one[1:])))


def _batch_shape(config: DataConfig, shape: Sequence[int], row_multiple: int) -> BatchShape:
    return BatchShape(padded_rows(num_rows(config, max(shape)), row_multiple), *shape)


def _packed_shapes(sources: np.ndarray, targets: np.ndarray, max_length: int) -> np.ndarray:
    totals = np.array([sources.sum(), targets.sum()], np.int64)
    balanced = max_length * totals / totals.max()
    usual = np.minimum(np.ceil(balanced / _PACKED_STEP).astype(np.int64) * _PACKED_STEP, max_length)
    if (sources > usual[0]).any() or (targets > usual[1]).any():
        return np.array([usual, [max_length, max_length]])
    return usual[None]


def _plan_packed(sources, targets, shuffled, shapes, config, random, row_multiple) -> EpochPlan:
    pairs, row_starts = _pack(sources, targets, shuffled, shapes[0], config.max_length, random)
    pairs, row_starts = _shuffle_rows(pairs, row_starts, random)
    usual, largest = shapes[[0, -1]]
    batch_starts = _starts(len(row_starts) - 1, num_rows(config, config.max_length))
    filled = np.stack([np.add.reduceat(x[pairs], row_starts[:-1]) for x in (sources, targets)])
    needed = np.maximum.reduceat(filled, batch_starts[:-1], axis=1).T
    lengths = np.where((needed > usual).any(axis=1, keepdims=True), largest, usual)
    rows = _batch_shape(config, largest, row_multiple).rows
    shapes = np.insert(lengths, 0, rows, axis=1)
    return EpochPlan(pairs, row_starts, batch_starts, shapes)


def _pack(sources, targets, shuffled, usual, max_length, random) -> tuple[np.ndarray, np.ndarray]:
    """Pairs in the order of their rows, and where these start.

    The longest pairs of a group come first, each into the open row that it fills most; where none
    has room, the fullest is closed. All groups take a pair at the same time, so this is fast.
    """
    num_groups = max(len(shuffled) // GROUP_PAIRS, 1)
    missing = -len(shuffled) % num_groups
    # Dealt like cards: no group misses more than one pair, which -1 stands for.
    groups = np.append(shuffled, np.full(missing, -1)).reshape(-1, num_groups).T
    sides = [np.where(groups < 0, 0, x[groups]).astype(np.int16) for x in (sources, targets)]
    share = np.maximum(*(x / np.float32(length) for x, length in zip(sides, usual, strict=True)))
    # Not quite by length, or the pairs of a small corpus would meet the same ones in every epoch.
    share *= random.uniform(1 - _DISORDER, 1, share.shape).astype(np.float32)
    longest_first = np.argsort(-share, axis=1, kind="stable")
    groups, *sides = (
        np.ascontiguousarray(np.take_along_axis(x, longest_first, axis=1).T)
        for x in (groups, *sides)
    )
    rows = _fill_rows(*sides, usual, max_length)
    real = groups.T >= 0
    rows, pairs = rows.T[real], groups.T[real]
    order = np.argsort(rows, kind="stable")
    return pairs[order], np.append(0, np.cumsum(np.bincount(rows)))


def _fill_rows(sources, targets, usual, max_length) -> np.ndarray:
    """The row of every pair [pairs, groups]; each group has rows of its own, without gaps."""
    num_groups = sources.shape[1]
    group = np.arange(num_groups)
    source_room, target_room = np.full((2, num_groups, OPEN_ROWS), -1, np.int16)
    row = np.zeros((num_groups, OPEN_ROWS), np.int32)
    opened = np.zeros(num_groups, np.int32)
    rows = np.empty(sources.shape, np.int32)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        left = np.minimum(source_room - source[:, None], target_room - target[:, None])
        left = left.view(np.uint16)
        chosen = left.argmin(axis=1)
        full = np.flatnonzero(left[group, chosen] >= _TOO_FULL)
        if len(full):
            chosen[full] = (source_room[full] + target_room[full]).argmin(axis=1)
            new = full, chosen[full]
            row[new] = opened[full]
            opened[full] += 1
            # A sentence too long for a usual row gets one of the largest.
            large = (source[full] > usual[0]) | (target[full] > usual[1])
            source_room[new] = np.where(large, max_length, usual[0])
            target_room[new] = np.where(large, max_length, usual[1])
        source_room[group, chosen] -= source
        target_room[group, chosen] -= target
        rows[i] = row[group, chosen]
    # A pair that is none has no length and comes last: it finds an open row, and opens no other.
    return rows + (np.cumsum(opened) - opened)


def _shuffle_rows(pairs, row_starts, random) -> tuple[np.ndarray, np.ndarray]:
    order = random.permutation(len(row_starts) - 1)
    sizes = np.diff(row_starts)[order]
    starts = np.append(0, np.cumsum(sizes))
    index = np.repeat(row_starts[:-1][order] - starts[:-1], sizes) + np.arange(len(pairs))
    return pairs[index], starts


def _bucket_shapes(sources: np.ndarray, targets: np.ndarray, config: DataConfig) -> np.ndarray:
    """Adds, to the largest, one shape after the other: that which saves the most padding."""
    step = max(config.max_length // _BUCKET_STEPS // _BUCKET_STEP, 1) * _BUCKET_STEP
    largest = -(-config.max_length // step)
    # The lengths of all pairs, in steps: counts[s, t] pairs are that long.
    steps = [-(-lengths // step) for lengths in (sources, targets)]
    size = (largest + 1, largest + 1)
    counts = np.bincount(np.ravel_multi_index(steps, size), minlength=np.prod(size)).reshape(size)
    cost = np.full(size, 2 * largest)
    shapes = [(largest, largest)]
    wanted = (sources.sum(dtype=np.int64) + targets.sum(dtype=np.int64)) / (1 - _BUCKET_PADDING)
    while (counts * cost).sum() * step > wanted and len(shapes) < config.max_buckets:
        savings = np.zeros(size, np.int64)
        for total in range(2, 2 * largest):
            saved = counts * np.maximum(cost - total, 0)
            source = np.arange(max(total - largest, 1), min(largest, total - 1) + 1)
            savings[source, total - source] = saved.cumsum(0).cumsum(1)[source, total - source]
        if not savings.any():
            break
        source, target = np.unravel_index(savings.argmax(), size)
        shapes.append((int(source), int(target)))
        inside = cost[: source + 1, : target + 1]
        np.minimum(inside, source + target, out=inside)
    return np.minimum(np.array(sorted(shapes, key=sum)) * step, config.max_length)


def _plan_bucketed(sources, targets, shuffled, shapes, config, random, row_multiple) -> EpochPlan:
    bucket = np.full(len(shuffled), len(shapes) - 1, np.int16)
    for index in reversed(range(len(shapes))):  # by their size, so that the smallest is last
        fits = (sources[shuffled] <= shapes[index, 0]) & (targets[shuffled] <= shapes[index, 1])
        bucket[fits] = index
    batches: list[np.ndarray] = []
    batch_shapes: list[BatchShape] = []
    for index, shape in enumerate(shapes.tolist()):
        pairs = shuffled[bucket == index]
        starts = _starts(len(pairs), num_rows(config, max(shape)))
        batches += [pairs[a:b] for a, b in itertools.pairwise(starts)]
        batch_shapes += [_batch_shape(config, shape, row_multiple)] * (len(starts) - 1)
    order = random.permutation(len(batches))
    return EpochPlan(
        pairs=np.concatenate([batches[i] for i in order]),
        row_starts=np.arange(len(shuffled) + 1),
        batch_starts=np.cumsum([0, *(len(batches[i]) for i in order)]),
        shapes=np.array(batch_shapes)[order],
    )


def _starts(total: int, size: int) -> np.ndarray:
    """Where parts of `size` start in `total` things, and the end of the last part."""
    return np.append(np.arange(0, total, size), total)
