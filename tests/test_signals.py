"""The signs of good parallel text, on the built-in corpus and, where they are there, real ones."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from parallel_text import REAL, REAL_TEXT, built_in, read_real, shift, shuffle, swap

from transformer_jax.data.inspection import LEAST_ADVANTAGE, LEAST_LANGUAGE
from transformer_jax.data.signals import (
    OFFSETS,
    Pair,
    agreement_by_offset,
    likeness,
    main_script,
    measure_alignment,
    numbers,
    script,
    tell_language,
    trigrams,
)
from transformer_jax.data.text import read_pairs

BUILT_IN = [("en", "de"), ("zh", "ar"), ("da", "no")]


def blocks(pairs: list[Pair], size: int = 1_000) -> list[list[Pair]]:
    return [pairs[start : start + size] for start in range(0, len(pairs) - size + 1, size)]


# --- Alignment ----------------------------------------------------------------------------------


def check_alignment(pairs: list[Pair], least: float) -> None:
    """`least`: the advantage that every block has at least, and loses where it is shifted."""
    assert least > LEAST_ADVANTAGE
    for block in blocks(pairs):
        found = measure_alignment(block)
        assert found.best_offset == 0
        assert found.advantage >= least
    for lines in (1, -2):
        for block in blocks(shift(pairs, lines)):
            found = measure_alignment(block)
            assert found.best_offset == -lines
            assert found.advantage <= -least
    for spoilt in (shift(pairs, 9), shuffle(pairs)):
        advantages = [measure_alignment(block).advantage for block in blocks(spoilt)]
        assert max(advantages) < LEAST_ADVANTAGE
        assert np.median(advantages) < 0.02


@pytest.mark.parametrize("languages", BUILT_IN, ids="-".join)
def test_alignment_of_built_in_text(languages: tuple[str, str]) -> None:
    check_alignment(built_in(*languages)["train"][:3_000], 0.5)


@pytest.mark.skipif(not REAL, reason="the corpora are not there")
@pytest.mark.parametrize("name", REAL)
def test_alignment_of_real_text(name: str) -> None:
    """Over all blocks of all corpora the least was 0.06 (tatoeba, sorted by length), else 0.26."""
    check_alignment(read_real(name, 2_000), 0.08 if name == "tatoeba" else 0.25)


def test_agreement_is_the_rank_correlation_where_only_lengths_vary() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 60, 500)
    others = lengths + generator.integers(0, 30, 500)
    found = agreement_by_offset(["a" * n for n in lengths], ["b" * n for n in others])
    expected = scipy.stats.spearmanr(lengths, others).statistic
    assert found[OFFSETS.index(0)] == pytest.approx(expected, abs=1e-12)


def test_a_repeated_pair_counts_once() -> None:
    pairs = built_in("en", "de")["train"][:1_000]
    repeated = [pair for pair in pairs for _ in range(4)]
    assert measure_alignment(repeated) == measure_alignment(pairs)


@pytest.mark.parametrize(
    "pairs",
    [built_in("en", "de")["train"][:150], [("yes", "ja")] * 900, [(f"a{'b' * 9}", "c")] * 900],
    ids=["few", "one pair", "nothing varies"],
)
def test_too_little_to_judge_alignment(pairs: list[Pair]) -> None:
    assert measure_alignment(pairs) is None


# --- Language -----------------------------------------------------------------------------------


def languages_of(pairs: list[Pair], dev: list[Pair]) -> list[float]:
    """What `tell_language` says of each side, of 200 pairs at a time."""
    own, other = (trigrams(side) for side in zip(*dev, strict=True))
    found = []
    for block in blocks(pairs, 200):
        source, target = (trigrams(side) for side in zip(*block, strict=True))
        found += [tell_language(source, own, other), tell_language(target, other, own)]
    return found


@pytest.mark.parametrize("languages", BUILT_IN, ids="-".join)
def test_language_of_built_in_text(languages: tuple[str, str]) -> None:
    corpus = built_in(*languages)
    pairs, dev = corpus["train"][2_000:3_000], corpus["dev"]
    assert min(languages_of(pairs, dev)) > 0.5
    assert max(languages_of(swap(pairs), dev)) < -0.5


@pytest.mark.skipif(not REAL, reason="the corpora are not there")
@pytest.mark.parametrize("name", REAL)
def test_language_of_real_text(name: str) -> None:
    dev = list(read_pairs(REAL_TEXT / "dev/newstest2013.en", REAL_TEXT / "dev/newstest2013.de"))
    pairs = read_real(name, 2_000)
    assert min(languages_of(pairs, dev)) > 0.2 > LEAST_LANGUAGE
    assert max(languages_of(swap(pairs), dev)) < -0.2 < LEAST_LANGUAGE


def test_likeness_by_its_formula() -> None:
    one, other = Counter(a=1, b=3), Counter(b=1, c=1)
    assert likeness(one, other) == pytest.approx((3 / 4 * 1 / 2) ** 0.5)
    assert likeness(one, Counter(a=2, b=6)) == pytest.approx(1)
    assert likeness(one, Counter(c=5)) == 0 == likeness(one, Counter())


def test_trigrams_run_over_the_ends_of_lines() -> None:
    assert trigrams(["Aba", "ba"]) == Counter({"aba": 1, "ba\n": 1, "a\nb": 1, "\nba": 1})


def test_no_language_is_told_between_equal_sides() -> None:
    one = trigrams(source for source, _ in built_in("en", "de")["dev"])
    assert tell_language(one, one, one) is None
    assert tell_language(Counter(), one, trigrams(["другой текст"])) is None


# --- Scripts and numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("Hello", "Latin"),
        ("Grüße, Łódź", "Latin"),
        ("привет, Bob", "Cyrillic"),
        ("日本語のテキスト", "Cjk"),
        ("ー々", "Cjk"),
        ("Ｆｕｌｌ", "Latin"),
        ("한국어", "Hangul"),
        ("مرحبا", "Arabic"),
        ("हिन्दी", "Devanagari"),
        ("12 + 3 = 15!", ""),
        ("", ""),
        ("😀 µº", ""),
    ],
)
def test_main_script(sentence: str, name: str) -> None:
    assert main_script(sentence) == name


@pytest.mark.parametrize("one", ["ʰ", "ª", "𝐱", "5", " ", "\U000e0fff"])
def test_what_has_no_script(one: str) -> None:
    assert script(one) == ""


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("1,234.50 at 5:30", ["1", "234", "30", "5", "50"]),
        ("5 30 und 1.234,50", ["1", "234", "30", "5", "50"]),
        ("٣٠ و ٥", ["30", "5"]),
        ("007 is not 7", ["007", "7"]),
        ("9" * 5_000, ["9" * 5_000]),
        ("none", []),
    ],
)
def test_numbers(sentence: str, expected: list[str]) -> None:
    assert numbers(sentence) == expected


@pytest.mark.parametrize("measure", [measure_alignment, trigrams], ids=lambda one: one.__name__)
def test_strange_text_is_measured(measure: Callable) -> None:
    """Digits of a number too long for int(), half characters, emoji, one huge line."""
    odd = ["9" * 5_000, "\ufffd", "👩‍👩‍👧 ½ ²", "x" * 5_000, "", " "]
    pairs = [(f"{one} {number}", f"{number} {one}") for number in range(60) for one in odd]
    measure(pairs if measure is measure_alignment else [one for pair in pairs for one in pair])
