"""Moses's words: the BLEU of the paper's tables, and text that Moses took apart put together again.

The paper (table 2) reports BLEU as was usual then: hypotheses and references are tokenised with
Moses, German compounds are split at their hyphens, and the n-grams are counted, case and all,
without smoothing, as `multi-bleu.perl` does. Such scores differ from sacreBLEU's by a point or so.
"""

import re
from collections.abc import Iterable
from importlib.metadata import version

import sacrebleu

_HYPHEN = re.compile(r"(\S)-(\S)")


class _PaperTokenizer:
    """The words that the paper's BLEU counts, in the form in which sacreBLEU takes a tokeniser."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesTokenizer

        self._language = language
        self._moses = MosesTokenizer(language)
        self._splits_compounds = language == "de"

    def __call__(self, line: str) -> str:
        words = self._moses.tokenize(line, return_str=True)
        # Overlapping hyphens stay, as in the scripts of the time: a-b-c becomes a ## b-c.
        return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", words) if self._splits_compounds else words

    def signature(self) -> str:
        compounds = "-compounds" if self._splits_compounds else ""
        return f"moses-{self._language}{compounds}-sacremoses.{version('sacremoses')}"


def paper_bleu(language: str) -> sacrebleu.BLEU:
    """The paper's BLEU of raw text in a language, whose two-letter code is given.

    Its signature holds the tokeniser with its version, and whether compounds are split.
    """
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    metric.tokenizer = _PaperTokenizer(language)  # type: ignore[assignment]
    metric.tokenizer_signature = metric.tokenizer.signature()
    return metric


def detokenize(lines: Iterable[str], language: str) -> list[str]:
    """Raw text from lines that Moses tokenised; its escapes, such as `&quot;`, are undone too."""
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(language)
    return [moses.detokenize(line.split()) for line in lines]
