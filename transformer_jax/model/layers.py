"""What the encoder and the decoder are made of, attention apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.array_types import Key
from transformer_jax.config import ModelConfig
from transformer_jax.sharding import constrain, gathered

kernel_init = nn.initializers.xavier_uniform()


def dense(config: ModelConfig, features: int | tuple[int, ...], axes: tuple[str, ...], **options):
    """A linear map whose kernel carries logical axes; computes in `config.dtype`."""
    num_outputs = len(features) if isinstance(features, tuple) else 1
    bias_axes = tuple(None if axis == "model" else axis for axis in axes[-num_outputs:])

    def multiply(x: jax.Array, kernel: jax.Array, dims, **_precision) -> jax.Array:
        return product(x, gathered(kernel, *axes), len(dims[0][0]))

    return nn.DenseGeneral(
        features,
        dtype=config.dtype,
        dot_general=multiply,
        kernel_init=nn.with_logical_partitioning(kernel_init, axes),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, bias_axes),
        **options,
    )


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(
    x: Float[Array, "*rows_and_inputs"],
    kernel: Float[Array, "*inputs_and_outputs"],
    num_inputs: int,
) -> Float[Array, "*rows_and_outputs"]:
    """x W, summed over the last `num_inputs` dims of `x`, the first of the kernel."""
    return jnp.tensordot(x, kernel, num_inputs)


def _product_forward(x: jax.Array, kernel: jax.Array, num_inputs: int):
    return product(x, kernel, num_inputs), (x, kernel)


def _product_backward(num_inputs: int, operands: tuple[jax.Array, jax.Array], gradient: jax.Array):
    """The gradient of the kernel is x^T g, and (g^T x)^T only where g is the narrower one.

    JAX always makes the latter. But what stands first is transposed before it is multiplied, which
    x is once for all that it goes into; and the optimizer reads the transpose of a product slowly.
    """
    x, kernel = operands
    num_rows = x.ndim - num_inputs
    inputs, rows = tuple(range(num_inputs)), tuple(range(num_rows))
    outputs = tuple(range(num_inputs, kernel.ndim))
    of_x = jnp.tensordot(gradient, kernel, (tuple(range(num_rows, gradient.ndim)), outputs))
    if gradient.size < x.size:
        of_kernel = jnp.tensordot(gradient, x, (rows, rows))
        return of_x, jnp.moveaxis(of_kernel, tuple(range(-num_inputs, 0)), inputs)
    return of_x, jnp.tensordot(x, gradient, (rows, rows))


product.defvjp(_product_forward, _product_backward)


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    """Layer normalisation over the model dimension, its statistics in float32."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon,
        dtype=config.dtype,
        # Too small to be worth splitting.
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, (None,)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, (None,)),
    )


def sinusoid(positions: Int[Array, "*shape"], d_model: int) -> Float[Array, "*shape model"]:
    """The positional encoding of section 3.5, computed, so that no position is out of range.

    Even features are sin(position / 10000^(i / d_model)) for i = 0, 2, 4, ..., odd ones the cosine.
    """
    rates = 10_000.0 ** (-jnp.arange(0, d_model, 2, dtype=jnp.float32) / d_model)
    angles = positions[..., None].astype(jnp.float32) * rates
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, d_model)


def random_bits(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """uint32 bits, each a hash of `key` and of the element's index in the global array.

    A counter hash costs a tenth of the default generator on a CPU, fuses into its use, and gives
    the same bits on any mesh. The mixer is the finaliser of MurmurHash3, once over the row index
    and once over the index within the row.
    """
    words = jax.random.bits(key, (2,), jnp.uint32)
    rows = jax.lax.broadcasted_iota(jnp.uint32, (shape[0],) + (1,) * (len(shape) - 1), 0)
    within = jnp.zeros((1, *shape[1:]), jnp.uint32)
    for dim in range(1, len(shape)):
        iota = jax.lax.broadcasted_iota(jnp.uint32, within.shape, dim)
        within = within * jnp.uint32(shape[dim]) + iota
    return _mix(_mix(rows ^ words[0]) + words[1] + within)


def _mix(bits: jax.Array) -> jax.Array:
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def drop(x: Float[Array, "*shape"], rate: float, key: jax.Array) -> Float[Array, "*shape"]:
    """Zeroes a share of the elements and scales up the others (section 5.4)."""
    # A hash below the threshold happens with probability 1 - rate, to 2^-32.
    threshold = jnp.uint32(round((1 - rate) * 2**32) - 1)
    keep = random_bits(key, x.shape) <= threshold
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


class Dropout(nn.Module):
    """`drop` in training."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"], deterministic: bool) -> Float[Array, "*shape"]:
        if deterministic or self.rate == 0:
            return x
        return drop(x, self.rate, self.make_rng("dropout"))


class Embedding(nn.Module):
    """Token embeddings times sqrt(d_model) plus positions; their matrix is also the output's.

    The three uses (source, target, output) share one matrix (section 3.4), unless the source has a
    vocabulary, and so a matrix, of its own. Source and target share the positions, where these are
    learned.
    """

    config: ModelConfig
    vocab_size: int
    """Rows of each matrix, before they are rounded up to `vocab_multiple`."""
    shared: bool = True

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.d_model**-0.5)

        def table(name: str, rows: int, axes: tuple[str | None, ...]) -> jax.Array:
            init_fn = nn.with_logical_partitioning(init, axes)
            return self.param(name, init_fn, (rows, config.d_model))

        rows = -(-self.vocab_size // config.vocab_multiple) * config.vocab_multiple
        self.embedding = table("embedding", rows, ("vocab", "model"))
        self.source_embedding = self.embedding
        if not self.shared:
            self.source_embedding = table("source_embedding", rows, ("vocab", "model"))
        if config.positions == "learned":
            self.positions = table("positions", config.max_positions, (None, "model"))
        if config.output_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            self.output_bias = self.param("output_bias", zeros, (rows,))
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self,
        tokens: Int[Array, "batch len"],
        positions: Int[Array, "batch len"],
        deterministic: bool,
        of_source: bool = False,
    ) -> Float[Array, "batch len model"]:
        table = self.source_embedding if of_source else self.embedding
        embedding = gathered(table, "vocab", "model")
        x = jnp.take(embedding, tokens, axis=0) * self.config.d_model**0.5
        if self.config.positions == "learned":
            # A position beyond the table would be NaN; lengths are checked on the host.
            x = x + jnp.take(self.positions, positions, axis=0, mode="fill")
        else:
            x = x + sinusoid(positions, self.config.d_model)
        x = constrain(x.astype(self.config.dtype), "batch", None, "model")
        return self.dropout(x, deterministic)

    def logits(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len vocab"]:
        """The scores of every row in float32; -inf for those beyond the vocabulary."""
        embedding = gathered(self.embedding, "vocab", "model")
        logits = output_product(x, embedding)
        logits = constrain(logits, "batch", None, "vocab")
        if self.config.output_bias:
            logits = logits + self.output_bias
        if len(embedding) > self.vocab_size:
            logits = jnp.where(jnp.arange(len(embedding)) < self.vocab_size, logits, -jnp.inf)
        return logits


@jax.custom_vjp
def output_product(
    x: Float[Array, "batch len model"], embedding: Float[Array, "vocab model"]
) -> Float[Array, "batch len vocab"]:
    """x E^T of section 3.4 in the dtype of `x`, summed up in float32."""
    return _output_product_forward(x, embedding)[0]


def _output_product_forward(x: jax.Array, embedding: jax.Array):
    # The barriers let the compiler round the matrix and the gradient once, not within each product
    # again; with the gradient that is the derivative of the softmax, from logits in float32.
    rounded = jax.lax.optimization_barrier(embedding.astype(x.dtype))
    logits = jnp.einsum("blm,vm->blv", x, rounded, preferred_element_type=jnp.float32)
    return logits, (x, rounded)


def _output_product_backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array):
    x, rounded = residuals
    gradient = jax.lax.optimization_barrier(gradient.astype(x.dtype))
    of_x = jnp.einsum("blv,vm->blm", gradient, rounded)
    return of_x, jnp.einsum("blv,blm->vm", gradient, x, preferred_element_type=jnp.float32)


output_product.defvjp(_output_product_forward, _output_product_backward)


@jax.custom_vjp
def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """max(0, x), whose gradient is read off the result: the compiler need not keep a mask of x."""
    return jax.nn.relu(x)


def _relu_forward(x: jax.Array):
    y = jax.lax.optimization_barrier(relu(x))
    return y, y


relu.defvjp(_relu_forward, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, at every position (section 3.3); the max is that of `relu`."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch len model"], deterministic: bool
    ) -> Float[Array, "batch len model"]:
        config = self.config
        x = dense(config, config.d_ff, ("model", "ff"), name="inner")(x)
        x = constrain(x, "batch", None, "ff")
        x = {"relu": relu, "swish": nn.swish}[config.activation](x)
        x = Dropout(config.ff_dropout_rate)(x, deterministic)
        return dense(config, config.d_model, ("ff", "model"), name="outer")(x)


class Residual(nn.Module):
    """A residual connection around a sub-layer, with normalisation and dropout.

    Post-norm is the paper's LayerNorm(x + Dropout(Sublayer(x))) (section 3.1); pre-norm is
    x + Dropout(Sublayer(LayerNorm(x))). What a sub-layer gives beside its output is handed on.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch len model"],
        sublayer: Callable[[jax.Array], tuple[jax.Array, Any]],
        deterministic: bool,
    ) -> tuple[Float[Array, "batch len model"], Any]:
        norm = layer_norm(self.config)
        dropout = Dropout(self.config.dropout_rate)
        y, beside = sublayer(norm(x) if self.config.norm == "pre" else x)
        y = x + dropout(constrain(y, "batch", None, "model"), deterministic)
        return (y if self.config.norm == "pre" else norm(y)), beside
