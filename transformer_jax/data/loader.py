"""Batch plan → arrays on this host, ahead of their use."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.batch_plan import EpochPlan, draw_pairs, plan_epoch
from transformer_jax.data.token_store import TokenStore

Result = TypeVar("Result")


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


class Epochs:
    """The batches of every epoch of a training, planned ahead."""

    def __init__(
        self,
        store_of: Callable[[int], TokenStore],
        config: DataConfig,
        seed: int,
        row_multiple: int,
        shapes: np.ndarray | None = None,
    ):
        """`store_of` gives the store of an epoch; `shapes` as in `plan_epoch`."""
        self._store_of, self._config, self._seed = store_of, config, seed
        self._row_multiple, self._shapes = row_multiple, shapes
        self._planned: dict[int, Future[tuple[TokenStore, EpochPlan]]] = {}

    def get(self, epoch: int) -> tuple[TokenStore, EpochPlan]:
        """The pairs of an epoch, and their batches; sources have their weights."""
        self.prepare(epoch)
        self._planned = {e: planned for e, planned in self._planned.items() if e >= epoch}
        return self._planned[epoch].result()

    def prepare(self, epoch: int) -> None:
        """Begins to make what `get` will be asked for."""
        if epoch not in self._planned:
            self._planned[epoch] = _in_background(lambda: self._plan(epoch))

    def _plan(self, epoch: int) -> tuple[TokenStore, EpochPlan]:
        store, config = self._store_of(epoch), self._config
        weights = [source.weight for source in config.sources("train")]
        pairs = draw_pairs(store.starts, weights, self._seed, epoch)
        lengths = store.source_lengths, store.target_lengths
        multiple, shapes = self._row_multiple, self._shapes
        return store, plan_epoch(*lengths, config, self._seed, epoch, multiple, pairs, shapes)


def _in_background(work: Callable[[], Result]) -> "Future[Result]":
    """Not by an executor, for whose threads Python waits when it ends: whoever leaves wants to
    save and go, not to wait for a plan that nobody needs."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def train_batches(
    epochs: Epochs, config: DataConfig, cursor: Cursor, shard: Shard
) -> Iterator[tuple[Cursor, dict[str, np.ndarray]]]:
    """Batches for ever, from `cursor` on, each with the cursor of the batch after it.

    Batches are made by background threads, and the plan of the next epoch while this one runs.
    """
    import grain

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=config.prefetch_batches)
    while True:
        source = PlannedBatches(*epochs.get(cursor.epoch), shard)
        epochs.prepare(cursor.epoch + 1)
        dataset = grain.MapDataset.source(source)[cursor.batch :].to_iter_dataset(options)
        for batch in dataset:
            cursor = Cursor(cursor.epoch, cursor.batch + 1)
            if cursor.batch == len(source):
                cursor = Cursor(cursor.epoch + 1, 0)
            yield cursor, batch


def dev_batches(
    store: TokenStore,
    config: DataConfig,
    row_multiple: int,
    shard: Shard,
    shapes: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Every pair of the validation set once, in rows of `shapes`, as in `plan_epoch`."""
    lengths = store.source_lengths, store.target_lengths
    plan = plan_epoch(*lengths, config, 0, 0, row_multiple, shapes=shapes)
    yield from PlannedBatches(store, plan, shard)
