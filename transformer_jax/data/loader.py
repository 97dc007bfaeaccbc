"""Batch plan → arrays on this host, ahead of their use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.batch_plan import EpochPlan, draw_pairs, plan_epoch
from transformer_jax.data.token_store import TokenStore


class Cursor(NamedTuple):
    """A place in the data: the next batch is `batch` of `epoch`."""

    epoch: int
    batch: int


class Shard(NamedTuple):
    """Which part of every batch's rows this process holds."""

    index: int
    count: int


class PlannedBatches:
    """The batches of a plan as a random-access source: item i is this process's part of batch i."""

    def __init__(self, store: TokenStore, plan: EpochPlan, shard: Shard):
        self.store, self.plan, self.shard = store, plan, shard

    def __len__(self) -> int:
        return self.plan.num_batches

    def __getitem__(self, batch: int) -> dict[str, np.ndarray]:
        return collate(self.store, self.plan, batch, self.shard)


def collate(store: TokenStore, plan: EpochPlan, batch: int, shard: Shard) -> dict[str, np.ndarray]:
    """The rows of a batch that belong to `shard`: int32 arrays, see `array_types.Batch`."""
    all_rows, *row_lengths = plan.shapes[batch]
    rows = all_rows // shard.count
    first = plan.batch_starts[batch] + shard.index * rows
    last = min(first + rows, plan.batch_starts[batch + 1])
    row_starts = plan.row_starts[min(first, last) : last + 1]
    pairs = plan.pairs[row_starts[0] : row_starts[-1]]
    pairs_per_row = np.diff(row_starts)
    row = np.repeat(np.arange(len(pairs_per_row)), pairs_per_row)
    segment = np.arange(len(pairs)) - (row_starts[:-1] - row_starts[0])[row] + 1
    sides = {
        "inputs": (store.source_tokens, store.source_offsets),
        "targets": (store.target_tokens, store.target_offsets),
    }
    arrays = {}
    for (side, (tokens, offsets)), length in zip(sides.items(), row_lengths, strict=True):
        starts, lengths = offsets[pairs], offsets[pairs + 1] - offsets[pairs]
        # Within a row sentences follow one another: a sentence starts where all before it end,
        # less what the rows before its own hold.
        ends = np.cumsum(lengths)
        before_row = np.concatenate([[0], ends])[row_starts[:-1] - row_starts[0]][row]
        column = ends - lengths - before_row
        position = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
        where = np.repeat(row * length + column, lengths) + position
        for name, values in (
            (side, tokens[np.repeat(starts, lengths) + position]),
            (f"{side}_positions", position),
            (f"{side}_segments", np.repeat(segment, lengths)),
        ):
            array = np.zeros(rows * length, np.int32)
            array[where] = values
            arrays[name] = array.reshape(rows, length)
    return arrays


def epoch_plan(
    store: TokenStore,
    config: DataConfig,
    seed: int,
    epoch: int,
    row_multiple: int,
    shapes: np.ndarray | None = None,
) -> EpochPlan:
    """The batches of an epoch of training, in which sources have their weights."""
    weights = [source.weight for source in config.sources("train")]
    pairs = draw_pairs(store.starts, weights, seed, epoch)
    lengths = store.source_lengths, store.target_lengths
    return plan_epoch(*lengths, config, seed, epoch, row_multiple, pairs, shapes)


def train_batches(
    store_of: Callable[[int], TokenStore],
    config: DataConfig,
    seed: int,
    row_multiple: int,
    cursor: Cursor,
    shard: Shard,
    shapes: np.ndarray | None = None,
) -> Iterator[tuple[Cursor, dict[str, np.ndarray]]]:
    """Batches for ever, from `cursor` on, each with the cursor of the batch after it.

    `store_of` gives the store of an epoch. Batches are made by background threads, and store and
    plan of the next epoch while this one runs.
    """
    import grain

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=config.prefetch_batches)
    executor = ThreadPoolExecutor(1)

    def plan(epoch: int) -> PlannedBatches:
        store = store_of(epoch)
        planned = epoch_plan(store, config, seed, epoch, row_multiple, shapes)
        return PlannedBatches(store, planned, shard)

    try:
        current = executor.submit(plan, cursor.epoch)
        while True:
            source = current.result()
            current = executor.submit(plan, cursor.epoch + 1)
            dataset = grain.MapDataset.source(source)[cursor.batch :].to_iter_dataset(options)
            for batch in dataset:
                cursor = Cursor(cursor.epoch, cursor.batch + 1)
                if cursor.batch == len(source):
                    cursor = Cursor(cursor.epoch + 1, 0)
                yield cursor, batch
    finally:
        # Whoever leaves wants to save and go, not to wait for a plan that nobody needs.
        executor.shutdown(wait=False, cancel_futures=True)


def dev_batches(
    store: TokenStore, config: DataConfig, row_multiple: int, shard: Shard
) -> Iterator[dict[str, np.ndarray]]:
    """Every pair of the validation set once, in the shapes of the training batches."""
    plan = plan_epoch(store.source_lengths, store.target_lengths, config, 0, 0, row_multiple)
    yield from PlannedBatches(store, plan, shard)
