"""Scores of translations against references, each with a signature that says how it was computed.

| name | score |
|---|---|
| `BLEU` | sacreBLEU of raw text; the target language decides the tokeniser |
| `paper_BLEU` | the tokenised BLEU of the paper's tables, see `moses.py` |
| `chrF`, `TER` | sacreBLEU's chrF2 and translation edit rate |
| `COMET` | see `comet.py` |
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import sacrebleu
from sacrebleu.metrics.base import Metric

from transformer_jax.errors import UserError
from transformer_jax.moses import paper_bleu

UNSPACED = {"zh": "zh", "ja": "ja-mecab", "th": "char", "lo": "char", "km": "char", "my": "char"}
"""Languages written without spaces, and how sacreBLEU splits them. It knows no words of Thai, Lao,
Khmer and Burmese without downloading a model, so letters are counted, as the signature says."""

TOKENIZERS = UNSPACED | {"ko": "ko-mecab"}
"""How sacreBLEU splits languages that 13a does not suit."""

_WIDE = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_TOKENISED = re.compile("&(apos|quot|amp|lt|gt|#\\d+);|@@|@-@|\u2581| [.,](?= |$)")
_FREQUENT = 0.05


class Score(NamedTuple):
    """A score of a whole test set, and how it was computed."""

    score: float
    signature: str


def make_metrics(target_language: str, names: Sequence[str] | None = None) -> dict[str, Metric]:
    """sacreBLEU's metrics by name; without names all that the language has, which is without COMET.

    Where there are no spaces the paper's BLEU finds no words, and TER those of Chinese and Japanese
    alone. Raises UserError where such a score is asked for by name, and where the language needs a
    package that is not there.
    """
    language = base_language(target_language)
    asian = language in ("zh", "ja")
    makers = {
        "BLEU": lambda: _sacrebleu(language),
        "paper_BLEU": lambda: paper_bleu(language),
        "chrF": sacrebleu.CHRF,
        "TER": lambda: sacrebleu.TER(normalized=asian, asian_support=asian),
    }
    if language in UNSPACED:
        makers.pop("paper_BLEU")
        if not asian:
            makers.pop("TER")
    wanted = list(makers) if names is None else names
    for name in wanted:
        if name not in makers:
            raise UserError(f"{name} counts words between spaces: {language} is written without")
    return {name: makers[name]() for name in wanted}


def base_language(language: str) -> str:
    """The language of a code such as `zh-Hant` or `pt_BR`."""
    return language.replace("_", "-").split("-")[0].lower()


def _sacrebleu(language: str) -> sacrebleu.BLEU:
    try:
        # `force` keeps sacreBLEU's own warning about tokenised text away; see `doubts`.
        return sacrebleu.BLEU(tokenize=TOKENIZERS.get(language, "13a"), force=True)
    except RuntimeError:
        raise UserError(
            f"BLEU of {language} needs the words of MeCab: pip install 'sacrebleu[{language}]'"
        ) from None


def scores(
    metrics: Mapping[str, Metric],
    hypotheses: Sequence[str],
    references: Mapping[str, Sequence[str]],
) -> dict[str, Score]:
    """The scores of hypotheses against one or several references, each with its name.

    Raises UserError where the numbers of lines differ, which sacreBLEU lets pass.
    """
    check_lines(hypotheses, references)
    lines = [list(reference) for reference in references.values()]
    found = {}
    for name, metric in metrics.items():
        score = metric.corpus_score(list(hypotheses), lines).score
        found[name] = Score(score, str(metric.get_signature()))
    return found


def check_lines(
    hypotheses: Sequence[str], references: Mapping[str, Sequence[str]], name: str = "hypotheses"
) -> None:
    """Raises UserError where the lines of a reference are not as many as the hypotheses."""
    for what, lines in {name: hypotheses, **references}.items():
        if isinstance(lines, str):
            raise TypeError(f"{what} must be a sequence of sentences, not one string")
    for reference, lines in references.items():
        if len(lines) != len(hypotheses):
            newstest2014 = {len(lines), len(hypotheses)} == {3_003, 2_737}
            hint = (
                " (newstest2014 has 3003, 2737 of them sacreBLEU's wmt14)" if newstest2014 else ""
            )
            raise UserError(
                f"{name} has {len(hypotheses)} lines but {reference} has {len(lines)}{hint}: "
                "they must be the same sentences, a line each"
            )
    if not hypotheses or not references:
        raise UserError("no sentences to score")


def doubts(
    hypotheses: Mapping[str, Sequence[str]],
    references: Mapping[str, Sequence[str]],
    target_language: str,
) -> Iterator[str]:
    """What about the text makes its scores doubtful, one sentence each; the lines go by name."""
    for name, lines in {**hypotheses, **references}.items():
        tokenised = sum(bool(_TOKENISED.search(line)) for line in lines)
        if tokenised > _FREQUENT * len(lines):
            yield (
                f"{tokenised} of {len(lines)} lines of {name} look tokenised or escaped "
                "(such as ' .' or '&quot;'): scores of raw text are not comparable"
            )
    for name, lines in references.items():
        empty = sum(not line.strip() for line in lines)
        if empty:
            yield f"{empty} empty {'reference' if empty == 1 else 'references'} in {name}"
        text = "".join(lines).replace(" ", "")
        unspaced = len(_WIDE.findall(text)) > len(text) / 2
        if unspaced and base_language(target_language) not in UNSPACED:
            yield (
                f"{name} is written without spaces, but its language is {target_language!r}, whose "
                "words are split at spaces: BLEU means nothing"
            )
