"""The paper's BLEU against a count by hand, and Moses's words against those of its own scripts."""

import math
import re
from collections import Counter
from importlib.metadata import version

import pytest
from corpora import find_corpus

from transformer_jax.data.text import read_lines
from transformer_jax.evaluate import make_metrics, scores
from transformer_jax.moses import detokenize, paper_bleu


def multi_bleu(hypotheses: list[str], references: list[list[str]]) -> float:
    """Section 2 of Papineni et al. (2002), by the word; references by sentence."""
    matches, totals, length, closest = Counter(), Counter(), 0, 0
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        words, others = hypothesis.split(), [text.split() for text in texts]
        length += len(words)
        closest += min((abs(len(o) - len(words)), len(o)) for o in others)[1]
        for n in (1, 2, 3, 4):
            grams = Counter(zip(*(words[i:] for i in range(n)), strict=False))
            allowed = Counter()
            for other in others:
                allowed |= Counter(zip(*(other[i:] for i in range(n)), strict=False))
            matches[n] += sum((grams & allowed).values())
            totals[n] += sum(grams.values())
    if not all(matches[n] for n in (1, 2, 3, 4)):
        return 0.0
    precision = sum(math.log(matches[n] / totals[n]) for n in (1, 2, 3, 4)) / 4
    return 100 * math.exp(min(0, 1 - closest / length) + precision)


# What tokenizer.perl of Moses prints with -l LANGUAGE.
WORDS = [
    ("de", "Das ist „gut“, z.B. am 3. Mai!", "Das ist „ gut “ , z.B. am 3. Mai !"),
    (
        "de",
        'Dr. Müller sagte: "Es kostet 1.000,50 € (ca. 5 % mehr)."',
        "Dr. Müller sagte : &quot; Es kostet 1.000,50 € ( ca. 5 % mehr ) . &quot;",
    ),
    ("de", "O'Neil geht's gut; 24/7?", "O &apos; Neil geht &apos; s gut ; 24 / 7 ?"),
    ("en", "It's 5 o'clock, Mr. Smith.", "It &apos;s 5 o &apos;clock , Mr. Smith ."),
    ("en", 'He paid $1,000.50 for "it"...', "He paid $ 1,000.50 for &quot; it &quot; ..."),
    ("en", "state-of-the-art AT&T", "state-of-the-art AT &amp; T"),
    ("fr", "L'homme n'a « rien », dit-il.", "L&apos; homme n&apos; a « rien » , dit-il ."),
]


@pytest.mark.parametrize(("language", "line", "expected"), WORDS)
def test_words_are_those_of_moses(language: str, line: str, expected: str) -> None:
    assert paper_bleu(language).tokenizer(line).split() == expected.split()


def test_compounds_are_split_at_hyphens_in_german_alone() -> None:
    german = paper_bleu("de").tokenizer
    assert german("Die B-Ampel - neu.") == "Die B ##AT##-##AT## Ampel - neu ."
    # As s/(\S)-(\S)/.../g does: the letter between two hyphens is taken once.
    assert german("a-b-c") == "a ##AT##-##AT## b-c"
    assert paper_bleu("fr").tokenizer("dit-il") == "dit-il"


@pytest.mark.parametrize("language", ["de", "fr"])
def test_the_paper_s_bleu_is_that_of_a_count_by_hand(language: str) -> None:
    hypotheses = ["Die B-33 Ampel ist sehr rot, ja.", "Er kam am 3. Mai an!", "Wir gehen nun heim"]
    first = ["Die B-33 Ampel ist rot, ja.", "Er kam am 3. Mai!", "wir gehen jetzt endlich heim"]
    second = ["Die B-33 Lampe ist sehr rot.", "Er kam am 3. Mai an.", "Wir gehen nun nach Hause"]
    metric = paper_bleu(language)
    words = [[metric.tokenizer(line) for line in side] for side in (hypotheses, first, second)]
    one = scores({"paper": metric}, hypotheses, {"first": first})["paper"]
    expected = multi_bleu(words[0], [[line] for line in words[1]])
    assert one.score == pytest.approx(expected, abs=1e-9) and 20 < expected < 90
    two = scores({"paper": metric}, hypotheses, {"first": first, "second": second})["paper"]
    both = multi_bleu(words[0], [list(pair) for pair in zip(*words[1:], strict=True)])
    assert two.score == pytest.approx(both, abs=1e-9) and both > expected
    # No smoothing: without a match of four words the score is 0.
    none = scores({"paper": metric}, ["Die Ampel ist rot"], {"first": ["Die rote Ampel ist"]})
    assert none["paper"].score == 0


def test_the_signature_holds_the_whole_protocol() -> None:
    signature = scores({"": paper_bleu("de")}, ["a"], {"r": ["a"]})[""].signature
    tokeniser = f"tok:moses-de-compounds-sacremoses.{version('sacremoses')}"
    for part in ("nrefs:1", "case:mixed", tokeniser, "smooth:none"):
        assert part in signature.split("|")
    assert "compounds" not in scores({"": paper_bleu("fr")}, ["a"], {"r": ["a"]})[""].signature


def test_raw_text_comes_back_from_words() -> None:
    tokenised = (
        "&quot; Es kostet ( ca. ) 5 % , &quot; sagte O &apos; Neil &amp; Co . &#91; 1 &#93; !"
    )
    (raw,) = detokenize([tokenised], "de")
    assert raw == '"Es kostet (ca.) 5%," sagte O \'Neil & Co. [1]!'


def test_newstest2014_of_sennrich_2016() -> None:
    """25.27 is the known score: of text that Moses's detokeniser put together again, but for its
    escapes, such as `&apos;` and `&#91;`. Undone too, as they are here, they make it 25.36."""
    from sacremoses import MosesDetokenizer

    words = list(read_lines(find_corpus("scoring/sennrich2016.newstest2014.de")))
    references = {"ref": list(read_lines(find_corpus("en-de/dev/newstest2014.de")))}
    assert len(words) == len(references["ref"]) == 3_003
    metrics = make_metrics("de", ["BLEU", "paper_BLEU"])
    escaped = [MosesDetokenizer("de").detokenize(line.split(), unescape=False) for line in words]
    assert scores(metrics, escaped, references)["BLEU"].score == pytest.approx(25.27, abs=0.005)
    found = scores(metrics, detokenize(words, "de"), references)
    assert found["BLEU"].score == pytest.approx(25.36, abs=0.005)

    # The file as it is, in which Moses found the words, against the words of the references.
    tokenizer = metrics["paper_BLEU"].tokenizer
    split = [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in words]
    expected = multi_bleu(split, [[tokenizer(line)] for line in references["ref"]])
    assert found["paper_BLEU"].score == pytest.approx(25.92, abs=0.005)
    assert found["paper_BLEU"].score == pytest.approx(expected, abs=0.005)
