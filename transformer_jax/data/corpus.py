"""Sentence pairs → those to keep, as tokens on disk, with a report of what was left out.

A token store is named after what it is made of, so runs share it and none is made twice. It is read
memory-mapped: a corpus need not fit into memory, and processes on a machine share one copy.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Pair, Pairs
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError

_FORMAT = 2
_CHUNK_PAIRS = 10_000
_WARNING_SHARE = 0.05

_REASONS = ("empty side", "source too long", "target too long", "length ratio")


@dataclass(frozen=True)
class FilterReport:
    """What became of the pairs of a source, or of all: read = kept + the sum of dropped."""

    read: int
    kept: int
    dropped: dict[str, int]
    """Pairs by the first reason that held: `empty side`, `source too long`, `target too long`,
    `length ratio`."""

    def __add__(self, other: "FilterReport") -> "FilterReport":
        dropped = {why: count + other.dropped[why] for why, count in self.dropped.items()}
        return FilterReport(self.read + other.read, self.kept + other.kept, dropped)

    def lines(self) -> list[str]:
        """The report to print, one string a line."""

        def counted(count: int) -> str:
            return f"{count} ({100 * count / max(self.read, 1):.1f} %)"

        lines = [f"read {self.read} pairs", f"kept {counted(self.kept)}"]
        lines += [
            f"dropped {counted(count)}: {why}" for why, count in self.dropped.items() if count
        ]
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
        reports: the name and the `FilterReport` of every source.
        report: their sum.
        starts: int64[sources + 1]; source i has the pairs starts[i]:starts[i + 1].
    """

    def __init__(self, directory: Path) -> None:
        """Raises UserError for a directory that does not hold a whole store."""
        self.directory = directory
        try:
            meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
            if meta["format"] != _FORMAT:
                raise ValueError("another version of this program wrote it")
            self.fingerprint: str = meta["fingerprint"]
            self.reports = [(name, FilterReport(**report)) for name, report in meta["sources"]]
            self.report = _total(report for _, report in self.reports)
            kept = [report.kept for _, report in self.reports]
            self.starts = np.append(0, np.cumsum(kept))
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


def load_or_build(
    folder: Path, sources: Sequence[Pairs], tokenizers: Tokenizers, config: DataConfig
) -> TokenStore:
    """The store of some sources in `folder`, built where it is missing; see `build_store`."""
    content = [_FORMAT, tokenizers.fingerprint, *_filter_settings(config)]
    content += [source.digest for source in sources]
    directory = folder / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    if not directory.exists():
        build_store(directory, [(one.name, one.read()) for one in sources], tokenizers, config)
    return TokenStore(directory)


def build_store(
    directory: Path,
    sources: Iterable[tuple[str, Iterable[Pair]]],
    tokenizers: Tokenizers,
    config: DataConfig,
) -> TokenStore:
    """Encodes the pairs of sources, given by name, into a token store at `directory`.

    The store appears whole or not at all, and memory does not grow with the tokens. Pairs
    with a blank side, with a side of more than `config.max_length` tokens, or with one side more
    than `config.max_length_ratio` times as long as the other are dropped and counted; lengths count
    the end mark. Where another process was faster, its store stays.

    Raises UserError when no pair is read or kept, and when the disk cannot be written.
    """
    settings = [_FORMAT, tokenizers.fingerprint, _filter_settings(config)]
    content = hashlib.sha256(json.dumps(settings).encode())
    dtype = np.dtype(np.uint16 if tokenizers.vocab_size <= 2**16 else np.uint32)
    reports = []
    with _staging(directory) as staging:
        with (
            _SideWriter(staging, "source", dtype) as source_writer,
            _SideWriter(staging, "target", dtype) as target_writer,
        ):
            for name, pairs in sources:
                dropped, read = dict.fromkeys(_REASONS, 0), 0
                iterator = iter(pairs)
                while chunk := list(islice(iterator, _CHUNK_PAIRS)):
                    read += len(chunk)
                    rows = _filter(_encode(chunk, tokenizers), config, dropped)
                    source_writer.write([row.source_ids for row in rows])
                    target_writer.write([row.target_ids for row in rows])
                    for row in rows:
                        content.update(f"{row.source}\n{row.target}\n".encode())
                content.update(b"\0")
                reports.append((name, FilterReport(read, read - sum(dropped.values()), dropped)))
        _check_not_empty(reports)
        meta = {
            "format": _FORMAT,
            "dtype": dtype.name,
            "fingerprint": content.hexdigest(),
            "sources": [(name, asdict(report)) for name, report in reports],
        }
        (staging / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return TokenStore(directory)


def _filter_settings(config: DataConfig) -> list[float]:
    return [config.max_length, config.max_length_ratio]


def _total(reports: Iterable[FilterReport]) -> FilterReport:
    return sum(reports, start=FilterReport(0, 0, dict.fromkeys(_REASONS, 0)))


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


def _check_not_empty(reports: list[tuple[str, FilterReport]]) -> None:
    """Each source must have something to give: one that has not is a mistake."""
    if not reports:
        raise UserError("the corpus is empty: no source of pairs was given")
    for name, report in reports:
        if report.read == 0:
            raise UserError(f"the corpus is empty: no pair was read from {name}")
        if report.kept == 0:
            reasons = ", ".join(f"{count} {why}" for why, count in report.dropped.items() if count)
            raise UserError(
                f"all {report.read} pairs read from {name} were dropped ({reasons}): "
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
    staging = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.tmp")
    try:
        staging.mkdir(parents=True)
        yield staging
        with suppress(FileExistsError):  # another process has made the same
            _rename(staging, directory)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _rename(staging: Path, directory: Path) -> None:
    """Raises FileExistsError where the directory is there, and holds something."""
    try:
        staging.rename(directory)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError from None
        raise
