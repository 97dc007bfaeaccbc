"""The sections of the configuration about text: what is read, and how it becomes tokens."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from transformer_jax.config_checks import check, check_least, check_types

KINDS = ("files", "tsv", "tfds", "folder", "cldr", "multi30k", "given")


class Source(NamedTuple):
    """Where pairs come from, as the entries of `data.train`, `data.dev` and `data.test` say it."""

    kind: str
    """One of `KINDS`."""
    name: str
    weight: float = 1.0
    """How often each pair comes in an epoch."""
    tag: str = ""
    """A word put before every source sentence, so that the model can tell them from others."""

    @classmethod
    def parse(cls, text: str, default_kind: str) -> "Source":
        """Reads `[KIND:]NAME[#TAG][=WEIGHT]`, such as `tsv:~/pairs.tsv` or `bible=0.5`."""
        kind, colon, name = text.partition(":")
        if not colon or kind not in KINDS:
            kind, name = default_kind, text
        start, equals, end = name.rpartition("=")
        try:
            weight = float(end) if equals else 1.0
        except ValueError:  # the equals sign is part of the name
            weight = 1.0
        else:
            name = start if equals else name
        name, _, tag = name.partition("#")
        return cls(kind, name, weight, tag)


@dataclass(frozen=True)
class DataConfig:
    """Which sentences to train on, and how they become batches."""

    corpus: Literal["files", "cldr", "tfds", "multi30k"] = "files"
    """What names without a kind are. `files`: parallel text files; `cldr`: the built-in corpus of
    dates, numbers and names; `tfds`: splits of TensorFlow Datasets, made on first use; `multi30k`:
    image captions, fetched on first use."""
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
    """What to train on, each `[KIND:]NAME[#TAG][=WEIGHT]`: the name of files without the language,
    with `*` for any letters; `tsv:FILE` or `tsv:FILE:2,1` (its columns of source and target);
    `folder:DIRECTORY:SPLIT` (files `<language>.<split>.txt`); `tfds:NAME:SPLIT`; `cldr:train`;
    `multi30k:train`; `given:NAME`, pairs that Python gives. A pair comes WEIGHT times in an epoch,
    by default once; TAG is put before its source."""
    dev: str = "dev"
    """What is scored while training, as in `train` without weight; `dev` is tfds's `validation`
    where it has no split `dev`."""
    test: str = "test"
    """What `evaluate` scores, and `train` at its end, as in `train` without weight; empty is
    none."""
    token_directory: str = ""
    """Folder of corpora as tokens, which runs share; empty is `tokens` beside the run's."""
    max_length: int = 256
    """Longest sentence trained on, in tokens with its end mark; also the length of a packed row."""
    max_length_ratio: float = 9.0
    """Pairs whose longer side has more than this many times the tokens of the other are dropped."""
    batching: Literal["packed", "bucketed"] = "packed"
    """`packed`: several pairs share a row; `bucketed`: one pair a row, pairs of like length."""
    tokens_per_update: int = 25_000
    """Size of the batch of one update in tokens, on the longer side, padding included
    (section 5.1)."""
    max_buckets: int = 32
    """Shapes of batches at most, each of which is compiled, where they are `bucketed`."""
    inspection: Literal["stop", "warn", "off"] = "stop"
    """What happens before training where its text looks meaningless, such as with shifted lines:
    `stop`, or `warn` and go on; `off` does not look."""
    prefetch_batches: int = 8
    """Batches that background threads keep ready."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.source_language != "", "source_language", "a language code such as en")
        check(self, self.target_language != "", "target_language", "a language code such as de")
        check(self, len(self.train) > 0, "train", "at least one name")
        once = len({source._replace(weight=1) for source in self.sources("train")})
        check(self, once == len(self.train), "train", "each name once, with a weight if need be")
        for split in ("train", "dev"):
            named = all(source.name for source in self.sources(split))
            check(self, named, split, "no empty name")
        valid = all(0 < source.weight < 1_000 for source in self.sources("train"))
        check(self, valid, "train", "names with weights above 0 and below 1000")
        for split in ("dev", "test"):
            without = all(source.weight == 1 for source in self.sources(split))
            check(self, without, split, "without a weight")
        named = not any(map(_is_split, self.all_sources()))
        check(self, named, "tfds_name", "a data set such as wmt14_translate/de-en")
        check(self, 2 <= self.max_length < 2**14, "max_length", "from 2 to 16383")
        check_least(self, 1, "max_length_ratio", "max_buckets", "prefetch_batches")
        row = f"at least one row of data.max_length = {self.max_length} tokens"
        check(self, self.tokens_per_update >= self.max_length, "tokens_per_update", row)

    def sources(self, split: str) -> list[Source]:
        """What `train`, `dev` or `test` names."""
        names = {"train": self.train, "dev": (self.dev,), "test": (self.test,) * bool(self.test)}
        sources = [Source.parse(name, self.corpus) for name in names[split]]
        if self.tfds_name:
            # Of the data set that has its own option only the split is named.
            sources = [
                one._replace(name=f"{self.tfds_name}:{one.name}") if _is_split(one) else one
                for one in sources
            ]
        return sources

    def all_sources(self) -> list[Source]:
        """Those of all three."""
        return [one for split in ("train", "dev", "test") for one in self.sources(split)]


def _is_split(source: Source) -> bool:
    return source.kind == "tfds" and ":" not in source.name.partition("[")[0]


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
