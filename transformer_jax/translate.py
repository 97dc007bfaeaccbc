"""Sentences → batches of few static shapes, sorted by length → beam search → sentences."""

from collections.abc import Callable, Iterator, Sequence
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
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decode import Hypotheses, SpecialIds, beam_search
from transformer_jax.model.transformer import Transformer, empty_cache


class Translation(NamedTuple):
    """The best hypothesis of a sentence."""

    text: str
    score: float
    """Log-probability in nats, divided by the length penalty; 0 for a blank line."""
    finished: bool
    """False where the hypothesis was cut at the longest length allowed."""


class Translator:
    """A model that translates text, compiled once for every shape of batch."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: DecodeConfig, mesh: Mesh):
        self._tokenizer = tokenizer
        self._config = config
        self._sharding = sharding.batch_sharding(mesh)
        self._num_shards = sharding.num_batch_shards(mesh)
        special = SpecialIds(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
        self._search = jax.jit(partial(search, model, config, special))

    def translate(
        self,
        params: Params,
        sentences: Sequence[str],
        check: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """One translation a sentence, in the order given; a blank sentence gives a blank one.

        Before every batch `check` is told how many sentences are done; it may raise.
        """
        lines = [clean_line(sentence) for sentence in sentences]
        translations = [Translation("", 0.0, True)] * len(lines)
        filled = [i for i, line in enumerate(lines) if line.strip()]
        encoded = self._tokenizer.encode([lines[i] for i in filled])
        sources = {
            i: [*ids, self._tokenizer.eos_id] for i, ids in zip(filled, encoded, strict=True)
        }
        done = len(lines) - len(filled)
        for numbers, rows, length in self._batches(sources):
            check(done)
            batch = [sources[i] for i in numbers]
            hypotheses = self._run(params, batch, rows, length)
            texts = self._tokenizer.decode(hypotheses.tokens[: len(batch), 0].tolist())
            for row, (number, text) in enumerate(zip(numbers, texts, strict=True)):
                score, finished = hypotheses.scores[row, 0], hypotheses.finished[row, 0]
                translations[number] = Translation(text, float(score), bool(finished))
            done += len(batch)
        check(done)
        return translations

    def _batches(self, sources: dict[int, list[int]]) -> Iterator[tuple[list[int], int, int]]:
        """Sentences of like length, as (their numbers, rows of the batch, tokens of a row)."""
        by_length: dict[int, list[int]] = {}
        for number in sorted(sources, key=lambda i: len(sources[i])):
            by_length.setdefault(_padded_length(len(sources[number])), []).append(number)
        for length, numbers in by_length.items():
            rows = max(self._config.tokens_per_batch // length, 1)
            rows = min(rows, 2 ** (len(numbers) - 1).bit_length())
            rows = -(-rows // self._num_shards) * self._num_shards
            for start in range(0, len(numbers), rows):
                yield numbers[start : start + rows], rows, length

    def _run(self, params: Params, batch: list[list[int]], rows: int, length: int) -> Hypotheses:
        inputs = np.zeros((rows, length), np.int32)
        segments = np.zeros((rows, length), np.int32)
        limits = np.zeros((rows, 1), np.int32)
        for row, source in enumerate(batch):
            inputs[row, : len(source)] = source
            segments[row, : len(source)] = 1
            limits[row] = len(source) + self._config.max_extra_length
        arrays = jax.device_put((inputs, segments, limits), self._sharding)
        return jax.device_get(self._search(params, *arrays))


def search(
    model: Transformer,
    config: DecodeConfig,
    special: SpecialIds,
    params: Params,
    inputs: Sources,
    segments: Sources,
    limits: Int[Array, "batch 1"],
) -> Hypotheses:
    """Encodes sentences, one a row, and searches for their translations (section 6.1).

    Segments are 1 for tokens and 0 for padding; limits are those of `decode.beam_search`.
    """
    variables = {"params": params}
    memory = model.apply(variables, inputs, segments, method="remember")

    def step(tokens, index, cache):
        return model.apply(variables, tokens, index, memory, cache, method="decode_step")

    batch, length = inputs.shape
    max_length = length + config.max_extra_length
    return beam_search(
        step,
        empty_cache(model.config, batch, config.beam_size, max_length),
        limits[:, 0],
        beam_size=config.beam_size,
        alpha=config.length_penalty,
        max_length=max_length,
        special=special,
    )


def _padded_length(length: int) -> int:
    """The next power of two from 16 on: few shapes to compile, for sentences of any length."""
    return max(16, 2 ** (length - 1).bit_length())
