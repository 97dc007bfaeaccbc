"""From the sources of a corpus to sentence pairs, a report of the filter, and a token store.

The token store keeps the pairs on disk as ids. It is read memory-mapped, so a corpus need not fit
into memory, and several processes on a machine share one copy.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.text import clean_line, find_file, read_pairs
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError

_FORMAT = 1
_CHUNK_PAIRS = 10_000
_WARNING_SHARE = 0.05

_REASONS = ("empty side", "source too long", "target too long", "length ratio")

Pair = tuple[str, str]


def read_split(config: DataConfig, split: Literal["train", "dev", "test"]) -> Iterator[Pair]:
    """The (source, target) sentences of a split, in the order of the files.

    All files are looked for and their lines counted in this call, before the first pair is asked
    for. Raises UserError as `text.find_file`, `text.read_pairs` and `tfds_source.read_tfds` do.
    """
    if config.corpus == "cldr":
        from transformer_jax.data.cldr import build_corpus

        pairs = build_corpus(config.source_language, config.target_language)[split]
        return ((clean_line(source), clean_line(target)) for source, target in pairs)
    names = {"train": config.train, "dev": (config.dev,), "test": (config.test,)}[split]
    if config.corpus == "tfds":
        from transformer_jax.data.tfds_source import read_tfds

        return read_tfds(config, names)
    if not config.directory:
        raise UserError("data.directory is empty: give the folder of the text, --data.directory")
    files = [
        read_pairs(
            find_file(config.directory, name, config.source_language),
            find_file(config.directory, name, config.target_language),
        )
        for name in names
    ]
    return chain.from_iterable(files)


@dataclass(frozen=True)
class FilterReport:
    """What became of the pairs of a corpus: read = kept + the sum of dropped."""

    read: int
    kept: int
    dropped: dict[str, int]
    """Pairs by the first reason that held: `empty side`, `source too long`, `target too long`,
    `length ratio`."""

    def lines(self) -> list[str]:
        """The report to print, one string a line."""

        def counted(count: int) -> str:
            return f"{count} ({100 * count / max(self.read, 1):.1f} %)"

        lines = [f"read {self.read} pairs", f"kept {counted(self.kept)}"]
        lines += [f"dropped {counted(count)}: {why}" for why, count in self.dropped.items()]
        if self.read - self.kept > _WARNING_SHARE * self.read:
            lines.append(
                f"WARNING: {counted(self.read - self.kept)} pairs were dropped; data.max_length "
                "and data.max_length_ratio count tokens, each sentence with its end mark"
            )
        return lines


class TokenStore:
    """Sentence pairs as ids, memory-mapped from a directory that `build_store` wrote.

    Sentence i of the source side is `source_tokens[source_offsets[i] : source_offsets[i + 1]]`, and
    likewise for the target; the end mark is the last token of each.

    Attributes:
        source_tokens, target_tokens: uint16 or uint32[tokens], all sentences of a side.
        source_offsets, target_offsets: int64[pairs + 1].
        fingerprint: SHA-256, in hexadecimal, of the kept pairs, the filter and the tokenizer.
        report: the `FilterReport` of the build.
    """

    def __init__(self, directory: Path) -> None:
        """Raises UserError for a directory that does not hold a whole store."""
        try:
            meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
            if meta["format"] != _FORMAT:
                raise ValueError("another version of this program wrote it")
            self.fingerprint: str = meta["fingerprint"]
            self.report = FilterReport(**meta["report"])
            pairs = self.report.kept
            self.source_offsets = _mapped(directory / "source_offsets", np.int64, pairs + 1)
            self.target_offsets = _mapped(directory / "target_offsets", np.int64, pairs + 1)
            dtype = np.dtype(meta["dtype"])
            self.source_tokens = _mapped(
                directory / "source_tokens", dtype, int(self.source_offsets[-1])
            )
            self.target_tokens = _mapped(
                directory / "target_tokens", dtype, int(self.target_offsets[-1])
            )
        except OSError as error:
            message = f"{directory}: not a token store ({error.strerror or error}); build it again"
            raise UserError(message) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{directory}: a broken token store ({error}); delete it") from None

    def __len__(self) -> int:
        return self.report.kept

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """int32[pairs]: tokens of each source, its end mark included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """int32[pairs]: tokens of each target, its end mark included."""
        return np.diff(self.target_offsets).astype(np.int32)

    def source(self, index: int) -> np.ndarray:
        """The ids of source `index`, its end mark included. Raises IndexError."""
        return _slice(self.source_tokens, self.source_offsets, index)

    def target(self, index: int) -> np.ndarray:
        """The ids of target `index`, its end mark included. Raises IndexError."""
        return _slice(self.target_tokens, self.target_offsets, index)


def _mapped(path: Path, dtype: np.typing.DTypeLike, size: int) -> np.ndarray:
    array = np.memmap(path, dtype=dtype, mode="r")
    if array.size != size:
        raise ValueError(f"{path.name} holds {array.size} values, not {size}")
    return array


def _slice(tokens: np.ndarray, offsets: np.ndarray, index: int) -> np.ndarray:
    if not 0 <= index < len(offsets) - 1:
        raise IndexError(f"pair {index} of {len(offsets) - 1}")
    return tokens[offsets[index] : offsets[index + 1]]


def build_store(
    directory: Path,
    pairs: Iterable[Pair],
    tokenizers: Tokenizers,
    config: DataConfig,
    same_as: str | None = None,
) -> TokenStore:
    """Encodes pairs into a token store at `directory`, replacing the one that is there.

    The store appears whole or not at all, and memory does not grow with the tokens. Pairs
    with a blank side, with a side of more than `config.max_length` tokens, or with one side more
    than `config.max_length_ratio` times as long as the other are dropped and counted; lengths count
    the end mark. Processes that share the directory must not build it at
    the same time.

    Raises UserError when no pair is read or kept, when the store would not have the fingerprint
    `same_as`, and when the disk cannot be written; what was there then stays.
    """
    settings = [config.max_length, config.max_length_ratio]
    content = hashlib.sha256(json.dumps([_FORMAT, tokenizers.fingerprint, settings]).encode())
    dtype = np.dtype(np.uint16 if tokenizers.vocab_size <= 2**16 else np.uint32)
    dropped = dict.fromkeys(_REASONS, 0)
    read = 0
    iterator = iter(pairs)
    with _staging(directory) as staging:
        with (
            _SideWriter(staging, "source", dtype) as sources,
            _SideWriter(staging, "target", dtype) as targets,
        ):
            while chunk := list(islice(iterator, _CHUNK_PAIRS)):
                read += len(chunk)
                rows = _filter(_encode(chunk, tokenizers), config, dropped)
                sources.write([row.source_ids for row in rows])
                targets.write([row.target_ids for row in rows])
                for row in rows:
                    content.update(f"{row.source}\n{row.target}\n".encode())
        report = FilterReport(read, read - sum(dropped.values()), dropped)
        _check_not_empty(directory, report)
        fingerprint = content.hexdigest()
        if same_as not in (None, fingerprint):
            raise UserError(
                f"{directory}: the corpus or the tokenizer is not the one that this run was "
                "begun with; restore it, or give another --run-directory"
            )
        meta = {
            "format": _FORMAT,
            "dtype": dtype.name,
            "fingerprint": fingerprint,
            "report": asdict(report),
        }
        (staging / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return TokenStore(directory)


class _Row(NamedTuple):
    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]


def _encode(pairs: list[Pair], tokenizers: Tokenizers) -> list[_Row]:
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    ids = (
        [[*sentence, tokenizer.eos_id] for sentence in tokenizer.encode(side)]
        for tokenizer, side in ((tokenizers.source, sources), (tokenizers.target, targets))
    )
    return [_Row(*row) for row in zip(sources, targets, *ids, strict=True)]


def _filter(rows: list[_Row], config: DataConfig, dropped: dict[str, int]) -> list[_Row]:
    """The rows to keep; counts the others in `dropped`."""
    kept = []
    for row in rows:
        reason = _drop_reason(row, config)
        if reason is None:
            kept.append(row)
        else:
            dropped[reason] += 1
    return kept


def _drop_reason(row: _Row, config: DataConfig) -> str | None:
    source_length, target_length = len(row.source_ids), len(row.target_ids)
    if not row.source.strip() or not row.target.strip():
        return "empty side"
    if source_length > config.max_length:
        return "source too long"
    if target_length > config.max_length:
        return "target too long"
    shorter, longer = sorted((source_length, target_length))
    if longer > config.max_length_ratio * shorter:
        return "length ratio"
    return None


def _check_not_empty(directory: Path, report: FilterReport) -> None:
    if report.read == 0:
        raise UserError(f"the corpus is empty: no pair was read for {directory}")
    if report.kept == 0:
        reasons = ", ".join(f"{count} {why}" for why, count in report.dropped.items() if count)
        raise UserError(
            f"all {report.read} pairs read for {directory} were dropped ({reasons}): "
            "raise data.max_length or data.max_length_ratio, or check the files"
        )


class _SideWriter:
    """Appends the sentences of one side to its two files."""

    def __init__(self, directory: Path, side: str, dtype: np.dtype) -> None:
        self._tokens = open(directory / f"{side}_tokens", "wb")
        self._offsets = open(directory / f"{side}_offsets", "wb")
        self._dtype = dtype
        self._end = 0
        self._offsets.write(np.int64(0).tobytes())

    def write(self, sentences: list[list[int]]) -> None:
        tokens = np.fromiter(chain.from_iterable(sentences), self._dtype)
        lengths = np.fromiter(map(len, sentences), np.int64)
        offsets = self._end + np.cumsum(lengths)
        self._tokens.write(tokens.tobytes())
        self._offsets.write(offsets.tobytes())
        self._end += len(tokens)

    def __enter__(self) -> "_SideWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._tokens.close()
        self._offsets.close()


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A new directory that becomes `directory` when the block ends without an exception."""
    directory = Path(os.path.realpath(directory))
    suffix = secrets.token_hex(4)
    staging = directory.with_name(f".{directory.name}.{suffix}.tmp")
    replaced = directory.with_name(f".{directory.name}.{suffix}.old")
    try:
        if directory.exists() and not (directory / "meta.json").exists():
            raise UserError(f"{directory}: exists but is no token store, so it is not replaced")
        staging.mkdir(parents=True)
        yield staging
        # A directory cannot be renamed over a full one; a kill between the two leaves none.
        if directory.exists():
            directory.rename(replaced)
        staging.rename(directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
