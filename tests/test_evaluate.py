"""BLEU against known values, and the mistakes that sacreBLEU lets pass."""

from pathlib import Path

import pytest

from transformer_jax.data.text import read_lines
from transformer_jax.errors import UserError
from transformer_jax.evaluate import bleu

DATA = Path(__file__).parent / "data"


def lines(case: str, name: str) -> list[str]:
    return list(read_lines(DATA / case / name))


@pytest.mark.parametrize(
    ("case", "hypotheses", "references", "expected"),
    [
        ("F01_refs", "hyp.txt", "ref.txt", 36.38),
        ("F02_counts", "hyp_no_final_newline.txt", "ref.txt", 36.38),
        ("F03_empty_ref", "hyp.txt", "ref.txt", 74.77),
        ("F06_unk_refs", "hyp.txt", "ref.txt", 37.99),
        ("F07_escapes", "hyp.txt", "ref.txt", 100.0),
        ("F11_crlf_ref", "hyp.txt", "ref.txt", 100.0),
        ("F11_crlf_ref", "hyp_u2028.txt", "ref.txt", 100.0),
        ("F12_nfd", "hyp.txt", "ref.txt", 100.0),
    ],
)
def test_scores_are_those_published_for_the_files(case, hypotheses, references, expected):
    score = bleu(lines(case, hypotheses), lines(case, references), "en")
    assert score.score == pytest.approx(expected, abs=0.005)


def test_the_signature_names_the_protocol():
    """F08."""
    signature = bleu(["a b c d"], ["a b c d"], "de").signature
    for part in ("nrefs:1", "case:mixed", "tok:13a", "smooth:exp", "version:"):
        assert part in signature


@pytest.mark.parametrize("name", ["hyp_short.txt", "hyp_extra_blank.txt"])
def test_unequal_numbers_of_lines_are_refused_with_both_counts(name):
    """F02: sacreBLEU's own call scores them in silence."""
    hypotheses, references = lines("F02_counts", name), lines("F02_counts", "ref.txt")
    with pytest.raises(UserError) as error:
        bleu(hypotheses, references, "en")
    assert str(len(hypotheses)) in str(error.value) and str(len(references)) in str(error.value)


def test_the_target_language_decides_the_tokenisation():
    """F09: hypotheses equal to their references, without spaces."""
    hypotheses, references = lines("F09_zh", "hyp.txt"), lines("F09_zh", "ref.txt")
    score = bleu(hypotheses, references, "zh")
    assert score.score == pytest.approx(100.0) and "tok:zh" in score.signature
    assert bleu(hypotheses, references, "zh-Hant").score == score.score
    assert bleu(hypotheses, references, "en").score == pytest.approx(0.0)


def test_wrong_shapes_are_refused():
    """F01: a bare string is a sequence of letters."""
    with pytest.raises(TypeError, match="references"):
        bleu(["a"], "a", "en")
    with pytest.raises(UserError, match="no sentences"):
        bleu([], [], "en")
