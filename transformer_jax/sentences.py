"""Translations of a test set looked at sentence by sentence: scores, differences, lengths."""

import random
import re
import string
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Literal, NamedTuple

import sacrebleu

from transformer_jax.evaluate import UNSPACED, base_language, make_metrics

Mark = Literal["", "+", "-"]
"""Of words in the reference too, of those that it lacks, and of those of the reference alone."""

LENGTHS = (5, 10, 15, 20, 30, 40, 50)
"""The most words of a reference in each group of sentences but the last, which has all others."""

_PUNCTUATION = re.escape(string.punctuation + "„“”‚‘’«»‹›…–—¿¡、。，！？；：（）「」؟؛،।")
_WORDS = re.compile(rf"(\s*)([{_PUNCTUATION}]|[^\s{_PUNCTUATION}]+)")
_CHARACTERS = re.compile(r"(\s*)(\S)")


class Group(NamedTuple):
    """The sentences whose first reference has a number of words."""

    name: str
    sentences: int
    scores: list[float]
    """Corpus BLEU of each system."""


def draw(count: int, wanted: int, seed: int) -> list[int]:
    """Which of `count` sentences are shown, each as likely, in order; all where 0 is wanted."""
    if not wanted or wanted >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), wanted))


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[str, list[float]]:
    """sacreBLEU's chrF of every sentence, and its signature; BLEU means little of one sentence."""
    metric = sacrebleu.CHRF()
    scores = [
        metric.sentence_score(hypothesis, list(of_it)).score
        for hypothesis, of_it in zip(hypotheses, zip(*references, strict=True), strict=True)
    ]
    return str(metric.get_signature()), scores


def count_words(lines: Sequence[str], target_language: str) -> list[int]:
    """Words of every line, punctuation marks among them, as BLEU of the language splits them."""
    split = make_metrics(target_language, ["BLEU"])["BLEU"].tokenizer
    return [len(split(line).split()) for line in lines]


def by_length(
    systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], target_language: str
) -> list[Group]:
    """BLEU of the systems on the sentences of like length, by the words of the first reference."""
    metric = make_metrics(target_language, ["BLEU"])["BLEU"]
    words = count_words(references[0], target_language)
    groups = []
    for low, high in zip((-1, *LENGTHS), (*LENGTHS, max(*words, LENGTHS[-1] + 1)), strict=True):
        chosen = [number for number, count in enumerate(words) if low < count <= high]
        if not chosen:
            continue
        name = f"over {low}" if low == LENGTHS[-1] else f"{low + 1} to {high}"
        own = [[reference[number] for number in chosen] for reference in references]
        scores = [
            metric.corpus_score([system[number] for number in chosen], own).score
            for system in systems
        ]
        groups.append(Group(name, len(chosen), scores))
    return groups


def mark_differences(
    reference: str, hypothesis: str, target_language: str
) -> list[tuple[str, Mark]]:
    """The hypothesis in parts that differ from the reference or not, and what it lacks of that.

    The parts, but those of the reference alone, are the hypothesis to the letter. Words are split
    at spaces and punctuation, or are letters in languages written without spaces.
    """
    pattern = _CHARACTERS if base_language(target_language) in UNSPACED else _WORDS
    ours, theirs = pattern.findall(hypothesis), pattern.findall(reference)
    rest = hypothesis[sum(len(space + word) for space, word in ours) :]  # of spaces
    parts: list[tuple[str, Mark]] = []
    for text, mark in chain(_differences(theirs, ours), [(rest, "")] if rest else []):
        if parts and parts[-1][1] == mark:
            parts[-1] = (parts[-1][0] + text, mark)
        else:
            parts.append((text, mark))
    return parts


def _differences(
    reference: Sequence[tuple[str, str]], hypothesis: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, Mark]]:
    """Words with the space before them, and their marks."""
    words = [[word for _, word in side] for side in (reference, hypothesis)]
    for _, a, b, c, d in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        same = words[0][a:b] == words[1][c:d]
        if not same:
            yield from ((space + word, "-") for space, word in reference[a:b])
        yield from ((space + word, "" if same else "+") for space, word in hypothesis[c:d])
