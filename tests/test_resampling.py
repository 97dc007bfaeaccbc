"""Token stores of epochs in which every sentence comes in other pieces."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from builders import both

from transformer_jax.config import DataConfig, TokenizerConfig
from transformer_jax.data import resampling
from transformer_jax.data.corpus import build_store
from transformer_jax.data.resampling import Resampling
from transformer_jax.data.sampling import Sampler
from transformer_jax.data.text import read_pairs
from transformer_jax.data.token_store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer

BASE = Path(__file__).parent / "data/base"
RATE, SEED = 0.3, 5


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    pairs = read_pairs(BASE / "train.en", BASE / "train.de")
    model = train_tokenizer(itertools.chain(*pairs), TokenizerConfig(vocab_size=400))
    return both(Tokenizer(model))


def store_in(folder: Path, tokenizers: Tokenizers, max_length: int) -> TokenStore:
    pairs = read_pairs(BASE / "train.en", BASE / "train.de")
    config = DataConfig(max_length=max_length)
    return build_store(folder / "store", [("base", pairs)], tokenizers, config)


def sentences(store: TokenStore) -> list[list[int]]:
    count = range(len(store))
    return [ids(i).tolist() for ids in (store.source, store.target) for i in count]


def texts(tokenizers: Tokenizers, store: TokenStore) -> list[str]:
    return tokenizers.source.decode(sentences(store))


def test_an_epoch_holds_the_same_text_in_pieces_of_its_own(
    tmp_path: Path, tokenizers: Tokenizers
) -> None:
    store = store_in(tmp_path, tokenizers, 256)
    store_of = Resampling(tmp_path / "epochs", store, tokenizers, RATE, SEED, 256)
    epochs = [store_of(epoch) for epoch in range(2)]
    for epoch, drawn in enumerate(epochs):
        assert texts(tokenizers, drawn) == texts(tokenizers, store)
        assert (drawn.fingerprint, drawn.reports) == (store.fingerprint, store.reports)
        sampler = Sampler(tokenizers.source, RATE)
        for side, name in enumerate(("en", "de")):
            lines = (BASE / f"train.{name}").read_text("utf-8").split("\n")[:-1]
            expected = [[*ids, 2] for ids in sampler.encode(lines, (SEED, epoch, side))]
            half = sentences(drawn)[side * len(store) :][: len(store)]
            assert half == expected
    changed = [one != other for one, other in zip(*map(sentences, epochs), strict=True)]
    assert np.mean(changed) > 0.9
    assert epochs[0].source_lengths.mean() > store.source_lengths.mean()


def test_it_does_not_depend_on_the_parts_or_the_processes(
    tmp_path: Path, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = None
    for size, cores in ((1_000, 1), (70, 1), (151, 2)):
        monkeypatch.setattr(resampling, "_CHUNK_PAIRS", size)
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        folder = tmp_path / f"{size}"
        whole = store_in(folder, tokenizers, 256)
        store = Resampling(folder / "epochs", whole, tokenizers, RATE, SEED, 256)(3)
        expected = expected or sentences(store)
        assert sentences(store) == expected


def test_what_would_be_too_long_keeps_its_pieces(tmp_path: Path, tokenizers: Tokenizers) -> None:
    store = store_in(tmp_path, tokenizers, 20)
    drawn = Resampling(tmp_path / "epochs", store, tokenizers, 0.9, SEED, 20)(0)
    assert max(drawn.source_lengths.max(), drawn.target_lengths.max()) <= 20
    kept = [a == b for a, b in zip(sentences(store), sentences(drawn), strict=True)]
    assert 0 < sum(kept) < len(kept)


def test_stores_of_epochs_do_not_pile_up(tmp_path: Path, tokenizers: Tokenizers) -> None:
    store, folder = store_in(tmp_path, tokenizers, 256), tmp_path / "epochs"
    store_of = Resampling(folder, store, tokenizers, RATE, SEED, 256)
    for epoch in range(4):
        store_of(epoch)
    assert sorted(os.listdir(folder)) == ["2", "3"]
    assert len(store_of(2)) == len(store), "a resumed run may ask for the one before"
