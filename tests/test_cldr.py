"""The built-in corpus: deterministic, split without overlap, one to one, and really CLDR's."""

import hashlib
import os
import re
import subprocess
import sys

import pytest

from transformer_jax.data.cldr import build_corpus
from transformer_jax.errors import UserError

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def corpus():
    return build_corpus()


@pytest.fixture(scope="module")
def german(corpus):
    return dict(pair for split in SPLITS for pair in corpus[split])


def test_sizes(corpus):
    assert tuple(corpus) == SPLITS
    assert len(corpus["dev"]) == len(corpus["test"]) == 500
    assert 24_000 < len(corpus["train"]) < 35_000


def test_two_builds_are_equal(corpus):
    assert build_corpus() == corpus


def test_the_environment_does_not_matter(corpus):
    code = (
        "import hashlib; from transformer_jax.data.cldr import build_corpus;"
        "print(hashlib.sha256(ascii(build_corpus()).encode()).hexdigest())"
    )
    environment = os.environ | {
        "PYTHONHASHSEED": "12345",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "ja_JP.UTF-8",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == hashlib.sha256(ascii(corpus).encode()).hexdigest()


@pytest.mark.parametrize("languages", [("en", "de"), ("en", "fr"), ("de", "ja"), ("en", "pt-BR")])
def test_no_sentence_occurs_twice_on_either_side(languages):
    corpus = build_corpus(*languages)
    pairs = [pair for split in SPLITS for pair in corpus[split]]
    for side in zip(*pairs, strict=True):
        assert len(set(side)) == len(pairs)


def test_lines_are_clean_and_short(corpus):
    words = 0
    for pair in corpus["train"]:
        for text in pair:
            assert text and text == " ".join(text.split())
            assert not set(text) & {"\u00a0", "\u202f", "\u2009"}
            assert len(text.split()) <= 20
            words += len(text.split())
    assert words / (2 * len(corpus["train"])) < 8


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Germany", "Deutschland"),
        ("Switzerland", "Schweiz"),
        ("Greek", "Griechisch"),
        ("US Dollar", "US-Dollar"),
        ("March", "März"),
        ("Wednesday", "Mittwoch"),
        ("Cyrillic", "Kyrillisch"),
    ],
)
def test_single_names_are_in_train(corpus, source, target):
    assert (source, target) in corpus["train"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(\d+)\.(\d+)", r"\1,\2"),
        (r"(\d+),(\d{3})\.(\d+)", r"\1.\2,\3"),  # 1,234.5
        (r"(\d+)%", r"\1 %"),
        (r"March (\d\d?)", r"\1. März"),
        (r"Wednesday, December (\d+), (\d+)", r"Mittwoch, \1. Dezember \2"),
        (r"([1-9]):(\d\d) AM", r"0\1:\2"),
        (r"([2-9]) days ago", r"vor \1 Tagen"),
        (r"([2-9]\d) million", r"\1 Millionen"),
        (r"([2-9]) kilometers", r"\1 Kilometer"),
        (r"\$([2-9]\d+)\.(\d+)", r"\1,\2 $"),
    ],
)
def test_values_are_written_the_german_way(german, pattern, expected):
    sources = [source for source in german if re.fullmatch(pattern, source)]
    assert sources
    for source in sources:
        assert german[source] == re.sub(pattern, expected, source)


def test_lists_are_joined_the_german_way(german):
    days = {
        "Monday": "Montag",
        "Tuesday": "Dienstag",
        "Wednesday": "Mittwoch",
        "Thursday": "Donnerstag",
        "Friday": "Freitag",
        "Saturday": "Samstag",
        "Sunday": "Sonntag",
    }
    found = 0
    for source, target in german.items():
        match = re.fullmatch(r"(\w+day), (\w+day), (and|or) (\w+day)", source)
        if match:
            first, second, conjunction, third = match.groups()
            joined = {"and": "und", "or": "oder"}[conjunction]
            assert target == f"{days[first]}, {days[second]} {joined} {days[third]}"
            found += 1
    assert found > 20


def test_every_name_recurs_in_combinations(corpus):
    train = corpus["train"]
    for name, translation in (("Germany", "Deutschland"), ("Zulu", "Zulu"), ("Euro", "Euro")):
        assert sum(name in source and translation in target for source, target in train) > 20


def test_held_out_sentences_are_made_of_known_words(corpus):
    known = {word for source, _ in corpus["train"] for word in re.findall(r"[^\W\d]+", source)}
    for split in ("dev", "test"):
        for source, _ in corpus[split]:
            assert set(re.findall(r"[^\W\d]+", source)) <= known


def test_another_language_pair():
    french = dict(build_corpus("en", "fr")["train"])
    assert french["Germany"] == "Allemagne"
    assert french["Wednesday"] == "mercredi"


@pytest.mark.parametrize("language", ["xx", "klingon", "", "en/de"])
def test_an_unknown_language_is_a_users_error(language):
    with pytest.raises(UserError, match="does not know the language"):
        build_corpus("en", language)
    with pytest.raises(UserError, match="does not know the language"):
        build_corpus(language, "de")


def test_equal_languages_are_a_users_error():
    with pytest.raises(UserError, match="two languages"):
        build_corpus("de", "de")


def test_a_language_with_few_names_is_a_users_error():
    with pytest.raises(UserError, match="names of"):
        build_corpus("en", "tok")
