"""A corpus in other pieces in every epoch: its token store, with segmentations drawn anew."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from transformer_jax.data.sampling import Sampler
from transformer_jax.data.token_store import TokenStore, write_store
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers
from transformer_jax.errors import UserError

_CHUNK_PAIRS = 5_000

Sentences = list[list[int]]


@dataclass(frozen=True)
class Resampling:
    """The stores of the epochs: that of epoch e depends on the store, the seed and e alone."""

    folder: Path
    """Where they lie, each under the number of its epoch."""
    store: TokenStore
    tokenizers: Tokenizers
    rate: float
    """`tokenizer.sampling_rate`, above 0."""
    seed: int
    max_length: int
    """Where the pieces drawn are more than these, a sentence keeps those that it has."""

    def __call__(self, epoch: int) -> TokenStore:
        """The store of an epoch, made where it is not there; that of two epochs before goes.

        The first process of a job makes it, with all cores of its host where there are many pairs.
        Raises UserError as `token_store.write_store` and `sampling.Sampler` do.
        """
        from transformer_jax.distributed import is_first  # JAX, which `inspect` need not wait for

        directory = self.folder / str(epoch)
        while not directory.exists():
            if is_first():
                self._write(directory, epoch)
            else:
                time.sleep(1)
        if is_first():
            # Under another name first: half of a store must not be taken for one.
            old = self.folder / str(epoch - 2)
            with suppress(OSError):
                shutil.rmtree(old.rename(old.with_name(f".{old.name}.old")))
        return TokenStore(directory)

    def _write(self, directory: Path, epoch: int) -> None:
        work = partial(_draw, self.tokenizers, self.rate, self.max_length, (self.seed, epoch))
        starts = range(0, len(self.store), _CHUNK_PAIRS)
        chunks = ((self._sentences(start), start) for start in starts)
        try:
            with (
                write_store(directory, self.tokenizers.vocab_size) as writer,
                _workers(starts) as pool,
            ):
                for sources, targets in _map(pool, work, chunks):
                    writer.write(sources, targets)
                writer.finish(self.store.fingerprint, self.store.reports)
        except BrokenExecutor as error:
            raise UserError(f"{directory}: a process that made it has ended: {error}") from None

    def _sentences(self, start: int) -> tuple[Sentences, Sentences]:
        pairs = range(start, min(start + _CHUNK_PAIRS, len(self.store)))
        store = self.store
        return [store.source(i).tolist() for i in pairs], [store.target(i).tolist() for i in pairs]


def _workers(chunks: range) -> "Executor | nullcontext[None]":
    """Processes, where there is work for several: starting one takes a second."""
    count = min(len(chunks), os.cpu_count() or 1)
    if count == 1:
        return nullcontext()
    # Not by fork: JAX has threads here.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=spawn, initializer=_ignore_signals)


def _ignore_signals() -> None:
    """Ctrl-C is sent to all processes of a terminal, but it is for the one that trains to leave."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _map(pool: Executor | None, work, chunks) -> Iterator[tuple[Sentences, Sentences]]:
    """`work` of all chunks in their order, a few at a time."""
    if pool is None:
        yield from (work(*chunk) for chunk in chunks)
        return
    waiting = []
    for chunk in chunks:
        waiting.append(pool.submit(work, *chunk))
        if len(waiting) > 2 * (os.cpu_count() or 1):
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _draw(
    tokenizers: Tokenizers,
    rate: float,
    max_length: int,
    key: tuple[int, ...],
    sentences: tuple[Sentences, Sentences],
    first: int,
) -> tuple[Sentences, Sentences]:
    """Sentences, the first of which has the number `first`, in pieces drawn anew."""
    sources, targets = (
        _draw_side(tokenizer, rate, max_length, (*key, side), ids, first)
        for side, (tokenizer, ids) in enumerate(
            zip((tokenizers.source, tokenizers.target), sentences, strict=True)
        )
    )
    return sources, targets


def _draw_side(
    tokenizer: Tokenizer,
    rate: float,
    max_length: int,
    key: tuple[int, ...],
    ids: Sentences,
    first: int,
) -> Sentences:
    drawn = _sampler(tokenizer.model_bytes, rate).encode(tokenizer.decode(ids), key, first)
    return [
        [*new, tokenizer.eos_id] if len(new) < max_length else old
        for new, old in zip(drawn, ids, strict=True)
    ]


@lru_cache(maxsize=2)
def _sampler(model_bytes: bytes, rate: float) -> Sampler:
    """One for all parts of a side: it remembers words."""
    return Sampler(Tokenizer(model_bytes), rate)
