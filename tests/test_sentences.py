"""Sentence by sentence: differences, scores, lengths, and which sentences are shown."""

from collections import Counter

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.sentences import (
    by_length,
    count_words,
    draw,
    mark_differences,
    sentence_scores,
)

TEXTS = st.text("ab .,-ü", max_size=20)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "parts"),
    [
        ("ein Hund rennt", "ein Hund rennt", [("ein Hund rennt", "")]),
        ("ein Hund", "ein alter Hund", [("ein", ""), (" alter", "+"), (" Hund", "")]),
        ("ein alter Hund", "ein Hund", [("ein", ""), (" alter", "-"), (" Hund", "")]),
        ("ein Hund.", "ein Tier.", [("ein", ""), (" Hund", "-"), (" Tier", "+"), (".", "")]),
        ("er ruft „ja“", "er ruft ja", [("er ruft", ""), (" „", "-"), (" ja", ""), ("“", "-")]),
        ("", "neu", [("neu", "+")]),
        ("alt", "", [("alt", "-")]),
        ("", "", []),
        ("ein  Hund ", " ein Hund  ", [(" ein Hund  ", "")]),
    ],
)
def test_words_that_differ_are_marked(reference: str, hypothesis: str, parts: list) -> None:
    assert mark_differences(reference, hypothesis, "de") == parts


def test_letters_are_compared_where_there_are_no_spaces() -> None:
    found = mark_differences("我喜欢猫", "我喜欢狗", "zh-Hant")
    assert found == [("我喜欢", ""), ("猫", "-"), ("狗", "+")]


@given(reference=TEXTS, hypothesis=TEXTS, language=st.sampled_from(["de", "zh"]))
def test_no_letter_is_lost(reference: str, hypothesis: str, language: str) -> None:
    parts = mark_differences(reference, hypothesis, language)
    assert "".join(text for text, mark in parts if mark != "-") == hypothesis
    others = "".join(text for text, mark in parts if mark != "+")
    assert "".join(others.split()) == "".join(reference.split())


def test_scores_of_sentences_are_those_of_sacrebleu() -> None:
    hypotheses = ["Ein Hund rennt.", "Zwei Katzen", ""]
    references = [["Ein Hund läuft.", "Zwei Katzen", "Nichts"], ["Ein Tier.", "Katzen", "Leer"]]
    signature, scores = sentence_scores(hypotheses, references)
    expected = [
        sacrebleu.sentence_chrf(text, [reference[number] for reference in references]).score
        for number, text in enumerate(hypotheses)
    ]
    assert scores == expected and scores[1] == pytest.approx(100)
    assert "nrefs:2" in signature and "nc:6" in signature


def test_bleu_by_length_is_that_of_the_sentences_so_long() -> None:
    lengths = [5, 6, 10, 51, 80, 0, 50, 11]
    references = [" ".join(f"w{place}" for place in range(count)) for count in lengths]
    good = list(references)
    bad = [text.replace("w3", "x") for text in references]
    groups = by_length([good, bad], [references], "de")
    members = {
        "0 to 5": [0, 5],
        "6 to 10": [1, 2],
        "11 to 15": [7],
        "41 to 50": [6],
        "over 50": [3, 4],
    }
    assert [(group.name, group.sentences) for group in groups] == [
        (name, len(numbers)) for name, numbers in members.items()
    ]
    for group, numbers in zip(groups, members.values(), strict=True):
        own = [references[number] for number in numbers]
        expected = [
            sacrebleu.corpus_bleu([system[number] for number in numbers], [own]).score
            for system in (good, bad)
        ]
        assert group.scores == pytest.approx(expected)
        assert group.scores[1] < group.scores[0]


def test_words_are_those_that_bleu_counts() -> None:
    assert count_words(["Ein Hund, 1,5 m.", ""], "de") == [6, 0]
    assert count_words(["我喜欢猫。"], "zh") == [5]


def test_some_sentences_are_drawn_and_all_are_likely() -> None:
    assert draw(10, 0, seed=1) == draw(10, 10, seed=2) == draw(10, 99, seed=3) == list(range(10))
    assert draw(1_000, 200, seed=5) == draw(1_000, 200, seed=5) != draw(1_000, 200, seed=6)
    found = Counter(number for seed in range(1_000) for number in draw(10, 3, seed))
    assert sorted(found) == list(range(10)) and all(200 < count < 400 for count in found.values())
    assert all(draw(10, 3, seed) == sorted(set(draw(10, 3, seed))) for seed in range(20))
