"""Sentences → batches of few static shapes, sorted by length → beam search → sentences."""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from transformer_jax import sharding
from transformer_jax.array_types import Params, Sources
from transformer_jax.chips import device_memory, program_memory
from transformer_jax.config import DecodeConfig, SamplingConfig
from transformer_jax.data.text import clean_line
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.decode import SearchResult, SpecialIds, average, beam_search
from transformer_jax.decode_loop import Cache, StepFn
from transformer_jax.decode_sampling import sample
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer, empty_cache, unrolled

BEAM_SEARCH = SamplingConfig()
"""No sampling."""


class Hypothesis(NamedTuple):
    """One translation of a sentence."""

    text: str
    score: float
    """Log-probability divided by the length penalty; of several parts, the sum."""
    log_prob: float
    """Log-probability in nats, of the end mark too."""
    finished: bool
    """False where it was cut at the longest length allowed."""
    tokens: list[list[int]]
    """Of each part, with the end mark where it is finished."""


class Translation(NamedTuple):
    """What was found for a sentence."""

    hypotheses: list[Hypothesis]
    """Best first, or in the order drawn: as many as were asked for, where there are so many."""
    finished: bool
    """False where the longest length allowed cut off a hypothesis that scored above the first."""
    sources: list[list[int]]
    """Tokens of each part that the sentence was translated in, with end mark; none if blank."""

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score


class Source(NamedTuple):
    """A row of a batch."""

    tokens: list[int]
    """With the end mark."""
    prefix: Sequence[int] = ()
    """Tokens that the translation must begin with."""
    seeds: tuple[int, int, int] = (0, 0, 0)
    """Of sampling: the seed of all, the number of the sentence, that of its part."""


Item = TypeVar("Item")
Part = tuple[int, int]
"""The number of a sentence, and of its part."""


class Translator:
    """A model that translates text, or an ensemble; compiled once for every shape of batch."""

    def __init__(
        self,
        models: tuple[Transformer, ...],
        tokenizers: Tokenizers,
        config: DecodeConfig,
        mesh: Mesh,
    ):
        self._tokenizers = tokenizers
        self._config = config
        self._longest = min(model.config.longest for model in models)
        self._mesh = mesh
        target = tokenizers.target
        special = SpecialIds(target.pad_id, target.bos_id, target.eos_id, target.unk_id)
        self._search = jax.jit(
            partial(search, models, config, special, num_shards=sharding.num_batch_shards(mesh)),
            static_argnames=("num_best", "sampling"),
            out_shardings=sharding.replicated(mesh),
        )
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def translate(
        self,
        params: tuple[Params, ...],
        sentences: Sequence[str],
        check: Callable[[int], None] = lambda done: None,
        *,
        prefixes: Sequence[str] | None = None,
        num_best: int = 1,
        sampling: SamplingConfig = BEAM_SEARCH,
        first: int = 0,
    ) -> list[Translation]:
        """One translation a sentence, in the order given; a blank sentence gives a blank one.

        A source of more than `max_source_length` tokens, or of more than the model has positions
        for, is translated in parts of that length.

        Args:
          params: the weights of every model.
          check: is told before every batch how many sentences are done; it may raise.
          prefixes: what each translation must begin with, in whole words; spaces at its end do not
            count. A blank sentence stays blank.
          num_best: hypotheses wanted of each sentence, at most `beam_size` of them, or samples.
          sampling: how they are drawn, where its temperature is above 0.
          first: number of the first sentence in its file, which its samples depend on.

        Raises UserError for more hypotheses than beams, and for prefixes that are too many, too
        few, or too long for the positions of the model.
        """
        if sampling.temperature == 0 and num_best > self._config.beam_size:
            raise UserError(
                f"{num_best} translations of a sentence are asked for: decode.beam_size, which is "
                f"{self._config.beam_size}, must be as many at least"
            )
        sources = self._sources(sentences, prefixes, sampling.seed, first)
        waiting = Counter(number for number, _ in sources)
        done = len(sentences) - len(waiting)
        found: dict[Part, Translation] = {}
        lengths = {key: len(source.tokens) for key, source in sources.items()}
        num_shards = sharding.num_batch_shards(self._mesh)

        def searches() -> Iterator[tuple[list[Part], SearchResult]]:
            result = None
            for keys, rows, length in batches(lengths, self._config, num_shards):
                check(done)
                batch = [sources[key] for key in keys]
                jax.block_until_ready(result)  # two at once would need the memory of both
                result = self._start(params, batch, rows, length, num_best, sampling)
                yield keys, result

        for keys, result in _one_ahead(searches()):
            batch = [sources[key] for key in keys]
            found |= zip(keys, self._read(jax.device_get(result), batch, num_best), strict=True)
            waiting.subtract(number for number, _ in keys)
            done += sum(waiting[number] == 0 for number in {number for number, _ in keys})
        check(done)
        by_sentence: list[list[Translation]] = [[] for _ in sentences]
        for key in sorted(found):
            by_sentence[key[0]].append(found[key])
        return [_join(parts) for parts in by_sentence]

    def _sources(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None, seed: int, first: int
    ) -> dict[Part, Source]:
        """The parts of all sentences that are not blank; a prefix is that of the first part."""
        if prefixes is None:
            prefixes = [""] * len(sentences)
        if len(prefixes) != len(sentences):
            raise UserError(f"{len(prefixes)} prefixes for {len(sentences)} sentences")
        lines = [clean_line(sentence) for sentence in sentences]
        filled = [number for number, line in enumerate(lines) if line.strip()]
        encoded = self._tokenizers.source.encode([lines[number] for number in filled])
        begun = [clean_line(prefixes[number]).rstrip() for number in filled]
        forced = self._tokenizers.target.encode(begun)
        longest = min(self._config.max_source_length, self._longest) - 1  # the end mark counts
        sources = {}
        for number, ids, prefix in zip(filled, encoded, forced, strict=True):
            if len(prefix) >= self._longest:
                raise UserError(
                    f"the prefix of line {first + number + 1} has {len(prefix)} tokens: the model "
                    f"has model.max_positions = {self._longest} for all of its translation"
                )
            for part, start in enumerate(range(0, len(ids), longest)):
                tokens = [*ids[start : start + longest], self._tokenizers.source.eos_id]
                seeds = (seed, first + number, part)
                sources[number, part] = Source(tokens, () if part else prefix, seeds)
        return sources

    def _start(
        self,
        params: tuple[Params, ...],
        batch: list[Source],
        rows: int,
        length: int,
        num_best: int = 1,
        sampling: SamplingConfig = BEAM_SEARCH,
    ) -> SearchResult:
        longest_prefix = max(len(source.prefix) for source in batch)
        prefix_length = padded_length(longest_prefix) if longest_prefix else 0
        prefixes = np.full((rows, prefix_length), self._tokenizers.target.pad_id, np.int32)
        inputs = np.zeros((rows, length), np.int32)
        segments = np.zeros((rows, length), np.int32)
        limits = np.zeros((rows, 1), np.int32)
        seeds = np.zeros((rows, 3), np.int32)
        for row, source in enumerate(batch):
            tokens, prefix, seeds[row] = source
            inputs[row, : len(tokens)] = tokens
            segments[row, : len(tokens)] = 1
            limits[row] = length_limit(self._config, self._longest, len(tokens) + len(prefix))
            prefixes[row, : len(prefix)] = prefix
        arrays = (inputs, segments, limits, prefixes, seeds)
        placed = [sharding.spread(array, self._mesh) for array in arrays]
        options = {"num_best": num_best, "sampling": replace(sampling, seed=0)}
        program = rows, length, prefix_length, *options.values()
        with jax.set_mesh(self._mesh):
            if program not in self._compiled:
                lowered = self._search.lower(params, *placed, **options)
                self._compiled[program] = _compile(lowered, rows, length)
            return self._compiled[program](params, *placed)

    def _read(self, result: SearchResult, batch: list[Source], num_best: int) -> list[Translation]:
        """Of each row the hypotheses, fewer than asked for where the search found no more."""
        tokenizer = self._tokenizers.target
        exists = result.scores[: len(batch), :num_best] > -np.inf
        places = [tuple(place) for place in np.argwhere(exists).tolist()]
        tokens = [
            [token for token in result.tokens[place].tolist() if token != tokenizer.pad_id]
            for place in places
        ]
        hypotheses: list[list[Hypothesis]] = [[] for _ in batch]
        for place, ids, text in zip(places, tokens, tokenizer.decode(tokens), strict=True):
            hypotheses[place[0]].append(
                Hypothesis(
                    text=text,
                    score=float(result.scores[place]),
                    log_prob=float(result.log_probs[place]),
                    finished=bool(result.finished[place]),
                    tokens=[ids],
                )
            )
        return [
            Translation(own, not result.cut[row], [source.tokens])
            for row, (source, own) in enumerate(zip(batch, hypotheses, strict=True))
        ]


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Each item when that behind it is under way, for what the host does with it meanwhile."""
    before = deque(itertools.islice(items, 1))
    for item in items:
        before.append(item)
        yield before.popleft()
    yield from before


def _compile(lowered: jax.stages.Lowered, rows: int, length: int) -> jax.stages.Compiled:
    """The search of a batch, whose memory is known before it runs.

    Raises UserError where a device has less.
    """
    compiled = lowered.compile()
    needed, limit = program_memory(compiled), device_memory()
    if needed > limit:
        raise UserError(
            f"{rows} sentences of up to {length} tokens at once need {needed / 2**30:.1f} GiB a "
            f"device by the compiler's count, which has {limit / 2**30:.1f}: lower "
            "decode.tokens_per_batch or decode.beam_size"
        )
    return compiled


def search(
    models: tuple[Transformer, ...],
    config: DecodeConfig,
    special: SpecialIds,
    params: tuple[Params, ...],
    inputs: Sources,
    segments: Sources,
    limits: Int[Array, "batch 1"],
    prefixes: Int[Array, "batch prefix"] | None = None,
    seeds: Int[Array, "batch 3"] | None = None,
    *,
    num_best: int = 1,
    sampling: SamplingConfig = BEAM_SEARCH,
    num_shards: int = 1,
) -> SearchResult:
    """Encodes sentences, one a row, and searches for their translations (section 6.1).

    Segments are 1 for tokens and 0 for padding; limits, prefixes (`forced`) and `num_shards` are
    those of `decode.beam_search`, seeds those of `Source`, which sampling alone needs.
    """
    length = inputs.shape[1]
    prefix_length = 0 if prefixes is None else prefixes.shape[1]
    longest = min(model.config.longest for model in models)
    options = {
        "alpha": config.length_penalty,
        "max_length": length_limit(config, longest, length + prefix_length),
        "special": special,
        "min_length": config.min_length,
        "forced": prefixes,
        "num_shards": num_shards,
    }
    width = num_best if sampling.temperature else config.beam_size
    members = [
        _decoder(model, own, inputs, segments, width if sampling.temperature else 1)
        for model, own in zip(models, params, strict=True)
    ]
    step = average([step for step, _ in members])
    caches = tuple(cache for _, cache in members)
    if sampling.temperature:
        keys = jax.vmap(_sentence_key)(seeds)
        return sample(step, caches, limits[:, 0], keys, sampling, num_samples=width, **options)
    return beam_search(step, caches, limits[:, 0], beam_size=width, num_certain=num_best, **options)


def _sentence_key(seeds: Int[Array, "3"]) -> jax.Array:
    seed, sentence, part = seeds
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), sentence), part)


def _decoder(
    model: Transformer,
    params: Params,
    inputs: Sources,
    segments: Sources,
    width: int,
) -> tuple[StepFn, Cache]:
    """A model's step function for a batch of sentences, and its empty cache."""
    model, params = unrolled(model, params)
    variables = {"params": params}
    memory = model.apply(variables, inputs, segments, method="remember")

    def step(tokens, index, cache):
        memory, past = cache
        logits, past = model.apply(variables, tokens, index, memory, past, method="decode_step")
        return logits, (memory, past)

    return step, (memory, empty_cache(model.config, len(inputs), width, 1))


def _join(parts: list[Translation]) -> Translation:
    """The translation of a sentence from those of its parts; of none, for a blank sentence.

    The n-th hypothesis is made of the n-th of every part.
    """
    joined = [
        Hypothesis(
            text=" ".join(part.text for part in nth),
            score=sum(part.score for part in nth),
            log_prob=sum(part.log_prob for part in nth),
            finished=all(part.finished for part in nth),
            tokens=[tokens for part in nth for tokens in part.tokens],
        )
        for nth in zip(*(part.hypotheses for part in parts), strict=False)
    ]
    return Translation(
        hypotheses=joined or [Hypothesis("", 0.0, 0.0, True, [])],
        finished=all(part.finished for part in parts),
        sources=[tokens for part in parts for tokens in part.sources],
    )


def batches(
    lengths: Mapping[Item, int], config: DecodeConfig, num_shards: int
) -> Iterator[tuple[list[Item], int, int]]:
    """Items of like length together, as (items, rows of the batch, tokens of a row)."""
    by_length: dict[int, list[Item]] = {}
    for key in sorted(lengths, key=lambda key: lengths[key]):
        by_length.setdefault(padded_length(lengths[key]), []).append(key)
    for length, keys in by_length.items():
        rows = batch_rows(config, length, len(keys), num_shards)
        for start in range(0, len(keys), rows):
            yield keys[start : start + rows], rows, length


def length_limit(config: DecodeConfig, longest: int, source_length: int) -> int:
    """Tokens of the longest translation of a source, `longest` being the model's positions.

    The tokens of a forced prefix count as tokens of the source.
    """
    return min(source_length + config.max_extra_length, longest)


def batch_rows(config: DecodeConfig, length: int, num_sources: int, num_shards: int) -> int:
    """Rows of the batches of sources of `length` tokens, so that devices can divide them.

    All batches have as many: the last one is not filled up with rows that are of no use. Powers of
    two up to 16, and eight numbers from each to the next beyond, are few shapes.
    """
    most = max(config.tokens_per_batch // length, 1)
    num_batches = -(-num_sources // most)
    even = -(-num_sources // num_batches)
    power = 2 ** (even - 1).bit_length()
    unit = power // 16 if power > 16 else power
    rows = min(most, -(-even // unit) * unit)
    return -(-rows // num_shards) * num_shards


def padded_length(length: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, ...: few shapes to compile, for any length."""
    power = max(16, 2 ** (length - 1).bit_length())
    between = power * 3 // 4
    return between if 16 < between >= length else power
