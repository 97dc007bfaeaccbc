"""Real parallel text, right and spoilt, for tests of what tells one from the other."""

import lzma
import random
from functools import cache
from pathlib import Path

from corpora import CORPORA

from transformer_jax.data.cldr import build_corpus
from transformer_jax.data.signals import Pair
from transformer_jax.data.text import clean_line

REAL_TEXT = Path(CORPORA) / "en-de"
"""Eleven English-German corpora, where they are there at all."""

REAL = sorted({path.name.split(".")[0] for path in REAL_TEXT.glob("train/*.xz")})


def read_real(name: str, size: int) -> list[Pair]:
    """`size` successive pairs of one of the corpora, from its middle; all where it has fewer."""
    sides = []
    for language in ("en", "de"):
        text = lzma.open(REAL_TEXT / f"train/{name}.{language}.xz").read().decode().split("\n")[:-1]
        start = max(0, (len(text) - size) // 2)
        sides.append(map(clean_line, text[start : start + size]))
    return list(zip(*sides, strict=True))


@cache
def built_in(source: str, target: str) -> dict[str, list[Pair]]:
    """The splits of the built-in corpus."""
    return build_corpus(source, target)


def shift(pairs: list[Pair], lines: int) -> list[Pair]:
    """Source i beside target i + lines; the last ones beside the first."""
    sources, targets = zip(*pairs, strict=True)
    return list(zip(sources, targets[lines:] + targets[:lines], strict=True))


def shuffle(pairs: list[Pair]) -> list[Pair]:
    sources, targets = map(list, zip(*pairs, strict=True))
    random.Random(0).shuffle(targets)
    return list(zip(sources, targets, strict=True))


def swap(pairs: list[Pair]) -> list[Pair]:
    return [(target, source) for source, target in pairs]
