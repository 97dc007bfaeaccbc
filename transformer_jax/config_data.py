"""The sections of the configuration about text: what is read, and how it becomes tokens."""

from dataclasses import dataclass
from typing import Literal

from transformer_jax.config_checks import check, check_least, check_types


@dataclass(frozen=True)
class DataConfig:
    """Which sentences to train on, and how they become batches."""

    corpus: Literal["files", "cldr", "tfds"] = "files"
    """`files`: parallel text files; `cldr`: the built-in corpus of dates, numbers and names;
    `tfds`: TensorFlow Datasets, made on first use."""
    tfds_name: str = ""
    """Data set of tfds with a text of each language, such as `wmt14_translate/de-en`."""
    directory: str = ""
    """Folder of the text files, each `<name>.<language>`, plain, `.gz` or `.xz`; or the one in
    which tfds keeps its data sets, where empty is `~/tensorflow_datasets`."""
    source_language: str = "en"
    """Language translated from: the ending of the source files, or the name of tfds."""
    target_language: str = "de"
    """Language translated into: the ending of the target files, or the name of tfds."""
    train: tuple[str, ...] = ("train",)
    """Names of the training files, without the language ending, or splits of tfds; several are
    joined."""
    dev: str = "dev"
    """Name of the validation files or split, scored while training; `dev` is tfds's `validation`
    where it has no split `dev`."""
    test: str = "test"
    """Name of the files or split that `evaluate` scores, and `train` at its end; empty is none."""
    max_length: int = 256
    """Longest sentence trained on, in tokens with its end mark; also the length of a packed row."""
    max_length_ratio: float = 9.0
    """Pairs whose longer side has more than this many times the tokens of the other are dropped."""
    batching: Literal["packed", "bucketed"] = "packed"
    """`packed`: several pairs share a row; `bucketed`: one pair a row, pairs of like length."""
    tokens_per_update: int = 25_000
    """Size of the batch of one update in tokens, on each side, padding included (section 5.1)."""
    prefetch_batches: int = 8
    """Batches that background threads keep ready."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.source_language != "", "source_language", "a language code such as en")
        check(self, self.target_language != "", "target_language", "a language code such as de")
        has_name = self.corpus != "tfds" or self.tfds_name != ""
        check(self, has_name, "tfds_name", "a data set such as wmt14_translate/de-en")
        check(self, len(self.train) > 0, "train", "at least one name")
        check_least(self, 2, "max_length")
        check_least(self, 1, "max_length_ratio", "prefetch_batches")
        row = f"at least one row of data.max_length = {self.max_length} tokens"
        check(self, self.tokens_per_update >= self.max_length, "tokens_per_update", row)


@dataclass(frozen=True)
class TokenizerConfig:
    """The vocabulary (section 5.1)."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    """`bpe`: byte-pair encoding; `unigram`: the likeliest pieces of a unigram language model."""
    shared: bool = True
    """One vocabulary, and one matrix of embeddings, for source and target; else one each."""
    vocab_size: int = 37_000
    """Pieces in a vocabulary, special ones included."""
    max_sentences: int = 1_000_000
    """Sentences that a tokenizer is trained on, sampled evenly; a million take
    up to 1 GB of memory (`bpe`) or 2 GB (`unigram`)."""
    character_coverage: float = 1.0
    """Share of a text's characters that are pieces; the rarest others are spelled in bytes."""
    models: tuple[str, ...] = ()
    """SentencePiece models to take instead of training: one if shared, else source and target."""
    sampling_rate: float = 0.0
    """How a training sentence's pieces are drawn anew in every epoch: the share of merges left
    out (`bpe`), or the exponent of a segmentation's probability (`unigram`); 0 is not at all."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.vocab_size > 260, "vocab_size", "above 260 (256 bytes, 4 special pieces)")
        check_least(self, 1, "max_sentences")
        coverage = 0.98 <= self.character_coverage <= 1
        check(self, coverage, "character_coverage", "from 0.98 to 1")
        sides, files = (1, "one file") if self.shared else (2, "two files, source and target,")
        fits = len(self.models) in (0, sides)
        check(self, fits, "models", f"{files} where tokenizer.shared is {self.shared}, or none")
        check(self, 0 <= self.sampling_rate < 1, "sampling_rate", "at least 0 and below 1")
