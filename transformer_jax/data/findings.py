"""What an inspection of a corpus finds, as `inspection.py` measures it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from transformer_jax.data.signals import Pair

LENGTH_EDGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Least value of each bin of lengths; the last bin has no end."""
RATIO_EDGES = (0, 0.12, 0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 3, 4, 8)
"""Least value of each bin of target characters / source characters."""


@dataclass(frozen=True)
class Distribution:
    """A distribution in a few numbers, and in bins to plot."""

    mean: float
    median: float
    percentile_1: float
    percentile_99: float
    largest: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    """Values from each of `edges` up to the next."""

    @classmethod
    def of(cls, counter: Mapping[float, float], edges: tuple[float, ...]) -> "Distribution | None":
        """Of how often each value occurs; None where none does."""
        if not counter:
            return None
        values, counts = (
            np.array(column, float) for column in zip(*sorted(counter.items()), strict=True)
        )
        until = np.cumsum(counts)
        at = [values[np.searchsorted(until, share * until[-1])] for share in (0.5, 0.01, 0.99)]
        bins = np.bincount(np.searchsorted(edges, values, "right") - 1, counts, len(edges))
        mean = float(values @ counts / until[-1])
        return cls(mean, *map(float, at), float(values[-1]), edges, tuple(map(round, bins)))


@dataclass(frozen=True)
class Side:
    """What was found on one side. Values marked "sample" are of the sample, scaled to all."""

    words: Distribution | None
    """Words a sentence, as spaces part them."""
    tokens: Distribution | None
    """Sample: tokens a sentence, with its end mark; None without a tokenizer."""
    tokens_per_word: float | None
    """Sample."""
    fallback: float | None
    """Sample: share of tokens that are single bytes or unknown: text outside the vocabulary."""
    letters: dict[str, float]
    """Sample: share of the letters by script, largest first."""
    other_script: int
    """Sentences mostly in another script than most sentences of the side."""
    language: float | None
    """Sample: 0.15 to 1 where it looks like this side of dev, -0.2 to -1 where like the other; the
    median over the blocks. None for too few lines, and where dev's sides look alike."""
    foreign: float
    """Sample: share of the blocks that look like the other side of dev."""
    held_out: dict[str, int]
    """Distinct sentences of this side of dev and of test that training holds too."""


@dataclass(frozen=True)
class Part:
    """What was found in a data source, or in all of them. Shares are from 0 to 1."""

    pairs: int
    sampled: int
    """Pairs in the sample."""
    empty: int
    """Pairs with a blank side."""
    duplicates: int
    """Pairs that occurred before."""
    retranslated: int
    """Distinct pairs whose source occurred before, with another target."""
    copies: int
    """Pairs whose target is their source, blank ones apart."""
    with_numbers: int
    other_numbers: int
    """Of the pairs with digits, those whose groups of digits differ between the sides."""
    ratio: Distribution | None
    """Target characters / source characters of pairs without a blank side."""
    dropped: dict[str, float]
    """Sample: share lost by each filter; empty without a tokenizer."""
    alignment: float | None
    """Sample: median of `Alignment.advantage` over the blocks; None for too few lines."""
    misaligned: float
    """Sample: share of the blocks that do not look aligned."""
    first_misaligned: int | None
    """The line with which the first of them begins."""
    shift: int | None
    """Source line i seems to go with target line i + shift in most of them, if with any."""
    source: Side
    target: Side


@dataclass(frozen=True)
class Inspection:
    """What was found in a corpus."""

    source_language: str
    target_language: str
    examples: tuple[Pair, ...]
    """The first two pairs."""
    held_out: dict[str, int]
    """Pairs in dev, and in test."""
    overall: Part
    parts: dict[str, Part]
    """By the name of the data source."""

    def to_json(self) -> dict:
        """Everything found, as JSON has it."""
        return asdict(self)
