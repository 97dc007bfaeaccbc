"""How full the rows are, and how long a plan takes: on real and on natural lengths."""

import itertools
import time

import numpy as np
import pytest
from corpora import find_corpus
from test_batch_plan import check, data_config, natural_lengths

from transformer_jax.config import TokenizerConfig
from transformer_jax.data.batch_plan import EpochPlan, plan_epoch
from transformer_jax.data.text import read_lines
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer


def share_of_real_tokens(plan: EpochPlan, sources: np.ndarray, targets: np.ndarray) -> float:
    """Of all places in rows that hold a pair, on both sides together."""
    sizes = plan.shapes[:, 1:].sum(axis=1) @ np.diff(plan.batch_starts)
    return (sources[plan.pairs].sum() + targets[plan.pairs].sum()) / sizes


@pytest.mark.parametrize("max_length", [128, 256])
def test_packed_rows_hold_97_percent_of_natural_lengths(max_length: int) -> None:
    sources, targets = natural_lengths(20_000, max_length)
    plan = plan_epoch(sources, targets, data_config("packed", max_length, 25_000), 0, 0, 1)
    assert share_of_real_tokens(plan, sources, targets) >= (0.97 if max_length == 256 else 0.95)


def real_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Of news, in pieces of a vocabulary of 8,000 made from it."""
    names = ("wmt-news", "onmt-wmt10k")
    sides = [
        [
            line
            for name in names
            for line in read_lines(find_corpus(f"en-de/train/{name}.{language}.xz"))
        ]
        for language in ("en", "de")
    ]
    model = train_tokenizer(itertools.chain(*sides), TokenizerConfig(vocab_size=8_000))
    tokenizer = Tokenizer(model)
    lengths = [np.array([len(ids) + 1 for ids in tokenizer.encode(side)]) for side in sides]
    kept = (lengths[0] <= 256) & (lengths[1] <= 256)
    return lengths[0][kept], lengths[1][kept]


@pytest.mark.slow
def test_rows_of_real_text_are_full() -> None:
    sources, targets = real_lengths()
    assert len(sources) > 37_000
    for batching, least in (("packed", 0.97), ("bucketed", 0.90)):
        config = data_config(batching, 256, 25_000)
        plan = plan_epoch(sources, targets, config, 0, 0, 8)
        check(plan, sources, targets, config, 8)
        assert share_of_real_tokens(plan, sources, targets) >= least


@pytest.mark.slow
def test_a_plan_of_four_million_pairs_takes_seconds() -> None:
    """A tenth of WMT14 en-fr; time and memory grow with the pairs. The limit is generous: the
    figures for all are those of experiments/benchmarks/loader.py."""
    sources, targets = natural_lengths(4_000_000, 256)
    start = time.process_time()
    plan_epoch(sources, targets, data_config("packed", 256, 25_000), 0, 0, 8)
    assert time.process_time() - start < 30
