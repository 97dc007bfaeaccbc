"""Sentence pairs → those to keep, as tokens on disk, with a report of what was left out.

A token store is named after what it is made of, so runs share it and none is made twice.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Pair, Pairs
from transformer_jax.data.token_store import (
    FORMAT,
    REASONS,
    FilterReport,
    TokenStore,
    write_store,
)
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError

_CHUNK_PAIRS = 10_000


def load_or_build(
    folder: Path, sources: Sequence[Pairs], tokenizers: Tokenizers, config: DataConfig
) -> TokenStore:
    """The store of some sources in `folder`, built where it is missing; see `build_store`."""
    content = [FORMAT, tokenizers.fingerprint, *_filter_settings(config)]
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
    settings = [FORMAT, tokenizers.fingerprint, _filter_settings(config)]
    content = hashlib.sha256(json.dumps(settings).encode())
    reports = []
    with write_store(directory, tokenizers.vocab_size) as writer:
        for name, pairs in sources:
            dropped, read = dict.fromkeys(REASONS, 0), 0
            iterator = iter(pairs)
            while chunk := list(islice(iterator, _CHUNK_PAIRS)):
                read += len(chunk)
                rows = _filter(_encode(chunk, tokenizers), config, dropped)
                writer.write([row.source_ids for row in rows], [row.target_ids for row in rows])
                for row in rows:
                    content.update(f"{row.source}\n{row.target}\n".encode())
            content.update(b"\0")
            reports.append((name, FilterReport(read, read - sum(dropped.values()), dropped)))
        _check_not_empty(reports)
        writer.finish(content.hexdigest(), reports)
    return TokenStore(directory)


def _filter_settings(config: DataConfig) -> list[float]:
    return [config.max_length, config.max_length_ratio]


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
        lengths = len(row.source_ids), len(row.target_ids)
        reason = drop_reason(row.source, row.target, lengths, config)
        if reason is None:
            kept.append(row)
        else:
            dropped[reason] += 1
    return kept


def drop_reason(
    source: str, target: str, lengths: tuple[int, int], config: DataConfig
) -> str | None:
    """Why a pair of so many tokens, end marks included, is not trained on; None where it is."""
    source_length, target_length = lengths
    if not source.strip() or not target.strip():
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
