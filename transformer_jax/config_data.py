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
    inspection: Literal["stop", "warn", "off"] = "stop"
    """What happens before training where its text looks meaningless, such as with shifted lines:
    `stop`, or `warn` and go on; `off` does not look."""
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
    """The shared byte-pair encoding (section 5.1)."""

    vocab_size: int = 37_000
    """Pieces in the vocabulary that source and target share, special ones included."""
    max_sentences: int = 10_000_000
    """Sentences, sampled evenly from both sides, that the tokenizer is trained on."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.vocab_size > 260, "vocab_size", "above 260 (256 bytes, 4 special pieces)")
        check_least(self, 1, "max_sentences")
