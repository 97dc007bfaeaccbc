"""The one reader and the one writer of sentence files.

The rule for a line, the same for every file of every command: the bytes are strict UTF-8; LF alone
ends a line, and a file without a final LF has as many lines as one with it; one CR before the LF
and a byte order mark at the start of any line are dropped; every other control character and
Unicode line separator becomes a space; the rest is put into NFC. So lines in are lines out.
"""

import gzip
import hashlib
import io
import lzma
import os
import re
import secrets
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from transformer_jax.errors import UserError

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
# What other programs may take for the end of a line or of the text; tabs are none.
_ASCII_BREAKS = bytes({*range(0x20), 0x7F} - set(b"\t\n"))
_BREAKS = re.compile(b"[%b]|\xc2\x85|\xe2\x80[\xa8\xa9]" % re.escape(_ASCII_BREAKS))
_MAGIC = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\x00"}
SUFFIXES = ("", *_MAGIC)
"""What the name of a file may end with, after its own ending."""

_OTHER_ARCHIVES = {".bz2", ".zst", ".zip", ".7z", ".lz4", ".lzma", ".tar", ".tgz"}
_CHUNK_BYTES = 1 << 20


def clean_line(line: str) -> str:
    """One sentence, by the rule at the top of this module.

    Also takes text that never was a line of a file: a line end is dropped from its end, an LF
    inside becomes a space, and half a surrogate pair, which UTF-8 cannot hold, becomes U+FFFD.
    Cleaning twice changes nothing more.
    """
    line = line.lstrip("\ufeff").removesuffix("\n").removesuffix("\r")
    if line.isascii() and line.isprintable():
        return line
    line = _SURROGATES.sub("\ufffd", _CONTROLS.sub(" ", line))
    return unicodedata.normalize("NFC", line)


def read_lines(path: Path) -> Iterator[str]:
    """The cleaned lines of a plain, gzip or xz file, read as they are asked for.

    Raises UserError for a file that cannot be read, a broken or cut archive, and bytes that are
    not UTF-8, with the number of their line.
    """
    with _open_binary(path) as file:
        yield from read_stream(file, str(path))


def read_stream(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The cleaned lines of an open stream of bytes, such as standard input.

    Raises UserError, naming `name` and the line, for bytes that are not UTF-8.
    """
    return map(clean_line, _decoded(stream, name))


def read_rows(path: Path) -> Iterator[list[str]]:
    """The lines of a file, each split at its tabs and nowhere else: quotes mean nothing.

    The fields are cleaned by the rule at the top of this module; raises UserError as `read_lines`.
    """
    with _open_binary(path) as file:
        for line in _decoded(file, str(path)):
            yield [clean_line(field) for field in line.split("\t")]


def _decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    for number, raw in enumerate(stream, start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not valid UTF-8 (byte 0x{raw[error.start]:02x}): "
                "convert the file to UTF-8"
            ) from None


class Scan(NamedTuple):
    """What a file holds, without decoding it."""

    lines: int
    """How many `read_lines` gives."""
    digest: str
    """SHA-256 of its unpacked bytes, in hexadecimal."""
    broken: int = 0
    """Lines with a lone CR, or another control character or line separator but a tab, inside."""


def scan(path: Path) -> Scan:
    """Counts the lines of a file and hashes it.

    Raises UserError as `read_lines` does, except for what is not UTF-8, and for a pipe, whose
    lines would be gone once counted.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: not a regular file, so its lines cannot be counted first")
    count, broken, last, content = 0, 0, b"\n", hashlib.sha256()
    with _open_binary(path) as file:
        while chunk := file.read(_CHUNK_BYTES) + file.readline():  # whole lines
            count += chunk.count(b"\n")
            broken += _count_broken(chunk)
            last = chunk[-1:]
            content.update(chunk)
    return Scan(count if last == b"\n" else count + 1, content.hexdigest(), broken)


def _count_broken(lines: bytes) -> int:
    lines = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
    # Almost all text has none of them, and is to be told so without a look at every line.
    if lines.translate(None, _ASCII_BREAKS) == lines and not (
        b"\xc2\x85" in lines or b"\xe2\x80\xa8" in lines or b"\xe2\x80\xa9" in lines
    ):
        return 0
    return sum(_BREAKS.search(line) is not None for line in lines.split(b"\n"))


def scan_pairs(source_path: Path, target_path: Path) -> Scan:
    """Their number of lines, and one digest for both. Raises UserError where they differ in it."""
    source, target = scan(source_path), scan(target_path)
    if source.lines != target.lines:
        raise UserError(
            f"{source_path} has {source.lines} lines but {target_path} has {target.lines}: "
            "line i of one must translate line i of the other"
        )
    digest = f"{source.digest} {target.digest}"
    return Scan(source.lines, digest, source.broken + target.broken)


def read_pairs(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    """Line i of the one file with line i of the other.

    The lines are counted in this call, before the first pair is asked for. Raises UserError when
    the counts differ, and as `read_lines` does.
    """
    scan_pairs(source_path, target_path)
    return zip(read_lines(source_path), read_lines(target_path), strict=True)


def find_file(directory: str, name: str, language: str) -> Path:
    """The path of `<directory>/<name>.<language>`, plain, else `.gz`, else `.xz`.

    Raises UserError, naming the files looked for, when none is there.
    """
    plain = os.path.join(os.path.expanduser(directory), f"{name}.{language}")
    for suffix in SUFFIXES:
        if os.path.isfile(plain + suffix):
            return Path(plain + suffix)
    raise UserError(f"{plain}: no such file, nor with .gz or .xz after it; check the data section")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Writes one line per string, whole or not at all, and returns how many.

    Raises UserError when the file cannot be written, and ValueError for a string that holds an LF,
    since it would shift all lines after it.
    """
    count = 0
    with atomic_writer(path) as file:
        for line in lines:
            count += 1
            file.write(_encoded(line, count, path))
    return count


def write_stream(stream: BinaryIO, lines: Iterable[str]) -> None:
    """Writes one line per string to an open stream, such as standard output, and flushes it.

    Raises ValueError as `write_lines` does, before anything is written.
    """
    encoded = [_encoded(line, number, "a stream") for number, line in enumerate(lines, start=1)]
    stream.write(b"".join(encoded))
    stream.flush()


def _encoded(line: str, number: int, name: object) -> bytes:
    if "\n" in line:
        raise ValueError(f"line {number} for {name} holds a line feed: {line!r}")
    return line.encode("utf-8") + b"\n"


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes its place at `path` when the block ends without an exception.

    Raises UserError when the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A pipe or device, such as /dev/stdout, must be written to, never replaced.
            with open(path, "wb") as file:
                yield file
            return
        # The link stays a link: its target is replaced.
        path = Path(os.path.realpath(path))
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _open_binary(path: Path) -> Iterator[io.BufferedIOBase]:
    """The unpacked bytes of `path`, with what goes wrong while they are read as UserError."""
    if path.suffix in _OTHER_ARCHIVES:
        raise UserError(f"{path}: only plain, .gz and .xz files are read; unpack it first")
    try:
        with open(path, "rb") as file, _unpacked(path, file) as unpacked:
            yield unpacked
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path}: a broken or cut archive ({error}); fetch it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _unpacked(path: Path, file: io.BufferedReader) -> io.BufferedIOBase:
    # Neither magic number can begin UTF-8 text, so the content decides and the name is checked.
    start = file.peek(6)
    expected = _MAGIC.get(path.suffix)
    if expected is not None and not start.startswith(expected):
        kind = "gzip" if path.suffix == ".gz" else "xz"
        raise UserError(f"{path}: named {path.suffix}, but not a {kind} file; fetch it again")
    if start.startswith(_MAGIC[".gz"]):
        return gzip.GzipFile(fileobj=file)
    if start.startswith(_MAGIC[".xz"]):
        return lzma.LZMAFile(file)
    return file


def fingerprint(lines: Iterable[str]) -> str:
    """SHA-256 of lines, in hexadecimal."""
    content = hashlib.sha256()
    for line in lines:
        content.update(f"{line}\n".encode())
    return content.hexdigest()
