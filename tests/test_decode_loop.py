"""The loop that beam search and sampling share."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.decode import SpecialIds, beam_search


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
    options = {"alpha": 0.6, "max_length": length, "special": SpecialIds(0, 1, 2)}
    result = beam_search(step, cache, jnp.array([length]), beam_size=1, **options)
    jax.effects_barrier()
    assert result.tokens[0, 0].tolist() == [3] * (ends_at - 1) + [2] + [0] * (length - ends_at)
    assert {room for _, room in seen} == rooms
    assert all(where < room for where, room in seen)
