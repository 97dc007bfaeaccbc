"""Sentence pairs as tokens on disk, read memory-mapped: a corpus need not fit into memory, and
processes on a machine share one copy.
"""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from transformer_jax.errors import UserError

FORMAT = 2
"""Stores of other versions of this program have other numbers."""

_WARNING_SHARE = 0.05

REASONS = ("empty side", "source too long", "target too long", "length ratio")


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
    """Sentence pairs as ids, memory-mapped from a directory that `write_store` wrote.

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
            if meta["format"] != FORMAT:
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
            message = f"{directory}: not a token store ({error.strerror or error}); delete it"
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


def _total(reports: Iterable[FilterReport]) -> FilterReport:
    return sum(reports, start=FilterReport(0, 0, dict.fromkeys(REASONS, 0)))


class StoreWriter:
    """What `write_store` gives: takes pairs, and at the end what is said of them."""

    def __init__(self, directory: Path, dtype: np.dtype) -> None:
        self._directory, self._dtype = directory, dtype
        self._sides = [_SideWriter(directory, side, dtype) for side in ("source", "target")]

    def write(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Appends pairs, each sentence with its end mark."""
        for writer, sentences in zip(self._sides, (sources, targets), strict=True):
            writer.write(sentences)

    def finish(self, fingerprint: str, reports: Sequence[tuple[str, FilterReport]]) -> None:
        """Closes the files; see `TokenStore`'s attributes."""
        self.close()
        meta = {
            "format": FORMAT,
            "dtype": self._dtype.name,
            "fingerprint": fingerprint,
            "sources": [(name, asdict(report)) for name, report in reports],
        }
        text = json.dumps(meta, indent=2) + "\n"
        (self._directory / "meta.json").write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Closes the files."""
        for writer in self._sides:
            writer.close()


@contextmanager
def write_store(directory: Path, vocab_size: int) -> Iterator[StoreWriter]:
    """A new token store, which appears at `directory` when the block ends without an exception.

    Where another process was faster, its store stays. Raises UserError where the disk cannot be
    written.
    """
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    with _staging(directory) as staging:
        writer = StoreWriter(staging, dtype)
        try:
            yield writer
        finally:
            writer.close()


class _SideWriter:
    """Appends the sentences of one side to its two files."""

    def __init__(self, directory: Path, side: str, dtype: np.dtype) -> None:
        self._tokens = open(directory / f"{side}_tokens", "wb")
        self._offsets = open(directory / f"{side}_offsets", "wb")
        self._dtype = dtype
        self._end = 0
        self._offsets.write(np.int64(0).tobytes())

    def write(self, sentences: Sequence[Sequence[int]]) -> None:
        tokens = np.fromiter(chain.from_iterable(sentences), self._dtype)
        lengths = np.fromiter(map(len, sentences), np.int64)
        offsets = self._end + np.cumsum(lengths)
        self._tokens.write(tokens.tobytes())
        self._offsets.write(offsets.tobytes())
        self._end += len(tokens)

    def close(self) -> None:
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
