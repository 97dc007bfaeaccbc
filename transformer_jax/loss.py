"""Label-smoothed cross entropy, as sums."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.array_types import Count, Logits, Scalar, Targets


class LossSums(NamedTuple):
    """Sums over target tokens, in nats; means are taken once, after everything is summed."""

    loss: Scalar
    """Label-smoothed cross entropy."""
    nll: Scalar
    """Negative log-likelihood, without smoothing: its mean is the log of the perplexity."""
    tokens: Count
    """Target tokens, padding excluded."""


def loss_sums(
    logits: Logits,
    targets: Targets,
    segments: Targets,
    smoothing: float,
    vocab_size: int | None = None,
) -> LossSums:
    """Cross entropy with the target distribution (1 - smoothing) one-hot + smoothing uniform.

    Uniform over the first `vocab_size` logits, or all; those beyond must be too low to matter.
    Padding (segment 0) weighs nothing, even where its logits are not finite. Section 5.4, and
    Szegedy et al. 2015, section 7.
    """
    vocab_size = vocab_size or logits.shape[-1]
    real = segments != 0
    piece = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1)
    # Masked sums: they fuse with their neighbours, and their gradient is no scatter.
    chosen = jnp.sum(jnp.where(piece == targets[..., None], logits, 0), axis=-1)
    mean = jnp.sum(jnp.where(piece < vocab_size, logits, 0), axis=-1) / vocab_size
    nll = log_normaliser - chosen
    loss = (1 - smoothing) * nll + smoothing * (log_normaliser - mean)
    return LossSums(
        loss=jnp.sum(jnp.where(real, loss, 0)),
        nll=jnp.sum(jnp.where(real, nll, 0)),
        tokens=jnp.sum(real),
    )


def chunked_loss_sums(
    make_logits: Callable[[Float[Array, "batch chunk model"]], Logits],
    x: Float[Array, "batch tgt model"],
    targets: Targets,
    segments: Targets,
    smoothing: float,
    vocab_size: int,
    num_chunks: int,
) -> LossSums:
    """`loss_sums` of make_logits(x), a part of every row at a time.

    The logits of one chunk exist at a time: they are made again for the gradient, which costs
    their matrix product once more. Every device has its own rows in all chunks.
    """

    if num_chunks == 1:
        return loss_sums(make_logits(x), targets, segments, smoothing, vocab_size)

    @jax.checkpoint
    def one_chunk(x: Array, targets: Array, segments: Array) -> LossSums:
        return loss_sums(make_logits(x), targets, segments, smoothing, vocab_size)

    length = -(-targets.shape[1] // num_chunks)

    def split(array: Array) -> Array:
        missing = num_chunks * length - array.shape[1]
        padded = jnp.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])
        return padded.reshape(len(array), num_chunks, length, *array.shape[2:]).swapaxes(0, 1)

    def body(total: LossSums, chunk: tuple[Array, Array, Array]) -> tuple[LossSums, None]:
        return jax.tree.map(jnp.add, total, one_chunk(*chunk)), None

    zero = LossSums(jnp.float32(0), jnp.float32(0), jnp.int32(0))
    return jax.lax.scan(body, zero, (split(x), split(targets), split(segments)))[0]
