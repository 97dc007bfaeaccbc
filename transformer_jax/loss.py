"""Label-smoothed cross entropy, as sums."""

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


def loss_sums(logits: Logits, targets: Targets, segments: Targets, smoothing: float) -> LossSums:
    """Cross entropy with the target distribution (1 - smoothing) one-hot + smoothing uniform.

    Padding (segment 0) weighs nothing, even where its logits are not finite. Section 5.4, and
    Szegedy et al. 2015, section 7.
    """
    real = segments != 0
    log_normaliser = jax.nn.logsumexp(logits, axis=-1)
    nll = log_normaliser - _pick(logits, targets)
    uniform = log_normaliser - jnp.mean(logits, axis=-1)
    loss = (1 - smoothing) * nll + smoothing * uniform
    return LossSums(
        loss=jnp.sum(jnp.where(real, loss, 0)),
        nll=jnp.sum(jnp.where(real, nll, 0)),
        tokens=jnp.sum(real),
    )


def _pick(logits: Logits, targets: Targets) -> Float[Array, "batch tgt"]:
    # A masked sum: it fuses with its neighbours, and its gradient is no scatter.
    vocabulary = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    return jnp.sum(jnp.where(vocabulary == targets[..., None], logits, 0), axis=-1)
