"""The inspection of a training corpus: what is in it, and whether training on it makes sense.

Every pair is counted. What costs more (tokens, alignment, language, letters) is measured on a
sample of whole blocks of lines, drawn evenly from each data source; shares of it are scaled up.
Memory holds the sample and 16 bytes a pair.
"""

import random
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.corpus import drop_reason
from transformer_jax.data.findings import (
    LENGTH_EDGES,
    RATIO_EDGES,
    Distribution,
    Inspection,
    Part,
    Side,
)
from transformer_jax.data.signals import (
    Alignment,
    Pair,
    main_script,
    measure_alignment,
    numbers,
    script,
    tell_language,
    trigrams,
)
from transformer_jax.data.token_store import REASONS
from transformer_jax.data.tokenizer import Tokenizers

BLOCK_PAIRS = 1_000
SAMPLE_BLOCKS = 100
LEAST_ADVANTAGE = 0.04
"""A block whose `Alignment.advantage` is less does not look aligned. Measured in blocks of 1,000
lines: 0.06 to 0.8 in 11 real corpora, at most 0.03 where their lines were shifted."""
_CLEAR_DISADVANTAGE = -0.1  # unrelated lines reach -0.08
LEAST_LANGUAGE = -0.1
"""A block whose `tell_language` is less looks like the other side. Measured in 200 lines of 11 real
corpora: 0.14 to 1, below -0.2 where their sides were swapped; in 20 lines above -0.03."""
_LEAST_BLOCKS = 5
_LANGUAGE_PAIRS = 200
_LEAST_LANGUAGE_PAIRS = 20
_SEED = 1


def inspect_corpus(
    sources: Mapping[str, Iterable[Pair]],
    held_out: Mapping[str, Collection[Pair]],
    tokenizers: Tokenizers | None,
    config: DataConfig,
) -> Inspection:
    """Inspects the pairs of each data source, read once and in order.

    Args:
        sources: cleaned (source, target) sentences by the name of their data source.
        held_out: the pairs of `dev`, which also shows what each language looks like, and of
            `test` where there is one.
        tokenizers: None leaves out what is counted in tokens.
        config: the languages, and the limits of the filters.
    """
    reference = _Reference.of(held_out)
    num_blocks = max(_LEAST_BLOCKS, SAMPLE_BLOCKS // max(1, len(sources)))
    examples: list[Pair] = []
    tallies = {}
    for name, pairs in sources.items():
        tally = _Tally()
        sample = _Sample(num_blocks)
        for block in _blocks(pairs):
            examples += block[: max(0, 2 - len(examples))]
            tally.count(block, reference)
            sample.offer(block)
        tally.measure(sample, tokenizers, config, reference)
        tallies[name] = tally
    parts = {name: tally.result(held_out) for name, tally in tallies.items()}
    # The tallies are added up in the first one: its hashes are the most of what memory holds.
    overall, *others = tallies.values() or [_Tally()]
    for tally in others:
        overall.add(tally)
    return Inspection(
        config.source_language,
        config.target_language,
        tuple(examples),
        {name: len(pairs) for name, pairs in held_out.items()},
        overall.result(held_out),
        parts,
    )


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while block := list(islice(iterator, BLOCK_PAIRS)):
        yield block


class _Reference(NamedTuple):
    """What training text is compared with."""

    sentences: dict[str, tuple[frozenset[str], frozenset[str]]]
    """The sentences of each held-out set, of each side."""
    trigrams: tuple[Counter[str], Counter[str]]

    @classmethod
    def of(cls, held_out: Mapping[str, Collection[Pair]]) -> "_Reference":
        sides = {
            name: tuple(zip(*pairs, strict=True)) or ((), ()) for name, pairs in held_out.items()
        }
        sentences = {
            name: tuple(frozenset(filter(str.strip, side)) for side in both)
            for name, both in sides.items()
        }
        return cls(sentences, tuple(map(trigrams, sides.get("dev", ((), ())))))


class _Sample:
    """Blocks of a stream, each with the same chance, with the number of their first line."""

    def __init__(self, size: int) -> None:
        self.blocks: list[tuple[int, list[Pair]]] = []
        self._size = size
        self._offered = 0
        self._random = random.Random(_SEED)

    def offer(self, block: list[Pair]) -> None:
        self._offered += 1
        item = ((self._offered - 1) * BLOCK_PAIRS + 1, block)
        if len(self.blocks) < self._size:
            self.blocks.append(item)
        elif (slot := self._random.randrange(self._offered)) < self._size:
            self.blocks[slot] = item


@dataclass
class _SideTally:
    """What has been counted on one side; tallies of several data sources add up."""

    words: Counter[int] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)
    """Sentences by their main script."""
    held_out: set[tuple[str, str]] = field(default_factory=set)
    """(held-out set, sentence) met."""
    tokens: Counter[int] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    """Tokens, those outside the vocabulary, and words of the sample."""
    languages: list[float] = field(default_factory=list)

    def count(
        self, sentences: Sequence[str], num_words: list[int], held_out: Mapping[str, frozenset[str]]
    ) -> None:
        self.words.update(num_words)
        self.scripts.update(map(main_script, sentences))
        for name, known in held_out.items():
            self.held_out.update((name, one) for one in known.intersection(sentences))

    def measure_letters(self, sentences: Sequence[str], scale: float) -> None:
        for character, count in Counter("".join(sentences)).items():
            self.letters[script(character)] += count * scale
        del self.letters[""]

    def measure_tokens(
        self, sentences: Sequence[str], ids: list[list[int]], fallback: frozenset[int], scale: float
    ) -> None:
        for one in ids:
            self.tokens[len(one) + 1] += scale
        self.sizes["tokens"] += scale * sum(map(len, ids))
        self.sizes["fallback"] += scale * sum(one in fallback for one in chain.from_iterable(ids))
        self.sizes["words"] += scale * sum(len(sentence.split()) for sentence in sentences)

    def add(self, other: "_SideTally") -> None:
        for name in ("words", "scripts", "held_out", "tokens", "letters", "sizes"):
            getattr(self, name).update(getattr(other, name))
        self.languages += other.languages

    def result(self, held_out: Iterable[str]) -> Side:
        sizes, letters, languages = self.sizes, self.letters.total(), self.languages
        scripts = [count for name, count in self.scripts.items() if name]
        met = Counter(name for name, _ in self.held_out)
        return Side(
            words=Distribution.of(self.words, LENGTH_EDGES),
            tokens=Distribution.of(self.tokens, LENGTH_EDGES),
            tokens_per_word=sizes["tokens"] / sizes["words"] if sizes["words"] else None,
            fallback=sizes["fallback"] / sizes["tokens"] if sizes["tokens"] else None,
            letters={name: count / letters for name, count in self.letters.most_common(5)},
            other_script=sum(scripts) - max(scripts, default=0),
            language=float(np.median(languages)) if languages else None,
            foreign=sum(one < LEAST_LANGUAGE for one in languages) / max(1, len(languages)),
            held_out={name: met[name] for name in held_out},
        )


@dataclass
class _Tally:
    """What has been counted of a data source, or of several."""

    counts: Counter[str] = field(default_factory=Counter)
    ratios: Counter[float] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    alignments: list[tuple[int, Alignment]] = field(default_factory=list)
    sides: tuple[_SideTally, _SideTally] = field(
        default_factory=lambda: (_SideTally(), _SideTally())
    )
    pair_hashes: array = field(default_factory=lambda: array("q"))
    source_hashes: array = field(default_factory=lambda: array("q"))

    def count(self, block: list[Pair], reference: _Reference) -> None:
        """Counts what is counted of every pair."""
        self.pair_hashes.extend(map(hash, block))
        words = []
        both = zip(*block, strict=True)
        for index, (side, sentences) in enumerate(zip(self.sides, both, strict=True)):
            words.append([len(sentence.split()) for sentence in sentences])
            held_out = {name: both[index] for name, both in reference.sentences.items()}
            side.count(sentences, words[-1], held_out)
        self.source_hashes.extend(hash(source) for source, _ in block)
        full = [pair for pair, *both in zip(block, *words, strict=True) if all(both)]
        self.ratios.update(round(len(target) / len(source), 2) for source, target in full)
        with_digits = [
            both for source, target in full if any(both := (numbers(source), numbers(target)))
        ]
        self.counts.update(
            pairs=len(block),
            empty=len(block) - len(full),
            copies=sum(source == target for source, target in full),
            with_numbers=len(with_digits),
            other_numbers=sum(source != target for source, target in with_digits),
        )

    def measure(
        self,
        sample: _Sample,
        tokenizers: Tokenizers | None,
        config: DataConfig,
        reference: _Reference,
    ) -> None:
        """Measures what is measured on a sample alone."""
        self.counts["sampled"] = sum(len(block) for _, block in sample.blocks)
        scale = self.counts["pairs"] / max(1, self.counts["sampled"])
        for first, block in sample.blocks:
            if alignment := measure_alignment(block):
                self.alignments.append((first, alignment))
            both = tuple(zip(*block, strict=True))
            for side, sentences, own, other in zip(
                self.sides, both, reference.trigrams, reference.trigrams[::-1], strict=True
            ):
                if len(sentences) >= _LEAST_LANGUAGE_PAIRS:
                    language = tell_language(trigrams(sentences[:_LANGUAGE_PAIRS]), own, other)
                    side.languages += [] if language is None else [language]
                side.measure_letters(sentences, scale)
            if tokenizers is not None:
                self._measure_tokens(both, tokenizers, config, scale)

    def _measure_tokens(
        self,
        both: tuple[Sequence[str], Sequence[str]],
        tokenizers: Tokenizers,
        config: DataConfig,
        scale: float,
    ) -> None:
        of_sides = tokenizers.source, tokenizers.target
        ids = [one.encode(list(side)) for one, side in zip(of_sides, both, strict=True)]
        for side, sentences, one, tokenizer in zip(self.sides, both, ids, of_sides, strict=True):
            side.measure_tokens(sentences, one, tokenizer.fallback_ids, scale)
        for reason, count in _count_dropped(*both, *ids, config).items():
            self.dropped[reason] += count * scale

    def add(self, other: "_Tally") -> None:
        for name in ("counts", "ratios", "dropped"):
            getattr(self, name).update(getattr(other, name))
        self.alignments += other.alignments
        self.pair_hashes += other.pair_hashes
        self.source_hashes += other.source_hashes
        for side, others in zip(self.sides, other.sides, strict=True):
            side.add(others)

    def result(self, held_out: Iterable[str]) -> Part:
        counts = self.counts
        distinct = _count_distinct(self.pair_hashes)
        distinct_sources = _count_distinct(self.source_hashes)
        advantages = [alignment.advantage for _, alignment in self.alignments]
        off = [(first, a) for first, a in self.alignments if a.advantage < LEAST_ADVANTAGE]
        shifts = Counter(a.best_offset for _, a in off if a.advantage < _CLEAR_DISADVANTAGE)
        shift, count = shifts.most_common(1)[0] if shifts else (None, 0)
        return Part(
            pairs=counts["pairs"],
            sampled=counts["sampled"],
            empty=counts["empty"],
            duplicates=counts["pairs"] - distinct,
            retranslated=distinct - distinct_sources,
            copies=counts["copies"],
            with_numbers=counts["with_numbers"],
            other_numbers=counts["other_numbers"],
            ratio=Distribution.of(self.ratios, RATIO_EDGES),
            dropped={reason: n / counts["pairs"] for reason, n in self.dropped.items()},
            alignment=float(np.median(advantages)) if advantages else None,
            misaligned=len(off) / max(1, len(advantages)),
            first_misaligned=min((first for first, _ in off), default=None),
            shift=shift if 2 * count > len(off) else None,
            source=self.sides[0].result(held_out),
            target=self.sides[1].result(held_out),
        )


def _count_distinct(hashes: array) -> int:
    if not hashes:
        return 0
    ordered = np.frombuffer(hashes, np.int64)  # their order means nothing, so no copy is made
    ordered.sort()
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _count_dropped(
    sources: Sequence[str],
    targets: Sequence[str],
    source_ids: list[list[int]],
    target_ids: list[list[int]],
    config: DataConfig,
) -> dict[str, int]:
    """Pairs lost, by the first filter that takes them."""
    dropped = dict.fromkeys(REASONS, 0)
    for source, target, *ids in zip(sources, targets, source_ids, target_ids, strict=True):
        reason = drop_reason(source, target, (len(ids[0]) + 1, len(ids[1]) + 1), config)
        if reason is not None:
            dropped[reason] += 1
    return dropped
