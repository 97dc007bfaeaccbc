"""Signs that tell good parallel text from bad: of alignment, language, script and numbers.

Nothing here knows a language: lines are compared with their neighbours and with the validation
set. The values measured on real corpora stand in `tests/test_signals.py`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Pair = tuple[str, str]

OFFSETS = (-3, -2, -1, 0, 1, 2, 3)
"""Source line i is compared with the target lines i + offset."""

_LEAST_PAIRS = 200
_SHARED_WORDS = 20
_MARKS = "?!,:\"('/%<=-"
# What other scripts write for the marks above.
_SAME_MARK = str.maketrans(
    {"？": "?", "؟": "?", "！": "!", "，": ",", "、": ",", "،": ",", "：": ":", "（": "("}
    | dict.fromkeys("„“”«»「」", '"')
)
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"\w+")
_BEYOND_LATIN = re.compile("[^\x00-\u024f]")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "BOPOMOFO")
_NO_SCRIPT = ("MODIFIER", "FEMININE", "MASCULINE", "MICRO", "MATHEMATICAL", "DOUBLE-STRUCK")


class Alignment(NamedTuple):
    """How well lines fit those beside which they stand."""

    advantage: float
    """Agreement of lines of one number, less that of the best other offset: 0.2 to 0.8 for
    parallel text, about 0 for unrelated lines, below 0 where lines are shifted."""
    best_offset: int
    """The offset that agrees best."""


def measure_alignment(pairs: Sequence[Pair]) -> Alignment | None:
    """The alignment of successive pairs, some hundreds to a few thousand; None for too few.

    A pair that is repeated counts once: a text would agree with its neighbours as with itself.
    """
    pairs = list(dict.fromkeys(pairs))
    if len(pairs) < _LEAST_PAIRS:
        return None
    agreement = agreement_by_offset(*zip(*pairs, strict=True))
    if not agreement.any():
        return None
    own = OFFSETS.index(0)
    advantage = agreement[own] - np.delete(agreement, own).max()
    return Alignment(float(advantage), OFFSETS[int(agreement.argmax())])


def agreement_by_offset(
    sources: Sequence[str], targets: Sequence[str]
) -> Float[np.ndarray, " offsets"]:
    """How much lines agree at each of `OFFSETS`: 0 is as by chance, 1 is fully.

    It is the root mean square of rank correlations between what can be counted on both sides:
    characters, the value of numbers, punctuation marks, and words that both languages share, such
    as names. What hardly varies on a side is left out; all zero where nothing varies.
    """
    least = max(5, len(sources) // 100)
    sides = _counts(sources, targets, least)
    ranks = [[_standard_ranks(row, least) for row in side] for side in sides]
    both = [(s, t) for s, t in zip(*ranks, strict=True) if s is not None and t is not None]
    if not both:
        return np.zeros(len(OFFSETS))
    source, target = (np.array(side) for side in zip(*both, strict=True))
    n = len(sources)
    correlations = [
        (source[:, max(0, -k) : n - max(0, k)] * target[:, max(0, k) : n - max(0, -k)]).sum(1) / n
        for k in OFFSETS
    ]
    return np.sqrt(np.square(correlations).mean(1))


def _counts(
    sources: Sequence[str], targets: Sequence[str], least: int
) -> list[Float[np.ndarray, "features lines"]]:
    """What is counted in each line, in the same order on both sides."""
    words = [[set(_WORD.findall(line)) for line in side] for side in (sources, targets)]
    frequency = [Counter(word for line in side for word in line) for side in words]
    shared = Counter({w: min(c, frequency[1][w]) for w, c in frequency[0].items()})
    kept = [word for word, count in shared.most_common(_SHARED_WORDS) if count >= least]
    return [
        np.array(
            [
                [*_marks(line), *(word in line_words for word in kept)]
                for line, line_words in zip(side, side_words, strict=True)
            ],
            float,
        ).T
        for side, side_words in zip((sources, targets), words, strict=True)
    ]


def _marks(line: str) -> list[int]:
    length = len(line)
    value = sum(int(digits[-6:]) for digits in _DIGITS.findall(line))
    if not line.isascii():
        line = line.translate(_SAME_MARK)
    return [length, value, *map(line.count, _MARKS)]


def _standard_ranks(
    values: Float[np.ndarray, " lines"], least: int
) -> Float[np.ndarray, " lines"] | None:
    """Ranks, ties shared, with mean 0 and variance 1; None where all but a few values are one."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(values) - counts.max() < least:
        return None
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
    return (ranks - ranks.mean()) / ranks.std()


def trigrams(lines: Iterable[str]) -> Counter[str]:
    """How often each three characters stand in a text, in lower case."""
    text = "\n".join(lines).lower()
    return Counter(map("".join, zip(text, text[1:], text[2:], strict=False)))


def likeness(one: Counter[str], other: Counter[str]) -> float:
    """The Bhattacharyya coefficient of two distributions: 1 if they are the same, 0 if disjoint."""
    size = one.total() * other.total()
    shared = sum((count * other[key]) ** 0.5 for key, count in one.items() if key in other)
    return shared / size**0.5 if size else 0.0


def tell_language(text: Counter[str], own: Counter[str], other: Counter[str]) -> float | None:
    """Whose language a text is in, from trigrams: about 0.3 to 1 if `own`, -0.3 to -1 if `other`.

    The difference of the likenesses to both, in units of how far those two differ. None where
    there is nothing to tell apart: no text, or two sides in one language.
    """
    distance = 1 - likeness(own, other)
    if distance < 0.03 or not (text and own and other):
        return None
    return (likeness(text, own) - likeness(text, other)) / distance


def main_script(sentence: str) -> str:
    """The script of most of a sentence's letters, such as `Latin`; empty where it has no letter."""
    if not _BEYOND_LATIN.search(sentence):
        return "Latin" if any(map(str.isalpha, sentence)) else ""
    counts = Counter(map(script, sentence))
    del counts[""]
    return counts.most_common(1)[0][0] if counts else ""


@cache
def script(character: str) -> str:
    """The script of a letter, by its name in Unicode; empty for all else.

    Chinese characters and both Japanese alphabets are one, `Cjk`: Japanese mixes them.
    """
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    first = name.split(" ")[0]
    if first in _NO_SCRIPT:
        return ""
    return "Cjk" if first in _EAST_ASIAN else first.capitalize()


def numbers(sentence: str) -> list[str]:
    """The groups of digits of a sentence, sorted: `1,234.5` and `1.234,5` have the same."""
    groups = _DIGITS.findall(sentence)
    if groups and not sentence.isascii():
        groups = ["".join(str(unicodedata.decimal(digit)) for digit in group) for group in groups]
    return sorted(groups)
