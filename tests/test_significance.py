"""Paired tests against a brute-force shuffle, and the spread over seeds."""

import itertools

import numpy as np
import pytest
import sacrebleu

from transformer_jax.evaluate import make_metrics
from transformer_jax.significance import mean_and_deviation, paired_test

REFERENCES = [
    f"the {colour} {animal} runs over the green grass ."
    for colour in ("red", "brown")
    for animal in ("dog", "cat", "horse", "mouse", "bird")
]
GOOD = [line.replace("over", "across") if i % 5 == 0 else line for i, line in enumerate(REFERENCES)]
BAD = [line.replace("green", "red") if i % 2 else line for i, line in enumerate(REFERENCES)]


def exact_p_value(one: list[str], other: list[str], references: list[str]) -> float:
    """Share of all exchanges of sentences between two systems that differ more than they do."""
    bleu = sacrebleu.BLEU(force=True)
    pairs = list(zip(one, other, strict=True))

    def difference(exchanged: tuple[bool, ...]) -> float:
        sides = (
            [pair[e ^ side] for pair, e in zip(pairs, exchanged, strict=True)] for side in (0, 1)
        )
        first, second = (bleu.corpus_score(side, [references]).score for side in sides)
        return abs(first - second)

    true = difference((False,) * len(pairs))
    all_exchanges = list(itertools.product((False, True), repeat=len(pairs)))
    return sum(difference(e) > true + 1e-9 for e in all_exchanges) / len(all_exchanges)


def test_the_p_value_is_the_share_of_exchanges_that_differ_more() -> None:
    metric = make_metrics("en", ["BLEU"])["BLEU"]
    systems = {"good": GOOD, "bad": BAD, "same": list(GOOD)}
    signature, found = paired_test("approximate-randomization", systems, [REFERENCES], metric)
    assert "ar:10000" in signature and "seed:12345" in signature and "tok:13a" in signature
    assert list(found) == ["good", "bad", "same"] and found["good"].p_value is None
    expected = exact_p_value(GOOD, BAD, REFERENCES)
    assert 0.001 < expected < 0.9
    assert found["bad"].p_value == pytest.approx(expected, abs=0.02)
    assert found["same"].p_value == pytest.approx(0, abs=0.001)  # nothing differs more than 0


def test_the_bootstrap_is_one_of_resampled_sentences() -> None:
    metric = make_metrics("en", ["chrF"])["chrF"]
    systems = {"good": GOOD, "bad": BAD}
    signature, found = paired_test("bootstrap", systems, [REFERENCES], metric)
    assert "bs:1000" in signature and "nc:6" in signature

    draws = np.random.default_rng(0).integers(len(GOOD), size=(400, len(GOOD)))

    def sampled(lines: list[str]) -> np.ndarray:
        return np.array(
            [
                sacrebleu.corpus_chrf(
                    [lines[i] for i in draw], [[REFERENCES[i] for i in draw]]
                ).score
                for draw in draws
            ]
        )

    good, bad = sampled(GOOD), sampled(BAD)
    difference = sacrebleu.corpus_chrf(GOOD, [REFERENCES]).score
    difference -= sacrebleu.corpus_chrf(BAD, [REFERENCES]).score
    differences = np.abs(good - bad)
    expected = np.mean(differences - differences.mean() > abs(difference))
    assert found["bad"].p_value == pytest.approx(expected, abs=0.03)
    for name, scores in (("good", good), ("bad", bad)):
        low, high = np.quantile(scores, (0.025, 0.975))
        assert found[name].mean == pytest.approx(scores.mean(), abs=0.3)
        assert found[name].interval == pytest.approx((high - low) / 2, rel=0.15)


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    spread = mean_and_deviation([{"BLEU": 20.0}, {"BLEU": 22.0}, {"BLEU": 27.0}])
    # sqrt((3^2 + 1^2 + 4^2) / 2)
    assert spread == {"BLEU": {"mean": 23.0, "sd": pytest.approx(13**0.5)}}
