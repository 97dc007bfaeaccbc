"""Given pairs through the whole model at once: the log-probability of the target, and attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from transformer_jax import alignment, sharding
from transformer_jax.alignment import Alignment
from transformer_jax.array_types import Batch, Params
from transformer_jax.config import DecodeConfig
from transformer_jax.data.text import clean_line
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.decode import mean_logits
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import AttentionWeights, Transformer, unrolled
from transformer_jax.translate import Translation, batches

Pair = tuple[list[int], list[int]]
"""Tokens of a source with its end mark, and of a target with its own, where it has one."""

Reduced = TypeVar("Reduced")


class PairScore(NamedTuple):
    """How likely a model holds a target to be, given its source; nothing is left out for length."""

    log_prob: float
    """Sum of `log_probs`."""
    pieces: list[str]
    """Of the target, its end mark last."""
    log_probs: list[float]
    """Log-probability in nats of each piece, given the source and the pieces before it."""


class AttentionMaps(NamedTuple):
    """Attention weights of a pair; the weights of each query, the last dim, sum to 1."""

    source_pieces: list[str]
    """With the end mark."""
    target_pieces: list[str]
    """With the end mark: what the decoder's queries predict."""
    previous_pieces: list[str]
    """What the decoder reads: the start mark, then the target without its end mark."""
    encoder: Float[np.ndarray, "layers heads source source"]
    decoder: Float[np.ndarray, "layers heads target previous"]
    cross: Float[np.ndarray, "layers heads target source"]


class Scorer:
    """A model that looks at pairs, or an ensemble; compiled once for every shape of batch."""

    def __init__(
        self,
        models: tuple[Transformer, ...],
        tokenizers: Tokenizers,
        config: DecodeConfig,
        mesh: Mesh,
    ):
        self._tokenizers = tokenizers
        self._config = config
        self._longest = min(config.max_source_length, *(model.config.longest for model in models))
        self._mesh = mesh
        replicated = sharding.replicated(mesh)
        self._log_probs = jax.jit(partial(token_log_probs, models), out_shardings=replicated)
        self._cross = jax.jit(partial(mean_cross_attention, models), out_shardings=replicated)
        self._weights = jax.jit(partial(attention_weights, models[0]), out_shardings=replicated)
        self._num_models = len(models)

    def score(
        self,
        params: tuple[Params, ...],
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        first: int = 0,
    ) -> list[PairScore]:
        """The log-probability of every target, whole: blank ones too, which are an end mark alone.

        Raises UserError for unequal numbers of lines, and for a line of more than
        `decode.max_source_length` tokens on either side; `first` is the number of the first line.
        """
        pairs = self._encode(sources, targets, first)
        scores: dict[int, PairScore] = {}
        for numbers, batch in self._batches(pairs):
            found = self._call(self._log_probs, params, batch)
            for row, number in enumerate(numbers):
                target = pairs[number][1]
                log_probs = found[row, : len(target)].tolist()
                pieces = self._tokenizers.target.pieces(target)
                scores[number] = PairScore(sum(log_probs), pieces, log_probs)
        return [scores[number] for number in range(len(pairs))]

    def align(
        self,
        params: tuple[Params, ...],
        translations: Sequence[Translation],
        reduce: Callable[[Alignment], Reduced],
    ) -> list[list[Reduced]]:
        """What `reduce` makes of the alignment of every hypothesis of every translation.

        The weights are those of the cross-attention when a target piece is predicted, meaned over
        the layers, the heads and the models of an ensemble. They are made anew by a pass over the
        translation, which costs little beside the search.
        """
        owned = {
            (number, place, part): pair
            for number, translation in enumerate(translations)
            for place, hypothesis in enumerate(translation.hypotheses)
            for part, pair in enumerate(zip(translation.sources, hypothesis.tokens, strict=True))
        }
        owners, pairs = list(owned), list(owned.values())
        waiting: dict[tuple[int, int], dict[int, Alignment]] = {}
        empty = reduce(alignment.join([]))
        reduced = [[empty] * len(translation.hypotheses) for translation in translations]
        for numbers, batch in self._batches(pairs):
            weights = self._call(self._cross, params, batch)
            for row, index in enumerate(numbers):
                number, place, part = owners[index]
                parts = waiting.setdefault((number, place), {})
                parts[part] = self._without_end_marks(*pairs[index], weights[row])
                if len(parts) == len(translations[number].sources):
                    whole = alignment.join([parts[part] for part in sorted(parts)])
                    reduced[number][place] = reduce(whole)
                    del waiting[number, place]
        return reduced

    def attention(self, params: tuple[Params, ...], source: str, target: str) -> AttentionMaps:
        """The weights of every head in every layer.

        Raises UserError for an ensemble, as every model has its own, and as `score` does.
        """
        if self._num_models > 1:
            raise UserError("an ensemble has no attention of its own: load one checkpoint")
        pairs = self._encode([source], [target], 0)
        ((_, batch),) = self._batches(pairs)
        weights = self._call(self._weights, params, batch)
        source_ids, target_ids = pairs[0]
        src, tgt = len(source_ids), len(target_ids)
        target_side = self._tokenizers.target
        return AttentionMaps(
            source_pieces=self._tokenizers.source.pieces(source_ids),
            target_pieces=target_side.pieces(target_ids),
            previous_pieces=target_side.pieces([target_side.bos_id, *target_ids[:-1]]),
            encoder=weights.encoder[:, 0, :, :src, :src],
            decoder=weights.decoder[:, 0, :, :tgt, :tgt],
            cross=weights.cross[:, 0, :, :tgt, :src],
        )

    def _encode(self, sources: Sequence[str], targets: Sequence[str], first: int) -> list[Pair]:
        if len(sources) != len(targets):
            raise UserError(
                f"{len(sources)} sources but {len(targets)} targets: line i of one must be "
                "translated by line i of the other"
            )
        sides = []
        for name, tokenizer, lines in (
            ("source", self._tokenizers.source, sources),
            ("target", self._tokenizers.target, targets),
        ):
            encoded = tokenizer.encode([clean_line(line) for line in lines])
            for number, ids in enumerate(encoded, start=first + 1):
                if len(ids) >= self._longest:
                    raise UserError(
                        f"line {number}: the {name} has {len(ids) + 1} tokens with its end mark, "
                        f"more than the {self._longest} that are scored as one; split the pair, or "
                        "raise decode.max_source_length where it is the limit"
                    )
            sides.append([[*ids, tokenizer.eos_id] for ids in encoded])
        return list(zip(*sides, strict=True))

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Batch]]:
        """Pairs of like length together, as (their numbers, the batch)."""
        lengths = {number: max(map(len, pair)) for number, pair in enumerate(pairs)}
        num_shards = sharding.num_batch_shards(self._mesh)
        for numbers, rows, length in batches(lengths, self._config, num_shards):
            yield numbers, _make_batch([pairs[number] for number in numbers], rows, length)

    def _call(self, function, params: tuple[Params, ...], batch: Batch):
        placed = {name: sharding.spread(array, self._mesh) for name, array in batch.items()}
        with jax.set_mesh(self._mesh):
            return jax.device_get(function(params, placed))

    def _without_end_marks(
        self, source: list[int], target: list[int], weights: Float[np.ndarray, "tgt src"]
    ) -> Alignment:
        source = source[:-1]
        target = target[:-1] if target[-1] == self._tokenizers.target.eos_id else target
        return Alignment(
            self._tokenizers.source.pieces(source),
            self._tokenizers.target.pieces(target),
            weights[: len(target), : len(source)],
        )


def _make_batch(pairs: Sequence[Pair], rows: int, length: int) -> Batch:
    """One pair a row, both sides as long."""
    batch = {name: np.zeros((rows, length), np.int32) for name in Batch.__annotations__}
    for row, pair in enumerate(pairs):
        for side, ids in zip(("inputs", "targets"), pair, strict=True):
            batch[side][row, : len(ids)] = ids
            batch[f"{side}_positions"][row, : len(ids)] = np.arange(len(ids))
            batch[f"{side}_segments"][row, : len(ids)] = 1
    return batch  # type: ignore[return-value]


def token_log_probs(
    models: tuple[Transformer, ...], params: tuple[Params, ...], batch: Batch
) -> Float[Array, "batch tgt"]:
    """The log-probability in nats of every target token, given those before it (force decoding)."""
    logits = mean_logits(
        [model.apply({"params": own}, batch) for model, own in zip(models, params, strict=True)]
    )
    chosen = jnp.take_along_axis(logits, batch["targets"][:, :, None], axis=2)[:, :, 0]
    return chosen - jax.nn.logsumexp(logits, axis=2)


def mean_cross_attention(
    models: tuple[Transformer, ...], params: tuple[Params, ...], batch: Batch
) -> Float[Array, "batch tgt src"]:
    """The weights with which target tokens attend to the source, over all layers and heads."""
    means = [
        attention_weights(model, (own,), batch).cross.mean(axis=(0, 2))
        for model, own in zip(models, params, strict=True)
    ]
    return jnp.mean(jnp.stack(means), axis=0)


def attention_weights(model: Transformer, params: tuple[Params], batch: Batch) -> AttentionWeights:
    """All weights, by a forward pass that holds them: cuDNN's would not."""
    model = model.clone(config=replace(model.config, attention="xla"))
    model, own = unrolled(model, params[0])
    return model.apply({"params": own}, batch, method="attention_weights")
