"""The loop that beam search and sampling share."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import SamplingConfig
from transformer_jax.decode import SpecialIds, beam_search
from transformer_jax.decode_sampling import sample

SPECIAL = SpecialIds(0, 1, 2)


class Room(NamedTuple):
    """A cache that has room, and keeps nothing."""

    places: jax.Array

    def reorder(self, parents):
        return self

    def grow(self, length):
        return Room(jnp.zeros(length))


@pytest.mark.parametrize(
    ("ends_at", "rooms"),
    [(1, {1}), (5, {1, 24}), (24, {1, 24}), (40, {1, 24, 96}), (200, {1, 24, 96, 300})],
)
def test_the_cache_grows_with_the_hypotheses(ends_at, rooms):
    length, seen = 300, set()

    def step(tokens, position, cache):
        room = len(cache.places)
        jax.debug.callback(lambda where: seen.add((int(where), room)), position)
        end = jnp.where(position + 1 >= ends_at, 10.0, -10.0)
        logits = jnp.zeros(4).at[2].set(end)
        return jnp.broadcast_to(logits, (*tokens.shape, 4)), cache

    cache = Room(jnp.zeros(1))
    options = {"alpha": 0.6, "max_length": length, "special": SPECIAL}
    result = beam_search(step, cache, jnp.array([length]), beam_size=1, **options)
    jax.effects_barrier()
    assert result.tokens[0, 0].tolist() == [3] * (ends_at - 1) + [2] + [0] * (length - ends_at)
    assert {room for _, room in seen} == rooms
    assert all(where < room for where, room in seen)


class Sentences(NamedTuple):
    """What is known of the sentences: a number."""

    numbers: jax.Array

    def reorder(self, _parents):
        return self

    def grow(self, _length):
        return self


def search_of(numbers, limits, num_shards=1, seen=None, temperature=0.0):
    """Hypotheses whose log-probabilities depend on the sentence, and on all their tokens."""

    def step(tokens, position, cache):
        if seen is not None:
            jax.debug.callback(lambda where: seen.append((int(where), len(tokens))), position)
        sentences, pasts = cache
        pasts = 0.7 * pasts + jnp.sin(tokens + 3.0 * sentences.numbers[:, None])
        logits = 3 * jnp.sin(pasts[..., None] * jnp.arange(1, 9))
        return logits.at[:, :, 2].add(-4.0), (sentences, pasts)

    width = 3 if temperature else 1
    cache = (Sentences(jnp.array(numbers)), jnp.zeros((len(numbers), width)))
    options = {"alpha": 0.6, "max_length": 40, "special": SPECIAL, "num_shards": num_shards}
    limits = jnp.array(limits)
    if not temperature:
        return beam_search(step, cache, limits, beam_size=3, **options)
    keys = jax.vmap(jax.random.key)(jnp.array(numbers))
    config = SamplingConfig(temperature=temperature)
    return sample(step, cache, limits, keys, config, num_samples=3, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_sentences_that_are_not_done_go_on_alone(num_shards, temperature):
    """As many sentences, some with nothing to do, as a device has at once, and each by itself."""
    random, count, seen = np.random.default_rng(0), 32 * num_shards, []
    numbers, limits = np.arange(count), random.integers(0, 41, count)
    together = search_of(numbers, limits, num_shards, seen, temperature)
    jax.effects_barrier()
    widths = dict(seen)
    assert widths[0] == count
    last = max(widths)
    assert last > 24
    assert widths[last] == count // 2
    alone = jax.jit(lambda number, limit: search_of(number, limit, temperature=temperature))
    for row in range(count):
        own = alone(numbers[[row]], limits[[row]])
        for name, value in own._asdict().items():
            found = np.asarray(getattr(together, name))[row]
            np.testing.assert_allclose(found, value[0], rtol=1e-5, err_msg=f"{name} of {row}")
