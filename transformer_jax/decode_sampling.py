"""Sampling over token ids: pure functions beside those of `decode.py`, with the same step function.

Every sample has a key of its own, made of its sentence's, so neighbours do not change it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32

from transformer_jax.array_types import Key
from transformer_jax.config import SamplingConfig
from transformer_jax.decode import (
    SearchResult,
    SpecialIds,
    forced_to_length,
    length_penalty,
)
from transformer_jax.decode_loop import Cache, StepFn, repeat


class SampleState(NamedTuple):
    """What sampling carries from step to step."""

    index: Int32[Array, ""]  # tokens chosen so far
    tokens: Int32[Array, "batch sample length"]
    log_probs: Float[Array, "batch sample"]
    ended: Bool[Array, "batch sample"]
    done: Bool[Array, "batch"]  # all have ended
    limits: Int32[Array, "batch"]  # the longest sample, in tokens
    forced: Int32[Array, "batch length"]  # tokens to begin with, then padding
    keys: Key  # [batch, sample]
    cache: Cache


def sample(
    step_fn: StepFn,
    cache: Cache,
    limits: Int[Array, "batch"],
    keys: Key,
    config: SamplingConfig,
    *,
    num_samples: int,
    alpha: float,
    max_length: int,
    special: SpecialIds,
    min_length: int = 0,
    forced: Int[Array, "batch prefix"] | None = None,
    num_shards: int = 1,
) -> SearchResult:
    """Translations drawn from the model, `num_samples` a sentence, in the order drawn.

    The arguments are those of `decode.beam_search`; besides, `keys` [batch] are random keys and
    `config` says how the distribution of a token is changed before it is drawn from.

    Log-probabilities and scores are those of the model itself, without that change. `finished`
    tells of each sample whether it ended, `cut` whether the first did not. Samples may be equal.
    The first n are the same whatever `num_samples`.
    """
    limits = jnp.minimum(limits, max_length)
    forced = forced_to_length(forced, limits.shape[0], max_length, special.pad)
    numbers = jnp.arange(num_samples)
    keys = jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(numbers))(keys)

    def step(state: SampleState) -> SampleState:
        before = state.tokens[:, :, jnp.maximum(state.index - 1, 0)]
        last = jnp.where(state.index == 0, special.bos, before)
        logits, cache = step_fn(last, state.index, state.cache)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        may_end = state.index >= min_length
        allowed = allowed_tokens(state.forced[:, state.index], may_end, special, logits.shape[2])
        chosen = _draw(log_probs, allowed, state.keys, state.index, config)
        chosen = jnp.where(state.ended, special.pad, chosen)
        gained = jnp.take_along_axis(log_probs, chosen[:, :, None], axis=2)[:, :, 0]
        index = state.index + 1
        ended = state.ended | (chosen == special.eos) | (index >= state.limits)[:, None]
        return state._replace(
            index=index,
            tokens=state.tokens.at[:, :, state.index].set(chosen),
            log_probs=state.log_probs + jnp.where(state.ended, 0.0, gained),
            ended=ended,
            done=jnp.all(ended, axis=1),
            cache=cache,
        )

    shape = (limits.shape[0], num_samples)
    ended = jnp.broadcast_to(limits[:, None] <= 0, shape)
    state = SampleState(
        index=jnp.int32(0),
        tokens=jnp.full((*shape, max_length), special.pad, jnp.int32),
        log_probs=jnp.zeros(shape, jnp.float32),
        ended=ended,
        done=jnp.all(ended, axis=1),
        limits=limits.astype(jnp.int32),
        forced=forced,
        keys=keys,
        cache=cache,
    )
    state = repeat(step, state, max_length, num_shards)
    finished = jnp.any(state.tokens == special.eos, axis=2)
    lengths = jnp.sum(state.tokens != special.pad, axis=2)
    scores = state.log_probs / length_penalty(jnp.maximum(lengths, 1), alpha)
    return SearchResult(state.tokens, scores, state.log_probs, finished, ~finished[:, 0])


def allowed_tokens(
    forced: Int32[Array, "batch"], may_end: Bool[Array, ""], special: SpecialIds, vocab_size: int
) -> Bool[Array, "batch vocab"]:
    """The token that is forced; else all but the control ids, the end mark being one that may be.

    Raises ValueError for ids beyond the vocabulary.
    """
    token, control = jnp.arange(vocab_size), jnp.array(special.checked(vocab_size))
    free = ~jnp.isin(token, control) | ((token == special.eos) & may_end)
    forced = forced[:, None]
    return jnp.where(forced == special.pad, free, token == forced)


def _draw(
    log_probs: Float[Array, "batch sample vocab"],
    allowed: Bool[Array, "batch vocab"],
    keys: Key,
    index: Int[Array, ""],
    config: SamplingConfig,
) -> Int32[Array, "batch sample"]:
    logits = jnp.where(allowed[:, None], log_probs, -jnp.inf) / config.temperature
    logits = restrict(logits, config.top_k, config.top_p)

    def draw(key: Key, logits: Float[Array, "vocab"]) -> Int32[Array, ""]:
        return jax.random.categorical(jax.random.fold_in(key, index), logits).astype(jnp.int32)

    return jax.vmap(jax.vmap(draw))(keys, logits)


def restrict(
    logits: Float[Array, "*rows vocab"], top_k: int, top_p: float
) -> Float[Array, "*rows vocab"]:
    """-inf beyond the `top_k` likeliest tokens, then beyond the fewest with `top_p` of the mass.

    The second is nucleus sampling (Holtzman et al. 2020, equations 2 and 3). Tokens that equal the
    last one kept are kept too; 0 and 1 turn the two off.
    """
    if top_k:
        last = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < last, -jnp.inf, logits)
    if top_p < 1:
        falling = jnp.sort(logits, axis=-1, descending=True)
        probs = jax.nn.softmax(falling)
        kept = jnp.cumsum(probs, axis=-1) - probs < top_p
        last = jnp.min(jnp.where(kept, falling, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < last, -jnp.inf, logits)
    return logits
