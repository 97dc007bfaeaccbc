"""Adam and the paper's learning rate (section 5.3)."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from transformer_jax.config import OptimizerConfig


def learning_rate(
    step: Int[Array, ""] | int, config: OptimizerConfig, d_model: int
) -> Float[Array, ""]:
    """d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5), times the configured scale.

    `step` counts from 1, the first update (section 5.3, equation 3).
    """
    step = jnp.asarray(step, jnp.float32)
    rate = jnp.minimum(jax.lax.rsqrt(step), step * config.warmup_steps**-1.5)
    return config.learning_rate_scale * d_model**-0.5 * rate


def make_optimizer(config: OptimizerConfig, d_model: int) -> optax.GradientTransformation:
    """Adam with the learning rate of its own update count, clipped where that is configured."""
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    return optax.chain(
        clip,
        optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        optax.scale_by_learning_rate(lambda count: learning_rate(count + 1, config, d_model)),
    )


def moving_average(
    average: optax.Params, params: optax.Params, step: Int[Array, ""] | int, decay: float
) -> optax.Params:
    """d average + (1 - d) params, where d rises from 2/11 to `decay` as (1 + step) / (10 + step).

    `step` counts from 1, the first update. So the random weights are soon forgotten.
    """
    step = jnp.asarray(step, jnp.float32)
    share = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    return optax.incremental_update(params, average, share)
