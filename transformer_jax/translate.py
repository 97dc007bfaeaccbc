"""Sentences → batches of few static shapes, sorted by length → beam search → sentences."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from transformer_jax import sharding
from transformer_jax.array_types import Params, Sources
from transformer_jax.config import DecodeConfig
from transformer_jax.data.text import clean_line
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.decode import SearchResult, SpecialIds, beam_search
from transformer_jax.model.transformer import Transformer, empty_cache, unstack_layers


class Translation(NamedTuple):
    """The best hypothesis of a sentence."""

    text: str
    score: float
    """Log-probability in nats, divided by the length penalty; 0 for a blank line."""
    finished: bool
    """False where the longest length allowed cut off a hypothesis that scored above this one."""
    parts: int = 1
    """Parts that a source longer than `decode.max_source_length` was translated in."""


Part = tuple[int, int]
"""The number of a sentence, and of its part."""


class Translator:
    """A model that translates text, compiled once for every shape of batch."""

    def __init__(
        self, model: Transformer, tokenizers: Tokenizers, config: DecodeConfig, mesh: Mesh
    ):
        self._tokenizers = tokenizers
        self._config = config
        self._longest = model.config.longest
        self._mesh = mesh
        self._num_shards = sharding.num_batch_shards(mesh)
        target = tokenizers.target
        special = SpecialIds(target.pad_id, target.bos_id, target.eos_id, target.unk_id)
        self._search = jax.jit(
            partial(search, model, config, special), out_shardings=sharding.replicated(mesh)
        )

    def translate(
        self,
        params: Params,
        sentences: Sequence[str],
        check: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """One translation a sentence, in the order given; a blank sentence gives a blank one.

        A source of more than `max_source_length` tokens, or of more than the model has positions
        for, is translated in parts of that length.

        Before every batch `check` is told how many sentences are done; it may raise.
        """
        lines = [clean_line(sentence) for sentence in sentences]
        filled = [i for i, line in enumerate(lines) if line.strip()]
        encoded = self._tokenizers.source.encode([lines[i] for i in filled])
        longest = min(self._config.max_source_length, self._longest) - 1  # the end mark counts
        parts = {
            (number, part): [*ids[start : start + longest], self._tokenizers.source.eos_id]
            for number, ids in zip(filled, encoded, strict=True)
            for part, start in enumerate(range(0, len(ids), longest))
        }
        waiting = Counter(number for number, _ in parts)
        done = len(lines) - len(filled)
        translated: dict[Part, Translation] = {}
        for keys, rows, length in self._batches(parts):
            check(done)
            batch = [parts[key] for key in keys]
            result = self._run(params, batch, rows, length)
            texts = self._tokenizers.target.decode(result.tokens[: len(batch), 0].tolist())
            for row, (key, text) in enumerate(zip(keys, texts, strict=True)):
                score, cut = float(result.scores[row, 0]), bool(result.cut[row])
                translated[key] = Translation(text, score, not cut)
                waiting[key[0]] -= 1
                done += waiting[key[0]] == 0
        check(done)
        by_sentence: list[list[Translation]] = [[] for _ in lines]
        for key in sorted(translated):
            by_sentence[key[0]].append(translated[key])
        return [_join(sentence) for sentence in by_sentence]

    def _batches(self, sources: dict[Part, list[int]]) -> Iterator[tuple[list[Part], int, int]]:
        """Sources of like length, as (their keys, rows of the batch, tokens of a row)."""
        by_length: dict[int, list[Part]] = {}
        for key in sorted(sources, key=lambda key: len(sources[key])):
            by_length.setdefault(padded_length(len(sources[key])), []).append(key)
        for length, keys in by_length.items():
            rows = batch_rows(self._config, length, len(keys), self._num_shards)
            for start in range(0, len(keys), rows):
                yield keys[start : start + rows], rows, length

    def _run(self, params: Params, batch: list[list[int]], rows: int, length: int) -> SearchResult:
        inputs = np.zeros((rows, length), np.int32)
        segments = np.zeros((rows, length), np.int32)
        limits = np.zeros((rows, 1), np.int32)
        for row, source in enumerate(batch):
            inputs[row, : len(source)] = source
            segments[row, : len(source)] = 1
            limits[row] = length_limit(self._config, self._longest, len(source))
        arrays = (sharding.spread(array, self._mesh) for array in (inputs, segments, limits))
        with jax.set_mesh(self._mesh):
            return jax.device_get(self._search(params, *arrays))


def search(
    model: Transformer,
    config: DecodeConfig,
    special: SpecialIds,
    params: Params,
    inputs: Sources,
    segments: Sources,
    limits: Int[Array, "batch 1"],
) -> SearchResult:
    """Encodes sentences, one a row, and searches for their translations (section 6.1).

    Segments are 1 for tokens and 0 for padding; limits are those of `decode.beam_search`.
    """
    if model.config.scan_layers:
        model = model.clone(config=replace(model.config, scan_layers=False))
        params = unstack_layers(params)
    variables = {"params": params}
    memory = model.apply(variables, inputs, segments, method="remember")

    def step(tokens, index, cache):
        return model.apply(variables, tokens, index, memory, cache, method="decode_step")

    batch, length = inputs.shape
    max_length = length_limit(config, model.config.longest, length)
    return beam_search(
        step,
        empty_cache(model.config, batch, config.beam_size, max_length),
        limits[:, 0],
        beam_size=config.beam_size,
        alpha=config.length_penalty,
        max_length=max_length,
        special=special,
        min_length=config.min_length,
        num_certain=1,
    )


def _join(parts: list[Translation]) -> Translation:
    """The translation of a sentence from those of its parts; of none, for a blank sentence."""
    return Translation(
        text=" ".join(part.text for part in parts),
        score=sum(part.score for part in parts),
        finished=all(part.finished for part in parts),
        parts=max(len(parts), 1),
    )


def length_limit(config: DecodeConfig, longest: int, source_length: int) -> int:
    """Tokens of the longest translation of a source, `longest` being the model's positions."""
    return min(source_length + config.max_extra_length, longest)


def batch_rows(config: DecodeConfig, length: int, num_sources: int, num_shards: int) -> int:
    """Rows of a batch of sources of `length` tokens, so that devices can divide them."""
    rows = max(config.tokens_per_batch // length, 1)
    rows = min(rows, 2 ** (num_sources - 1).bit_length())
    return -(-rows // num_shards) * num_shards


def padded_length(length: int) -> int:
    """The next power of two from 16 on: few shapes to compile, for sentences of any length."""
    return max(16, 2 ** (length - 1).bit_length())
