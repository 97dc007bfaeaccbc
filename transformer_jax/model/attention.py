"""Multi-head attention (section 3.2).

Keys and values are projected apart from the queries, so that decoding can compute them once: those
of the source before the first token, those of a target token when it is chosen.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.chips import has_cudnn_attention
from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.layers import Dropout, dense, drop, product
from transformer_jax.model.masks import Mask
from transformer_jax.sharding import constrain, gathered

LONGEST_PAIRS = 1_024 * 1_024
"""The most pairs of a query and a key in a row whose weights are kept for the gradient.

With these a head's weights take 4 MiB a row in float32, and a layer's of 25,000 tokens and 8 heads
some 800 MiB. Below it a row is as fast whole; above it, what is kept would grow with every token.
"""
CHUNK = 256
"""Queries of a longer row whose scores exist at one time; a multiple of 128, the side of a TPU's
matrix unit."""


class KeysValues(NamedTuple):
    """The projected keys and values of one attention layer, as their products read them."""

    keys: Float[Array, "*batch heads key_dim len"]
    values: Float[Array, "*batch heads len value_dim"]

    def insert(self, new: "KeysValues", place: Int[Array, ""]) -> "KeysValues":
        """With `new` written over them from a place on."""
        write = jax.lax.dynamic_update_slice_in_dim
        return KeysValues(
            write(self.keys, new.keys.astype(self.keys.dtype), place, axis=3),
            write(self.values, new.values.astype(self.values.dtype), place, axis=2),
        )

    def grow(self, length: int) -> "KeysValues":
        """With zeros behind them, where there are less than `length`."""
        missing = (0, max(0, length - self.keys.shape[3]))
        none = (0, 0)
        return KeysValues(
            jnp.pad(self.keys, [none, none, none, missing]),
            jnp.pad(self.values, [none, none, missing, none]),
        )


class Projection(nn.Module):
    """The weights W^Q, W^K or W^V of all heads, which `project` multiplies by."""

    config: ModelConfig
    head_dim: int

    @nn.compact
    def __call__(
        self,
    ) -> tuple[Float[Array, "model heads head_dim"], Float[Array, "heads head_dim"] | None]:
        """The kernel, and the bias where there is one, in the dtype of the model."""
        config, axes = self.config, ("model", "heads", "head_dim")
        shape = (config.d_model, config.num_heads, self.head_dim)
        init = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2))
        kernel = self.param("kernel", nn.with_logical_partitioning(init, axes), shape)
        kernel = gathered(kernel.astype(config.dtype), *axes)
        if not config.attention_bias:
            return kernel, None
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, axes[1:])
        return kernel, self.param("bias", zeros, shape[1:]).astype(config.dtype)


def project(
    x: Float[Array, "batch len model"], *projections: Projection
) -> list[Float[Array, "batch heads len _"]]:
    """x W for each W: one wide product, which is faster than as many narrow ones."""
    kernels, biases = zip(*(projection() for projection in projections), strict=True)
    heads = product(x.astype(kernels[0].dtype), jnp.concatenate(kernels, axis=2), 1)
    if biases[0] is not None:
        heads = heads + jnp.concatenate(biases, axis=1)
    heads = constrain(heads.swapaxes(1, 2), "batch", "heads", None, "head_dim")
    ends = np.cumsum([kernel.shape[2] for kernel in kernels])
    return jnp.split(heads, ends[:-1], axis=3)


class ProjectKeysValues(nn.Module):
    """x W^K and x W^V for all heads."""

    config: ModelConfig

    def setup(self) -> None:
        self.key = Projection(self.config, self.config.key_dim)
        self.value = Projection(self.config, self.config.value_dim)

    def __call__(self, x: Float[Array, "batch len model"]) -> KeysValues:
        keys, values = project(x, self.key, self.value)
        return KeysValues(keys.swapaxes(2, 3), values)

    def with_queries(
        self, x: Float[Array, "batch len model"], query: Projection
    ) -> tuple[Float[Array, "batch heads len key_dim"], KeysValues]:
        """x W^Q too, where queries, keys and values are of the same positions."""
        queries, keys, values = project(x, query, self.key, self.value)
        return queries, KeysValues(keys.swapaxes(2, 3), values)


class Attention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, with head_i = softmax(Q K^T / sqrt(d_k)) V."""

    config: ModelConfig

    def setup(self) -> None:
        config, axes = self.config, ("heads", "head_dim", "model")
        self.query = Projection(config, config.key_dim)
        options = {"use_bias": config.attention_bias}
        self.output = dense(config, config.d_model, axes, axis=(-2, -1), **options)
        self.dropout = Dropout(config.attention_dropout_rate)

    def __call__(
        self,
        queries: Float[Array, "batch heads q key_dim"],
        keys_values: KeysValues,
        bias: Float[Array, "#batch 1 #q k"] | Mask,
        deterministic: bool,
        decoding: bool = False,
    ) -> tuple[Float[Array, "batch q model"], Float[Array, "batch heads q k"] | None]:
        """The output, and the weights before dropout.

        These are None where cuDNN computes, which gives none, and where a mask is given in place of
        a bias: then they are never there all at once.
        The compiler drops weights that nobody reads. Decoding has few queries, for which cuDNN's
        kernel is not made.
        """
        config = self.config
        queries = queries * config.key_dim**-0.5
        rate = config.attention_dropout_rate
        if isinstance(bias, Mask):
            key = None if deterministic or not rate else self.make_rng("dropout")
            heads, weights = attend_in_chunks(queries, keys_values, bias, rate, key), None
        elif not decoding and use_cudnn(config, bias.shape[2], bias.shape[3]):
            heads, weights = _attend_by_cudnn(queries, keys_values, bias), None
        else:
            dropout = partial(self.dropout, deterministic=deterministic)
            heads, weights = _attend(queries, keys_values, bias, dropout)
        return self.output(heads.swapaxes(1, 2)), weights


def _attend(
    queries: Float[Array, "batch heads q key_dim"],
    keys_values: KeysValues,
    bias: Float[Array, "#batch 1 #q k"],
    dropout: Callable[[jax.Array], jax.Array],
) -> tuple[Float[Array, "batch heads q value_dim"], Float[Array, "batch heads q k"]]:
    """Equation 1, with queries that are scaled already: the heads, and their weights."""
    dtype = queries.dtype
    scores = jnp.einsum("bhqd,bhdk->bhqk", queries, keys_values.keys)
    exps, totals = exp_and_sum(scores.astype(jnp.float32) + bias, dtype)
    heads = jnp.einsum("bhqk,bhkd->bhqd", dropout(exps), keys_values.values)
    return (heads / totals[..., None]).astype(dtype), exps / totals[..., None]


def attend_in_chunks(
    queries: Float[Array, "batch heads q key_dim"],
    keys_values: KeysValues,
    mask: Mask,
    dropout_rate: float,
    key: jax.Array | None,
) -> Float[Array, "batch heads q value_dim"]:
    """`_attend` to `CHUNK` queries at a time, without dropout where there is no key.

    Memory grows with q + k, not with q k: the backward pass makes the weights of a chunk again.
    """
    length = queries.shape[2]
    num_chunks = -(-length // CHUNK)

    def split(x: Array, axis: int) -> Array:
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, num_chunks * CHUNK - length)
        shape = (*x.shape[:axis], num_chunks, CHUNK, *x.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(x, padding).reshape(shape), axis, 0)

    @partial(jax.checkpoint, prevent_cse=False)  # a loop keeps the two computations apart
    def attend(chunk: tuple[Array, Array, Array, Array]) -> Array:
        number, queries, segments, last = chunk

        def dropout(weights: Array) -> Array:
            if key is None:
                return weights
            return drop(weights, dropout_rate, jax.random.fold_in(key, number))

        queries = constrain(queries, "batch", "heads", None, "head_dim")
        bias = mask._replace(query_segments=segments, last=last).bias()
        heads = _attend(queries, keys_values, bias, dropout)[0]
        return constrain(heads, "batch", "heads", None, "head_dim")

    rows = split(queries, 2), split(mask.query_segments, 1), split(mask.last, 1)
    heads = jnp.moveaxis(jax.lax.map(attend, (jnp.arange(num_chunks), *rows)), 0, 2)
    return heads.reshape(*queries.shape[:2], num_chunks * CHUNK, -1)[:, :, :length]


def bias_or_mask(config: ModelConfig, mask: Mask) -> Float[Array, "batch 1 q k"] | Mask:
    """What `Attention` is to be given: a bias has the size of all pairs, too much for long rows."""
    query_length, key_length = mask.query_segments.shape[1], mask.key_segments.shape[1]
    short = query_length * key_length <= LONGEST_PAIRS
    return mask.bias() if short or use_cudnn(config, query_length, key_length) else mask


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
    queries: Float[Array, "batch heads q head_dim"],
    keys_values: KeysValues,
    bias: Float[Array, "batch 1 q k"],
) -> Float[Array, "batch heads q head_dim"]:
    """Attention with queries that are scaled already.

    JAX makes cuDNN's bias from a boolean mask. Ours would not do: JAX's authors report NaN from the
    differences of numbers as low as `masks.FORBIDDEN` (jax pull request 22078), and users from a
    bias in float32 (jax issue 32242). A row in which all is forbidden is padding, whose output
    nobody reads: all is allowed to it instead.
    """
    allowed = constrain(bias == 0, "batch", None, None, None)
    allowed |= ~allowed.any(axis=-1, keepdims=True)
    options = {"mask": allowed, "scale": 1.0, "implementation": "cudnn"}
    operands = (queries, keys_values.keys.swapaxes(2, 3), keys_values.values)
    heads = jax.nn.dot_product_attention(*(each.swapaxes(1, 2) for each in operands), **options)
    return heads.swapaxes(1, 2)
