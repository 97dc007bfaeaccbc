"""Which position may attend to which, as a bias that is added to the attention scores."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FORBIDDEN = -1e30
"""Bias of a forbidden position.

Finite, so that a row in which every position is forbidden gives a uniform softmax and no NaN; far
below any score, so that a forbidden position beside an allowed one weighs exactly zero.
"""


class Mask(NamedTuple):
    """Which pairs of a query and a key are allowed, in memory that grows with the lengths alone."""

    query_segments: Int[Array, "batch q"]
    key_segments: Int[Array, "batch k"]
    last: Int[Array, "batch q"]
    """The last key that a query may attend to."""

    def allowed(self) -> Bool[Array, "batch q k"]:
        """True where the key belongs to the query's sentence, up to its last; never for padding."""
        same = self.query_segments[:, :, None] == self.key_segments[:, None, :]
        reached = jnp.arange(self.key_segments.shape[1]) <= self.last[:, :, None]
        return same & (self.key_segments != 0)[:, None, :] & reached

    def bias(self) -> Float[Array, "batch 1 q k"]:
        """0 where attention is allowed, `FORBIDDEN` elsewhere."""
        return to_bias(self.allowed())


def whole(query_segments: Int[Array, "batch q"], key_segments: Int[Array, "batch k"]) -> Mask:
    """Every key of the same sentence of a row."""
    last = jnp.full_like(query_segments, key_segments.shape[1] - 1)
    return Mask(query_segments, key_segments, last)


def causal(segments: Int[Array, "batch tgt"]) -> Mask:
    """Of the target with itself, later keys forbidden (section 3.2.3)."""
    last = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    return Mask(segments, segments, last)


def to_bias(allowed: Bool[Array, "batch q k"]) -> Float[Array, "batch 1 q k"]:
    """0 where attention is allowed, `FORBIDDEN` elsewhere; float32, the same for every head."""
    return jnp.where(allowed, 0.0, FORBIDDEN)[:, None].astype(jnp.float32)


def own_past(
    places: Int[Array, "batch beam length"], index: Int[Array, ""]
) -> Bool[Array, "batch beam past"]:
    """True where, up to the position `index`, stands what a hypothesis is made of.

    Keys are those of all beams at position 0, then at 1, and so on; `places` says in which beam's
    place the hypothesis stood at each position.
    """
    batch, beam, length = places.shape
    own = places[..., None] == jnp.arange(beam)
    past = (jnp.arange(length) <= index)[:, None]
    return (own & past).reshape(batch, beam, length * beam)
