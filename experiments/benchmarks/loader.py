"""From text to arrays: tokens on disk, the plan of an epoch, batches on the host. CPU alone.

Command    python experiments/benchmarks/loader.py FILE.en FILE.de [--pairs 40000000] [--json FILE]
           with any parallel text, plain, .gz or .xz; --cores 1 keeps to one core
Prints     seconds, tokens a second, shares of real tokens, peak memory

Batches are made in this thread, without the threads that prefetch in training. The large corpus
has lengths drawn from those of the text, and no tokens. `--profile` adds where the time of a batch
goes.
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import DataConfig, TokenizerConfig
from transformer_jax.data.batch_plan import EpochPlan, plan_epoch
from transformer_jax.data.corpus import build_store
from transformer_jax.data.loader import PlannedBatches, Shard
from transformer_jax.data.text import read_pairs
from transformer_jax.data.token_store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, default=40_000_000)
    parser.add_argument("--vocab-size", type=int, default=8_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: options.cores]))
    with tempfile.TemporaryDirectory() as folder:
        result = {"cores": len(os.sched_getaffinity(0)), **measure(options, Path(folder))}
    for name, row in result.items():
        print(name, json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Row]:
    config = DataConfig()
    result, store = {}, folder / "store"
    result["store"] = apart(measure_store, options, store)
    tokens = TokenStore(store)
    lengths = tokens.source_lengths, tokens.target_lengths
    for batching in ("packed", "bucketed"):
        one = replace(config, batching=batching)
        seconds, plan = timed(lambda one=one: plan_epoch(*lengths, one, 0, 0, 8))
        result[batching] = {
            "plan_seconds": round(seconds, 2),
            "shapes": len(np.unique(plan.shapes, axis=0)),
            "share_of_real_tokens": round(share_of_real_tokens(plan, *lengths), 4),
            **measure_batches(tokens, plan, options.batches),
        }
    if options.profile:
        profile(tokens, plan_epoch(*lengths, config, 0, 0, 8), options.batches)
    result["large"] = apart(measure_large, lengths, config, options.pairs)
    return result


def measure_store(options: argparse.Namespace, folder: Path) -> Row:
    config = DataConfig()

    def train() -> Tokenizers:
        sentences = chain.from_iterable(read_pairs(options.source, options.target))
        model = train_tokenizer(sentences, TokenizerConfig(vocab_size=options.vocab_size))
        tokenizer = Tokenizer(model)
        return Tokenizers(tokenizer, tokenizer)

    train_seconds, tokenizers = timed(train)

    def build() -> TokenStore:
        pairs = read_pairs(options.source, options.target)
        return build_store(folder, [("text", pairs)], tokenizers, config)

    seconds, store = timed(build)
    return {
        "pairs": len(store),
        "tokenizer_seconds": round(train_seconds, 1),
        "store_seconds": round(seconds, 1),
        "pairs_per_second": round(len(store) / seconds),
    }


def measure_batches(store: TokenStore, plan: EpochPlan, count: int) -> Row:
    batches = PlannedBatches(store, plan, Shard(0, 1))
    indices = range(min(count, len(batches)))
    for index in indices:  # the store comes from the disk into memory
        batches[index]
    seconds, tokens = timed(
        lambda: sum(np.count_nonzero(batches[index]["targets_segments"]) for index in indices)
    )
    return {"target_tokens_per_second": round(tokens / seconds)}


def measure_large(lengths: tuple[np.ndarray, np.ndarray], config: DataConfig, pairs: int) -> Row:
    """The plan of an epoch of many pairs, with lengths like those of the text."""
    drawn = np.random.default_rng(0).integers(len(lengths[0]), size=pairs)
    lengths = lengths[0][drawn], lengths[1][drawn]
    del drawn
    seconds, plan = timed(lambda: plan_epoch(*lengths, config, 0, 0, 8))
    return {
        "pairs": pairs,
        "plan_seconds": round(seconds, 1),
        "batches": plan.num_batches,
        "share_of_real_tokens": round(share_of_real_tokens(plan, *lengths), 4),
    }


def share_of_real_tokens(plan: EpochPlan, sources: np.ndarray, targets: np.ndarray) -> float:
    """Of the places in the rows that hold a pair, both sides together."""
    places = plan.shapes[:, 1:].sum(axis=1) @ np.diff(plan.batch_starts)
    tokens = sources[plan.pairs].sum(dtype=np.int64) + targets[plan.pairs].sum(dtype=np.int64)
    return float(tokens / places)


def profile(store: TokenStore, plan: EpochPlan, count: int) -> None:
    batches = PlannedBatches(store, plan, Shard(0, 1))
    with cProfile.Profile() as found:
        for index in range(min(count, len(batches))):
            batches[index]
    pstats.Stats(found).sort_stats("tottime").print_stats(12)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def apart(work: Callable[..., Row], *arguments: Any) -> Row:
    """Runs in a process of its own, whose peak of memory is that of the work."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        row = work(*arguments)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        sender.send(row | {"peak_gib": round(peak, 2)})

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


if __name__ == "__main__":
    main()
