"""Label-smoothed cross entropy, as sums."""

from collections.abc import Callable
from functools import partial
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
    real = segments != 0
    loss, nll = cross_entropy(logits, targets, smoothing, vocab_size or logits.shape[-1])
    return LossSums(
        loss=jnp.sum(jnp.where(real, loss, 0)),
        nll=jnp.sum(jnp.where(real, nll, 0)),
        tokens=jnp.sum(real),
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy(
    logits: Logits, targets: Targets, smoothing: float, vocab_size: int
) -> tuple[Float[Array, "batch tgt"], Float[Array, "batch tgt"]]:
    """Of each token, the cross entropy with the smoothed target, and with the target alone.

    The logits are read three times (maximum, sum of exponentials, sum) and one of them is looked
    up; the gradient, their softmax less the target distribution, is one pass over them.
    """
    return _cross_entropy_forward(logits, targets, smoothing, vocab_size)[0]


def _cross_entropy_forward(logits: Array, targets: Array, smoothing: float, vocab_size: int):
    log_normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_normaliser - chosen
    # A slice of the logits would be a copy on a TPU; a masked sum fuses with its neighbours.
    piece = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    mean = jnp.sum(jnp.where(piece < vocab_size, logits, 0), axis=-1) / vocab_size
    loss = (1 - smoothing) * nll + smoothing * (log_normaliser - mean)
    return (loss, nll), (logits, targets, log_normaliser)


def _cross_entropy_backward(smoothing: float, vocab_size: int, residuals, gradients):
    logits, targets, log_normaliser = residuals
    of_loss, of_nll = (each[..., None] for each in gradients)
    piece = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    probabilities = jnp.exp(logits - log_normaliser[..., None])
    right = (piece == targets[..., None]).astype(logits.dtype)
    uniform = jnp.where(piece < vocab_size, 1 / vocab_size, 0)
    smoothed = (1 - smoothing) * right + smoothing * uniform
    return of_loss * (probabilities - smoothed) + of_nll * (probabilities - right), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


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
