"""Multi-head attention (section 3.2).

Keys and values are projected apart from the queries, so that decoding can compute them once: those
of the source before the first token, those of a target token when it is chosen.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.chips import has_cudnn_attention
from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.layers import Dropout, dense
from transformer_jax.sharding import constrain


class KeysValues(NamedTuple):
    """The projected keys and values of one attention layer."""

    keys: Float[Array, "*batch len heads key_dim"]
    values: Float[Array, "*batch len heads value_dim"]


class ProjectKeysValues(nn.Module):
    """x W^K and x W^V for all heads."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "batch len model"]) -> KeysValues:
        config = self.config
        return KeysValues(
            _to_heads(config, x, config.key_dim, "key"),
            _to_heads(config, x, config.value_dim, "value"),
        )


class Attention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, with head_i = softmax(Q K^T / sqrt(d_k)) V."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch q model"],
        keys_values: KeysValues,
        bias: Float[Array, "#batch 1 #q k"],
        deterministic: bool,
        decoding: bool = False,
    ) -> tuple[Float[Array, "batch q model"], Float[Array, "batch heads q k"] | None]:
        """The output, and the weights before dropout; None where cuDNN computes, which gives none.

        The compiler drops weights that nobody reads. Decoding has few queries, for which cuDNN's
        kernel is not made.
        """
        config = self.config
        queries = _to_heads(config, x, config.key_dim, "query") * config.key_dim**-0.5
        if not decoding and use_cudnn(config, bias.shape[2], bias.shape[3]):
            heads, weights = _attend_by_cudnn(queries, keys_values, bias), None
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys_values.keys)
            exps, totals = exp_and_sum(scores.astype(jnp.float32) + bias, config.dtype)
            weights = exps / totals[..., None]
            kept = Dropout(config.attention_dropout_rate)(exps, deterministic)
            heads = jnp.einsum("bhqk,bkhd->bqhd", kept, keys_values.values)
            heads = (heads / totals.swapaxes(1, 2)[..., None]).astype(config.dtype)
        axes = ("heads", "head_dim", "model")
        options = {"use_bias": config.attention_bias, "name": "output"}
        return dense(config, config.d_model, axes, axis=(-2, -1), **options)(heads), weights


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def exp_and_sum(
    scores: Float[Array, "batch heads q k"], dtype: jax.typing.DTypeLike
) -> tuple[Float[Array, "batch heads q k"], Float[Array, "batch heads q"]]:
    """A softmax over the keys in two parts: the exponentials, rounded to `dtype`, and their sums.

    The greatest exponential of a query is 1. Dividing the heads by the sums, not the weights, saves
    a pass over all pairs, and the gradient keeps nothing of a pair but its rounded exponential.
    """
    exps = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return jax.lax.optimization_barrier(exps.astype(dtype)), exps.sum(axis=-1)


def _exp_and_sum_forward(scores: Array, dtype: jax.typing.DTypeLike):
    exps, sums = exp_and_sum(scores, dtype)
    return (exps, sums), exps


def _exp_and_sum_backward(dtype: jax.typing.DTypeLike, exps: Array, gradients: tuple[Array, Array]):
    of_exps, of_sums = gradients
    return (exps.astype(jnp.float32) * (of_exps.astype(jnp.float32) + of_sums[..., None]),)


exp_and_sum.defvjp(_exp_and_sum_forward, _exp_and_sum_backward)


def use_cudnn(config: ModelConfig, query_length: int, key_length: int) -> bool:
    """Whether cuDNN computes the attention of so many queries, each with its own bias, to keys.

    Lengths are in tokens. Raises UserError where the configuration wants it and it cannot.
    """
    if query_length == 1 or config.attention == "xla":
        return False  # rows of one token are those that weights are made with, on any device
    obstacle = config.cudnn_obstacle
    if not obstacle and (query_length % 2 or key_length % 2):
        obstacle = f"rows are of {query_length} and {key_length} tokens, not of even numbers"
    if not obstacle and not all(map(has_cudnn_attention, jax.devices())):
        obstacle = "there are devices other than NVIDIA GPUs since Ampere"
    if obstacle and config.attention == "cudnn":
        raise UserError(f"model.attention is 'cudnn': it must be 'auto' or 'xla' where {obstacle}")
    return not obstacle


def _attend_by_cudnn(
    queries: Float[Array, "batch q heads head_dim"],
    keys_values: KeysValues,
    bias: Float[Array, "batch 1 q k"],
) -> Float[Array, "batch q heads head_dim"]:
    """Attention with queries that are scaled already.

    JAX makes cuDNN's bias from a boolean mask. Ours would not do: JAX's authors report NaN from the
    differences of numbers as low as `masks.FORBIDDEN` (jax pull request 22078), and users from a
    bias in float32 (jax issue 32242). A row in which all is forbidden is padding, whose output
    nobody reads: all is allowed to it instead.
    """
    allowed = constrain(bias == 0, "batch", None, None, None)
    allowed |= ~allowed.any(axis=-1, keepdims=True)
    options = {"mask": allowed, "scale": 1.0, "implementation": "cudnn"}
    return jax.nn.dot_product_attention(queries, *keys_values, **options)


def _to_heads(
    config: ModelConfig, x: Float[Array, "batch len model"], head_dim: int, name: str
) -> Float[Array, "batch len heads head_dim"]:
    shape, axes = (config.num_heads, head_dim), ("model", "heads", "head_dim")
    heads = dense(config, shape, axes, use_bias=config.attention_bias, name=name)(x)
    return constrain(heads, "batch", None, "heads", "head_dim")


def insert(cache: KeysValues, new: KeysValues, place: Int[Array, ""]) -> KeysValues:
    """Writes keys and values into a cache, from one of its places on."""
    return KeysValues(
        *(
            jax.lax.dynamic_update_slice_in_dim(old, part.astype(old.dtype), place, axis=1)
            for old, part in zip(cache, new, strict=True)
        )
    )
