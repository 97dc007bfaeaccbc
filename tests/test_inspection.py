"""The inspection of a corpus: its counts against brute force, its sample, its verdict."""

import dataclasses
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import both
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_text import REAL, REAL_TEXT, built_in, read_real, shift, shuffle, swap

from transformer_jax.config import DataConfig, TokenizerConfig
from transformer_jax.data import inspection
from transformer_jax.data.corpus import build_store
from transformer_jax.data.findings import LENGTH_EDGES, Distribution, Inspection
from transformer_jax.data.inspection import inspect_corpus
from transformer_jax.data.inspection_report import (
    describe,
    find_reasons,
    find_warnings,
    summarize,
)
from transformer_jax.data.signals import Pair
from transformer_jax.data.text import read_pairs
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

BASE = Path(__file__).parent / "data/base"


def inspect(
    *sources: list[Pair], dev: list[Pair] = (), tokenizer: Tokenizer | None = None, **changes: float
) -> Inspection:
    """An inspection of data sources named a, b, ..."""
    named = dict(zip("abcdefghijkl", sources, strict=False))
    tokenizers = None if tokenizer is None else both(tokenizer)
    return inspect_corpus(named, {"dev": list(dev)}, tokenizers, DataConfig(**changes))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    text = [sentence for pair in built_in("en", "de")["train"][:3_000] for sentence in pair]
    return Tokenizer(train_tokenizer(text, TokenizerConfig(vocab_size=500)))


# --- Counts of every pair -----------------------------------------------------------------------

PAIRS = [
    ("One dog", "Ein Hund"),
    ("One dog", "Ein Hund"),
    ("One dog", "1 Hund"),
    ("OK", "OK"),
    ("", "leer"),
    ("blank", " "),
    ("", ""),
    ("In 1,234 days", "In 1.234 Tagen"),
    ("At 5 pm", "Um 17 Uhr"),
    ("Привет", "Hallo"),
]


def test_every_count() -> None:
    dev = [("One dog", "Ein Hund"), ("One dog", "Zwei"), ("", "x"), ("At", "Um 17 Uhr")]
    part = inspect(PAIRS, dev=dev).overall
    assert (part.pairs, part.sampled, part.empty) == (10, 10, 3)
    assert (part.duplicates, part.copies) == (1, 1)
    assert part.retranslated == 2, "One dog and the blank source"
    assert (part.with_numbers, part.other_numbers) == (3, 2)
    assert (part.source.other_script, part.target.other_script) == (1, 0)
    assert part.source.letters == pytest.approx({"Latin": 35 / 41, "Cyrillic": 6 / 41})
    assert (part.source.held_out, part.target.held_out) == ({"dev": 1}, {"dev": 2})
    assert part.source.words.counts[:4] == (2, 3, 3, 2)
    assert part.target.words.largest == 3
    assert part.ratio.median == round(14 / 13, 2)
    assert (part.alignment, part.source.language, part.source.tokens) == (None, None, None)
    assert part.dropped == {}


WORDS = st.lists(st.sampled_from(["a", "b", "7", "ж"]), max_size=2).map(" ".join)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1), st.integers(0, 5))
def test_counts_by_brute_force(pairs: list[Pair], cut: int) -> None:
    """Of two data sources together, wherever they are parted."""
    found = inspect(pairs[:cut], pairs[cut:]).overall
    full = [pair for pair in pairs if all(pair)]
    assert found.pairs == len(pairs)
    assert found.empty == len(pairs) - len(full)
    assert found.duplicates == sum(pair in pairs[:i] for i, pair in enumerate(pairs))
    distinct = list(dict.fromkeys(pairs))
    sources = [source for source, _ in distinct]
    assert found.retranslated == sum(s in sources[:i] for i, s in enumerate(sources))
    assert found.copies == sum(source == target for source, target in full)
    assert found.with_numbers == sum("7" in source + target for source, target in full)
    assert found.other_numbers == sum(s.count("7") != t.count("7") for s, t in full)


@given(st.lists(st.integers(0, 3_000), min_size=1))
def test_distribution_by_numpy(values: list[int]) -> None:
    counter = {value: values.count(value) for value in values}
    found = Distribution.of(counter, LENGTH_EDGES)
    at = np.percentile(values, [50, 1, 99], method="inverted_cdf")
    assert [found.median, found.percentile_1, found.percentile_99] == list(at)
    assert (found.mean, found.largest) == (pytest.approx(np.mean(values)), max(values))
    assert found.counts == tuple(np.histogram(values, [*LENGTH_EDGES, 1e9])[0])


def test_no_values_no_distribution() -> None:
    assert Distribution.of({}, LENGTH_EDGES) is None


# --- Tokens, filters, the sample ----------------------------------------------------------------


@pytest.mark.parametrize("max_length", [9, 256])
def test_filters_lose_what_the_token_store_loses(
    tmp_path: Path, tokenizer: Tokenizer, max_length: int
) -> None:
    pairs = [*built_in("en", "de")["train"][:1_500], *PAIRS, ("a", "lang " * 30)]
    config = DataConfig(max_length=max_length, max_length_ratio=2.0)
    report = build_store(tmp_path / "store", [("a", pairs)], both(tokenizer), config).report
    found = inspect_corpus({"a": pairs}, {}, both(tokenizer), config).overall
    assert report.dropped["length ratio"] > 0 < report.dropped["empty side"]
    assert {why: round(n * len(pairs)) for why, n in found.dropped.items()} == report.dropped


def test_tokens_by_the_tokenizer(tokenizer: Tokenizer) -> None:
    """Characters outside the vocabulary become as many bytes as UTF-8 has for them."""
    pairs = [("June 5", "5. Juni"), ("June 漢字", "Juni ж")] * 20
    sides = zip(*pairs, strict=True)
    found = inspect(pairs, tokenizer=tokenizer).overall
    for side, sentences, unknown in zip(
        (found.source, found.target), sides, (20 * 6, 20 * 2), strict=True
    ):
        tokens = sum(map(len, tokenizer.encode(list(sentences))))
        assert side.fallback == pytest.approx(unknown / tokens)
        assert side.tokens_per_word == pytest.approx(tokens / 80)
        assert side.tokens.mean == pytest.approx((tokens + 40) / 40)


def test_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    """Of 20 and 4 blocks with other lengths, 5 and 4 are measured; the whole counts each fully."""
    monkeypatch.setattr(inspection, "BLOCK_PAIRS", 50)
    monkeypatch.setattr(inspection, "SAMPLE_BLOCKS", 10)
    short, long = [("May 5", "5. Mai")] * 1_000, [("May 5 " * 20, "5. Mai " * 20)] * 200
    found = inspect(short, long, tokenizer=tokenizer, max_length=60)
    assert [part.sampled for part in found.parts.values()] == [250, 200]
    assert found.overall.sampled == 450
    assert found.overall.pairs == 1_200
    assert found.overall.dropped["source too long"] == pytest.approx(200 / 1_200)
    assert sum(found.overall.source.tokens.counts) == 1_200
    assert found.overall.duplicates == 1_198


def test_every_block_has_the_same_chance() -> None:
    taken = np.zeros(20)
    for seed in range(2_000):
        sample = inspection._Sample(5)
        sample._random.seed(seed)
        for number in range(20):
            sample.offer([(str(number), "")])
        for first, ((name, _),) in sample.blocks:
            assert first == int(name) * inspection.BLOCK_PAIRS + 1
            taken[int(name)] += 1
    assert abs(taken / 2_000 - 0.25).max() < 0.04  # four standard deviations


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "BLOCK_PAIRS", 50)
    monkeypatch.setattr(inspection, "SAMPLE_BLOCKS", 5)

    def stream() -> Iterator[Pair]:
        for number in range(3_000):
            yield f"{number} " + "x" * 2_000, f"{number} " + "y" * 2_000

    tracemalloc.start()
    found = inspect_corpus({"a": stream()}, {}, None, DataConfig())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.overall.pairs == 3_000
    assert peak < 4e6, "the text alone has 12 MB"


# --- The verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize("languages", [("en", "de"), ("zh", "ar"), ("da", "no")], ids="-".join)
def test_good_text_is_let_through_and_spoilt_text_is_not(languages: tuple[str, str]) -> None:
    corpus = built_in(*languages)
    pairs = corpus["train"][:4_000]
    verdicts = {
        name: find_reasons(inspect(spoilt, dev=corpus["dev"]))
        for name, spoilt in {
            "good": pairs,
            "shifted": shift(pairs, 1),
            "far": shift(pairs, 20),
            "shuffled": shuffle(pairs),
            "one lost": [*pairs[:2_000], *shift(pairs[2_000:], 1)],
            "swapped": swap(pairs),
            "partly swapped": [*pairs[:3_000], *swap(pairs[3_000:])],
            "source twice": [(source, source) for source, _ in pairs],
            "wrong target": shuffle([(source, source) for source, _ in pairs]),
        }.items()
    }
    assert verdicts.pop("good") == []
    expected = {
        "shifted": ["100.0 % of the text looks misaligned", "target line i-1"],
        "far": ["100.0 % of the text looks misaligned", "not seem to be translations"],
        "shuffled": ["100.0 % of the text looks misaligned", "not seem to be translations"],
        "one lost": ["50.0 % of the text", "the thousand pairs from 2001 on", "target line i-1"],
        "swapped": ["a: the sides look swapped: 100.0 %"],
        "partly swapped": ["a: the sides look swapped: 25.0 %"],
        "source twice": ["4000 of 4000 pairs have their source", "of the target text reads like"],
        "wrong target": ["misaligned", "the target text reads like dev's sources"],
    }
    for name, words in expected.items():
        for word in words:
            assert word in " ".join(verdicts[name]), name
    assert all("\n" not in reason for reasons in verdicts.values() for reason in reasons)


@pytest.mark.skipif(not REAL, reason="the corpora are not there")
def test_real_text_is_let_through_and_one_spoilt_source_of_it_is_named() -> None:
    dev = list(read_pairs(REAL_TEXT / "dev/newstest2013.en", REAL_TEXT / "dev/newstest2013.de"))
    good = {name: read_real(name, 1_000) for name in REAL}
    config = DataConfig()
    assert find_reasons(inspect_corpus(good, {"dev": dev}, None, config)) == []
    for spoil in (swap, lambda pairs: shift(pairs, 1)):
        spoilt = good | {"tatoeba": spoil(good["tatoeba"])}
        (reason,) = find_reasons(inspect_corpus(spoilt, {"dev": dev}, None, config))
        assert reason.startswith("tatoeba: ")


def test_small_and_odd_corpora_are_let_through() -> None:
    base, valid = (
        list(read_pairs(BASE / f"{name}.en", BASE / f"{name}.de")) for name in ("train", "valid")
    )
    assert find_reasons(inspect(base, dev=valid)) == []
    assert find_reasons(inspect(base[:3], dev=valid[:3])) == []
    assert find_reasons(inspect([("same text", "the same text")] * 2_000, dev=valid)) == []
    assert find_reasons(inspect(PAIRS)) == []


def test_an_empty_corpus() -> None:
    found = inspect([], tokenizer=None)
    assert find_reasons(found) == ["the corpus is empty: no pair was read"]
    assert describe(found) and summarize(found)


@pytest.mark.parametrize(
    ("max_length", "words"),
    [
        (2, ["all 400 pairs would be dropped (400 source too long)"]),
        (7, ["of 400 pairs"]),
        (60, []),
    ],
)
def test_most_pairs_dropped(tokenizer: Tokenizer, max_length: int, words: list[str]) -> None:
    pairs = [("May 5", "5. Mai")] * 20 + [("May 5 " * 5, "5. Mai " * 5)] * 380
    reasons = find_reasons(inspect(pairs, tokenizer=tokenizer, max_length=max_length))
    assert len(reasons) == bool(words)
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))


def test_warnings() -> None:
    pairs = built_in("en", "de")["train"][:2_000]
    mostly = [*pairs, *pairs[:600], *[("слово", "Wort")] * 50, *[("", "leer")] * 50]
    warnings = " ".join(find_warnings(inspect(mostly, dev=pairs[:100])))
    for words in (
        "698 (25.9 %) pairs are duplicates",
        "100 sources of dev's 100 pairs are in training too",
        "50 (1.9 %) sources are in another script",
        "50 (1.9 %) pairs have a blank side",
    ):
        assert words in warnings
    assert find_warnings(inspect(pairs)) == []


# --- What is shown ------------------------------------------------------------------------------


def test_the_table_holds_the_numbers(tokenizer: Tokenizer) -> None:
    corpus = built_in("en", "de")
    pairs = corpus["train"][:2_500]
    found = inspect(pairs, pairs[:300], dev=corpus["dev"], tokenizer=tokenizer)
    table = "\n".join(describe(found))
    for words in (
        "en -> de: 2800 pairs from a, b",
        f"pair 1  {pairs[0][0]}\n     ->   {pairs[0][1]}",
        f"{'duplicate pair':44}300 (10.7 %)",
        f"tokens a word*                        {found.overall.source.tokens_per_word:.2f}",
    ):
        assert words in table
    summary = "\n".join(summarize(found))
    assert summary.startswith(f"direction en -> de\n  pair 1  {pairs[0][0]}")
    assert "inspected 2800 pairs: 300 duplicates" in summary


def test_json_has_everything() -> None:
    found = inspect(PAIRS, dev=PAIRS[:1])
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(again) == {field.name for field in dataclasses.fields(Inspection)}
    assert again["overall"]["source"]["held_out"] == {"dev": 1}
    assert again["parts"]["a"]["pairs"] == 10
