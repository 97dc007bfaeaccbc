"""Scores of translations against references."""

from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu

from transformer_jax.errors import UserError

TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char"}
"""Languages that are not written with spaces, and how sacreBLEU splits them; others: 13a."""


class BleuScore(NamedTuple):
    """A corpus score, 0 to 100, and how it was computed."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> BleuScore:
    """sacreBLEU of raw text: one reference a sentence, mixed case, exponential smoothing.

    Raises UserError where the numbers of lines differ, which sacreBLEU lets pass.
    """
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(lines, str):
            raise TypeError(f"{name} must be a sequence of sentences, not one string")
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses but {len(references)} references: "
            "they must be the same sentences, a line each"
        )
    if not hypotheses:
        raise UserError("no sentences to score")
    language = target_language.replace("_", "-").split("-")[0].lower()
    metric = sacrebleu.BLEU(tokenize=TOKENIZERS.get(language, "13a"))
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return BleuScore(result.score, str(metric.get_signature()))
