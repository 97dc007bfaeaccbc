"""Where sentence pairs come from: `config_data.Source` → pairs, counted before one is read."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from transformer_jax.config_data import DataConfig, Source
from transformer_jax.data.text import (
    SUFFIXES,
    Scan,
    clean_line,
    find_file,
    fingerprint,
    read_lines,
    read_rows,
    scan,
    scan_pairs,
)
from transformer_jax.errors import UserError

Pair = tuple[str, str]
Given = Mapping[str, Iterable[Pair]]
"""Pairs that Python gives, by the name in `given:NAME`."""

_COLUMNS = (1, 2)


class Pairs(NamedTuple):
    """A source that was found."""

    name: str
    weight: float
    count: int
    digest: str
    """Of its text, without this project's cleaning, or of what names it for ever."""
    read: Callable[[], Iterator[Pair]]
    """The cleaned (source, target) sentences, from the first one in every call."""
    broken: int = 0
    """Lines of its files that hold more than one by other rules; see `text.Scan`."""


def open_sources(
    config: DataConfig, split: Literal["train", "dev", "test"], given: Given | None = None
) -> list[Pairs]:
    """The sources of a split, in their order.

    All are looked for, and their lines counted, in this call. Raises UserError for one that is not
    there, and as `text.scan_pairs`, `tfds_source.open_tfds` and `multi30k.fetch` do; their `read`
    raises it as `text.read_lines` does.
    """
    return [
        _tagged(_open(config, source, given or {}), source.tag) for source in config.sources(split)
    ]


def read_split(
    config: DataConfig, split: Literal["train", "dev", "test"], given: Given | None = None
) -> Iterator[Pair]:
    """The pairs of all sources of a split, one after the other; raises as `open_sources` does."""
    sources = open_sources(config, split, given)
    return chain.from_iterable(source.read() for source in sources)


def _open(config: DataConfig, source: Source, given: Given) -> Pairs:
    languages = config.source_language, config.target_language
    match source.kind:
        case "files":
            return _files(source, _find_files(config, source.name))
        case "folder":
            return _files(source, [_find_in_folder(source.name, languages)])
        case "tsv":
            return _tsv(source)
        case "multi30k":
            from transformer_jax.data.multi30k import fetch

            # Of a corpus of files the directory is theirs.
            directory = config.directory if config.corpus == "multi30k" else ""
            return _files(source, [fetch(directory, source.name, languages)])
        case "tfds":
            from transformer_jax.data.tfds_source import open_tfds

            name, split = split_of(source.name)
            directory = config.directory if config.corpus == "tfds" else ""
            count, digest, read = open_tfds(name, split, directory, languages)
            return Pairs(source.name, source.weight, count, digest, read)
        case "cldr":
            corpus = _built_in(*languages)
            if source.name not in corpus:
                known = ", ".join(corpus)
                raise UserError(f"cldr:{source.name}: the built-in corpus has {known}")
            return _in_memory(source, corpus[source.name])
    return _in_memory(source, _given(source.name, given))


@cache
def _built_in(source_language: str, target_language: str) -> dict[str, list[Pair]]:
    """All its splits, made once: that takes most of a second."""
    from transformer_jax.data.cldr import build_corpus

    return build_corpus(source_language, target_language)


def _tagged(pairs: Pairs, tag: str) -> Pairs:
    if not tag:
        return pairs

    def read() -> Iterator[Pair]:
        return ((f"{tag} {source}", target) for source, target in pairs.read())

    return pairs._replace(digest=f"{pairs.digest} {tag}", read=read)


def split_of(name: str) -> tuple[str, str]:
    """The data set and the split of `wmt14_translate/de-en:train[:100]`."""
    before, bracket, slice_ = name.partition("[")
    data_set, _, split = before.rpartition(":")
    return data_set, split + bracket + slice_


def _files(source: Source, paths: list[tuple[Path, Path]]) -> Pairs:
    scans = [scan_pairs(*pair) for pair in paths]

    def read() -> Iterator[Pair]:
        for source_path, target_path in paths:
            try:
                yield from zip(read_lines(source_path), read_lines(target_path), strict=True)
            except ValueError:
                raise UserError(
                    f"{source_path} and {target_path} have been changed since they were counted"
                ) from None

    return _scanned(source, scans, read)


def _scanned(source: Source, scans: list[Scan], read: Callable[[], Iterator[Pair]]) -> Pairs:
    count, digest = sum(one.lines for one in scans), " ".join(one.digest for one in scans)
    broken = sum(one.broken for one in scans)
    return Pairs(source.name, source.weight, count, digest, read, broken)


def _find_files(config: DataConfig, name: str) -> list[tuple[Path, Path]]:
    if not config.directory and not os.path.isabs(os.path.expanduser(name)):
        raise UserError("data.directory is empty: give the folder of the text, --data.directory")
    languages = config.source_language, config.target_language
    names = _matching(config.directory, name, languages) if "*" in name else [name]
    return [tuple(find_file(config.directory, one, to) for to in languages) for one in names]


def _matching(directory: str, pattern: str, languages: tuple[str, str]) -> list[str]:
    """The names, without language, of the files of either language that a pattern stands for."""
    start = os.path.join(os.path.expanduser(directory), os.path.expanduser(pattern))
    endings = [f".{language}{suffix}" for language in languages for suffix in SUFFIXES]
    names = {
        path.removesuffix(ending) for ending in endings for path in glob.glob(f"{start}{ending}")
    }
    if not names:
        raise UserError(f"{start}.{languages[0]}: no such file, nor with .gz or .xz after it")
    return sorted(names)


def _find_in_folder(name: str, languages: tuple[str, str]) -> tuple[Path, Path]:
    directory, colon, split = name.rpartition(":")
    if not colon:
        raise UserError(f"folder:{name}: name the split, too, as in folder:{name}:train")
    source, target = (find_file(directory, language, f"{split}.txt") for language in languages)
    return source, target


def _tsv(source: Source) -> Pairs:
    path, columns = _tsv_columns(source.name)
    needed = max(columns)

    def read() -> Iterator[Pair]:
        for number, fields in enumerate(read_rows(path), start=1):
            if len(fields) < needed or (columns == _COLUMNS and len(fields) > 2):
                raise UserError(
                    f"{path}, line {number}: {len(fields)} fields between tabs, not "
                    f"{'2' if columns == _COLUMNS else f'{needed} or more'}; tsv:FILE:2,1 names "
                    "the columns of source and target"
                )
            yield fields[columns[0] - 1], fields[columns[1] - 1]

    found = scan(path)
    return _scanned(source, [found._replace(digest=f"{found.digest} {columns}")], read)


def _tsv_columns(name: str) -> tuple[Path, tuple[int, int]]:
    path, _, given = name.rpartition(":")
    numbers = given.split(",")
    if not path or not all(number.isdecimal() for number in numbers):
        return Path(name).expanduser(), _COLUMNS
    if len(numbers) != 2 or "0" in numbers:
        raise UserError(f"tsv:{name}: give the columns of source and target, as in tsv:FILE:2,1")
    return Path(path).expanduser(), (int(numbers[0]), int(numbers[1]))


def _given(name: str, given: Given) -> Iterable[Pair]:
    if name not in given:
        known = ", ".join(given) or "none"
        raise UserError(f"given:{name}: Python must give these pairs by name; it gave {known}")
    if iter(given[name]) is given[name]:
        raise UserError(f"given:{name}: it can be read only once; give a list")
    return given[name]


def _in_memory(source: Source, pairs: Iterable[Pair]) -> Pairs:
    def read() -> Iterator[Pair]:
        for number, pair in enumerate(pairs, start=1):
            if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise UserError(f"{source.name}, pair {number}: not a pair of texts: {pair!r}")
            yield clean_line(pair[0]), clean_line(pair[1])

    count = sum(1 for _ in read())
    digest = fingerprint(chain.from_iterable(read()))
    return Pairs(source.name, source.weight, count, digest, read)
