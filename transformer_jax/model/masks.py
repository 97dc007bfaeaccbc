"""Which position may attend to which, as a bias that is added to the attention scores."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FORBIDDEN = -1e30
"""Bias of a forbidden position.

Finite, so that a row in which every position is forbidden gives a uniform softmax and no NaN; far
below any score, so that a forbidden position beside an allowed one weighs exactly zero.
"""


def to_bias(allowed: Bool[Array, "batch q k"]) -> Float[Array, "batch 1 q k"]:
    """0 where attention is allowed, `FORBIDDEN` elsewhere; float32, the same for every head."""
    return jnp.where(allowed, 0.0, FORBIDDEN)[:, None].astype(jnp.float32)


def same_segment(
    query_segments: Int[Array, "batch q"], key_segments: Int[Array, "batch k"]
) -> Bool[Array, "batch q k"]:
    """True where query and key belong to the same sentence of the row; never for padding."""
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return same & (key_segments != 0)[:, None, :]


def causal_same_segment(segments: Int[Array, "batch tgt"]) -> Bool[Array, "batch tgt tgt"]:
    """`same_segment` of the target with itself, later keys forbidden (section 3.2.3)."""
    index = jnp.arange(segments.shape[1])
    return same_segment(segments, segments) & (index[:, None] >= index[None, :])


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
