"""Scores against known values, and the mistakes that sacreBLEU lets pass."""

from pathlib import Path

import pytest
import sacrebleu
from corpora import find_corpus

from transformer_jax.data.text import read_lines
from transformer_jax.errors import UserError
from transformer_jax.evaluate import check_lines, doubts, make_metrics, scores

DATA = Path(__file__).parent / "data"


def lines(case: str, name: str) -> list[str]:
    return list(read_lines(DATA / case / name))


def bleu(hypotheses: list[str], references: list[str], language: str = "en") -> float:
    metrics = make_metrics(language, ["BLEU"])
    return scores(metrics, hypotheses, {"ref": references})["BLEU"].score


def test_f01_every_reference_counts_whatever_their_number() -> None:
    """Shapes that sacreBLEU takes for others, and scores with 100.0 or 0.0, are refused."""
    hypotheses, *references = (lines("F01_refs", f"{name}.txt") for name in ("hyp", "ref", "ref2"))
    metrics = make_metrics("en", ["BLEU"])
    both = dict(zip(("ref", "ref2"), references, strict=True))
    assert bleu(hypotheses, references[0]) == pytest.approx(36.38, abs=0.005)
    score = scores(metrics, hypotheses, both)["BLEU"]
    assert score.score == pytest.approx(78.75, abs=0.005) and "nrefs:2" in score.signature
    sentences = dict(enumerate(zip(*references, strict=True)))
    with pytest.raises(UserError, match="hypotheses has 3 lines but 0 has 2"):
        scores(metrics, hypotheses, sentences)
    for wrong in (references[0], dict(enumerate(references[0]))):
        with pytest.raises((TypeError, AttributeError)):
            scores(metrics, hypotheses, wrong)
    with pytest.raises(TypeError, match="hypotheses must be a sequence"):
        scores(metrics, "abc", {"ref": ["a", "b", "c"]})
    for nothing in ({"ref": []}, {}):
        with pytest.raises(UserError, match="no sentences"):
            scores(metrics, [], nothing)


@pytest.mark.parametrize(("name", "count"), [("hyp_short.txt", 2), ("hyp_extra_blank.txt", 4)])
def test_f02_unequal_numbers_of_lines_are_refused_with_both(name: str, count: int) -> None:
    """sacreBLEU's own call scores them in silence. A final line end makes no line."""
    references = lines("F02_counts", "ref.txt")
    with pytest.raises(UserError, match=f"out has {count} lines but ref has 3: "):
        check_lines(lines("F02_counts", name), {"ref": references}, "out")
    whole = bleu(lines("F02_counts", "hyp_no_final_newline.txt"), references)
    assert whole == pytest.approx(36.38, abs=0.005)


def test_the_two_newstest2014_are_told_apart_where_they_are_confused() -> None:
    with pytest.raises(UserError, match="3003, 2737 of them"):
        check_lines(["a"] * 3_003, {"ref": ["a"] * 2_737})


def test_f03_an_empty_reference_is_a_reference() -> None:
    hypotheses, references = lines("F03_empty_ref", "hyp.txt"), lines("F03_empty_ref", "ref.txt")
    assert bleu(hypotheses, references) == pytest.approx(74.77, abs=0.005)
    told = list(doubts({"out": hypotheses}, {"ref": references}, "en"))
    assert told == ["1 empty reference in ref"]


def test_f06_letters_that_no_vocabulary_has_match_nothing() -> None:
    hypotheses, references = lines("F06_unk_refs", "hyp.txt"), lines("F06_unk_refs", "ref.txt")
    assert bleu(hypotheses, references) == pytest.approx(37.99, abs=0.005)


def test_f07_escaped_or_tokenised_text_is_told() -> None:
    hypotheses = lines("F07_escapes", "hyp.txt")
    raw, tokenised = (lines("F07_escapes", name) for name in ("ref.txt", "ref_tok.txt"))
    assert bleu(hypotheses, raw) == pytest.approx(100)
    assert list(doubts({"out": hypotheses}, {"ref": raw}, "en")) == []
    assert bleu(hypotheses, tokenised) == pytest.approx(36.34, abs=0.005)
    (doubt,) = doubts({"out": hypotheses}, {"ref": tokenised}, "en")
    assert "lines of ref look tokenised or escaped" in doubt
    for mark in ("it &apos;s", "un@@ known", "\u2581a \u2581b", "It stops ."):
        assert list(doubts({"out": [mark]}, {"ref": ["it stops."]}, "en")), mark


def test_f08_every_score_has_its_name_and_its_signature() -> None:
    hypotheses, references = (
        lines("F08_tokenised", "hyp_tok.txt"),
        lines("F08_tokenised", "ref.txt"),
    )
    assert bleu(hypotheses, references) == pytest.approx(100)
    untokenised = sacrebleu.BLEU(tokenize="none", force=True)
    score = scores({"": untokenised}, hypotheses, {"ref": references})[""]
    assert score.score == pytest.approx(6.77, abs=0.005) and "tok:none" in score.signature

    found = scores(make_metrics("de"), ["Ein Mann geht heim."], {"ref": ["Ein Mann geht heim."]})
    parts = {
        "BLEU": "nrefs:1 case:mixed eff:no tok:13a smooth:exp",
        "paper_BLEU": "nrefs:1 case:mixed eff:no smooth:none",
        "chrF": "nrefs:1 case:mixed nc:6 nw:0",
        "TER": "nrefs:1 case:lc tok:tercom",
    }
    assert {name: round(score.score) for name, score in found.items()} == {
        **dict.fromkeys(("BLEU", "paper_BLEU", "chrF"), 100),
        "TER": 0,
    }
    for name, score in found.items():
        version = f"version:{sacrebleu.__version__}"
        assert {*parts[name].split(), version} <= set(score.signature.split("|")), name


def test_f09_the_language_decides_the_tokeniser() -> None:
    """Hypotheses equal to their references, in Chinese, without spaces."""
    text = lines("F09_zh", "hyp.txt")
    assert text == lines("F09_zh", "ref.txt")
    for language in ("zh", "zh-Hant", "zh_CN"):
        score = scores(make_metrics(language), text, {"ref": text})
        assert score["BLEU"].score == pytest.approx(100) and "tok:zh" in score["BLEU"].signature
        assert list(doubts({"out": text}, {"ref": text}, language)) == []
    assert bleu(text, text, "en") == pytest.approx(0)
    (doubt,) = doubts({"out": text}, {"ref": text}, "en")
    assert "written without spaces" in doubt and "'en'" in doubt


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_missing_words_of_mecab_are_told(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"sacrebleu.tokenizers.tokenizer_{language}_mecab"
    monkeypatch.setattr(f"{module}.MeCab", None)
    with pytest.raises(UserError, match=rf"pip install 'sacrebleu\[{language}\]'"):
        make_metrics(language)


def test_scores_that_a_language_lacks_are_left_out_or_refused() -> None:
    assert list(make_metrics("zh")) == ["BLEU", "chrF", "TER"]
    assert list(make_metrics("th")) == ["BLEU", "chrF"]
    score = scores(make_metrics("th"), ["วันนี้"], {"ref": ["วันนี้"]})["BLEU"]
    assert score.score == pytest.approx(100) and "tok:char" in score.signature
    with pytest.raises(UserError, match="paper_BLEU counts words between spaces: zh"):
        make_metrics("zh", ["paper_BLEU"])


def test_f11_line_ends_and_other_separators_move_no_line() -> None:
    references = lines("F11_crlf_ref", "ref.txt")
    for name in ("hyp.txt", "hyp_u2028.txt"):
        assert bleu(lines("F11_crlf_ref", name), references) == pytest.approx(100)


def test_f12_composed_and_decomposed_letters_match() -> None:
    hypotheses, references = lines("F12_nfd", "hyp.txt"), lines("F12_nfd", "ref.txt")
    assert bleu(hypotheses, references) == pytest.approx(100)


@pytest.mark.parametrize(
    ("system", "expected"), [("OpenNMT", (35.69, 35.70)), ("PROMT", (36.12, 36.01))]
)
def test_scores_of_generaltest2022_are_those_published(
    system: str, expected: tuple[float, float]
) -> None:
    output = find_corpus(f"scoring/generaltest2022.en-de.hyp.{system}.de")
    hypotheses = list(read_lines(output))
    for name, score in zip(("de", "refB.de"), expected, strict=True):
        references = list(read_lines(find_corpus(f"scoring/generaltest2022.{name}")))
        assert bleu(hypotheses, references, "de") == pytest.approx(score, abs=0.01)
