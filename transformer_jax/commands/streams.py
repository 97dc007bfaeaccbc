"""Lines in and lines out, a block at a time, so that files of any size take bounded memory."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from pathlib import Path

from transformer_jax import distributed
from transformer_jax.commands.shared import shows_progress
from transformer_jax.config import DistributedConfig
from transformer_jax.data.text import (
    fingerprint,
    read_lines,
    read_stream,
    scan,
    write_lines,
    write_stream,
)
from transformer_jax.errors import UserError

STANDARD = "-"
"""The path that means standard input or output."""


def check_inputs(paths: Sequence[str], config: DistributedConfig) -> int | None:
    """The number of lines of every file, where somebody needs it and all can be counted first.

    Raises UserError for unequal numbers, for standard input asked for twice, or by several
    processes.
    """
    if paths.count(STANDARD) > 1:
        raise UserError("standard input can be read once only: give a file for the other")
    if config.enabled and STANDARD in paths:
        raise UserError("of several processes each must read the text: give files, not -")
    if len(paths) == 1 and not shows_progress():
        return None
    files = [Path(path).expanduser() for path in paths if path != STANDARD]
    counts = {file: scan(file).lines for file in files if file.is_file()}
    for file, count in counts.items():
        first = next(iter(counts))
        if count != counts[first]:
            raise UserError(
                f"{first} has {counts[first]} lines but {file} has {count}: "
                "line i of one must belong to line i of the other"
            )
    return next(iter(counts.values())) if len(counts) == len(paths) else None


def read_blocks(paths: Sequence[str], size: int) -> Iterator[list[tuple[str, ...]]]:
    """Line i of every file together, at most `size` of them at a time; `-` is standard input.

    In every process, which agree on the text. Raises UserError where a file cannot be read, or
    ends before the others.
    """
    rows = zip_longest(*map(_lines, paths))

    def read() -> list[tuple[str, ...]]:
        block = list(islice(rows, size))
        for row in block:
            if None in row:
                ended = row.index(None)
                others = ", ".join(_name(path) for path in paths if path != paths[ended])
                raise UserError(f"{_name(paths[ended])} ends before {others} does")
        return block

    while block := distributed.everywhere(read):
        facts = fingerprint(chain.from_iterable(block))
        distributed.check_agreement({"the text": facts})
        yield block


def _lines(path: str) -> Iterator[str]:
    if path == STANDARD:
        return read_stream(sys.stdin.buffer, _name(path))
    return read_lines(Path(path).expanduser())


def _name(path: str) -> str:
    return "standard input" if path == STANDARD else path


def started(blocks: Iterator) -> Iterator:
    """The same blocks, the first of which is read at once: its mistakes come before other work."""
    first = list(islice(blocks, 1))
    return chain(first, blocks)


def write_blocks(path: str, blocks: Iterable[Sequence[str]]) -> None:
    """Writes lines as their blocks come, in the first process; the others only make them.

    A file is written whole or not at all; on standard output, which `-` is, blocks are flushed
    and end with a whole line even where Ctrl-C comes.
    """
    if not distributed.is_first():
        for _ in blocks:
            pass
    elif path == STANDARD:
        for lines in blocks:
            with _interrupts_waiting():
                write_stream(sys.stdout.buffer, lines)
    else:
        write_lines(Path(path).expanduser(), chain.from_iterable(blocks))


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """A first Ctrl-C waits for the end of the block; a second does not."""
    waiting = []

    def wait(number: int, frame: object) -> None:
        if waiting:
            raise KeyboardInterrupt
        waiting.append(number)

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt
