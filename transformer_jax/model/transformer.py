"""The encoder-decoder Transformer (figure 1)."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.array_types import Batch, Logits, Params, Sources, Targets
from transformer_jax.config import ModelConfig
from transformer_jax.model import masks
from transformer_jax.model.attention import Attention, KeysValues, ProjectKeysValues, insert
from transformer_jax.model.layers import Embedding, FeedForward, Residual, layer_norm
from transformer_jax.sharding import constrain


class Memory(NamedTuple):
    """What decoding needs of the source sentences, computed once."""

    keys_values: tuple[KeysValues, ...]
    """Of each decoder layer's attention to the source; [batch, src, heads, head_dim]."""
    bias: Float[Array, "batch 1 1 src"]
    """Forbids the padding of the source."""


Cache = tuple[KeysValues, ...]
"""Of each decoder layer's attention to the target; [batch, beam, length, heads, head_dim]."""


class EncoderLayer(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch src model"],
        bias: Float[Array, "batch 1 src src"],
        deterministic: bool,
    ) -> Float[Array, "batch src model"]:
        config = self.config
        project = ProjectKeysValues(config, name="self_keys_values")
        attention = Attention(config, name="self_attention")
        feed_forward = FeedForward(config, name="feed_forward")
        x = Residual(config, name="self_residual")(
            x, lambda y: attention(y, project(y), bias, deterministic), deterministic
        )
        return Residual(config, name="ff_residual")(
            x, lambda y: feed_forward(y, deterministic), deterministic
        )


class DecoderLayer(nn.Module):
    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.self_keys_values = ProjectKeysValues(config)
        self.self_attention = Attention(config)
        self.self_residual = Residual(config)
        self.cross_keys_values = ProjectKeysValues(config)
        self.cross_attention = Attention(config)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.ff_residual = Residual(config)

    def project_memory(self, encoded: Float[Array, "batch src model"]) -> KeysValues:
        """The keys and values of the source."""
        return self.cross_keys_values(encoded)

    def __call__(
        self,
        x: Float[Array, "batch tgt model"],
        encoded: Float[Array, "batch src model"],
        self_bias: Float[Array, "batch 1 tgt tgt"],
        cross_bias: Float[Array, "batch 1 tgt src"],
        deterministic: bool,
    ) -> Float[Array, "batch tgt model"]:
        def attend(y):
            return self.self_attention(y, self.self_keys_values(y), self_bias, deterministic)

        x = self.self_residual(x, attend, deterministic)
        memory = self.project_memory(encoded)
        return self._after_self_attention(x, memory, cross_bias, deterministic)

    def step(
        self,
        x: Float[Array, "batch beam model"],
        memory: KeysValues,
        cross_bias: Float[Array, "batch 1 1 src"],
        cache: KeysValues,
        index: Int[Array, ""],
    ) -> tuple[Float[Array, "batch beam model"], KeysValues]:
        """One target position of every beam; the beams are the queries on the shared memory."""
        batch, beam, _ = x.shape

        def fold(y):  # each beam has a past of its own
            return y.reshape(batch * beam, *y.shape[2:])

        past = KeysValues(fold(cache.keys), fold(cache.values))
        allowed = jnp.arange(past.keys.shape[1]) <= index
        updated = past

        def attend(y):
            nonlocal updated
            y = fold(y)[:, None]
            updated = insert(past, self.self_keys_values(y), index)
            out = self.self_attention(y, updated, masks.to_bias(allowed[None, None]), True)
            return out.reshape(batch, beam, -1)

        x = self.self_residual(x, attend, True)
        cache = KeysValues(*(y.reshape(batch, beam, *y.shape[1:]) for y in updated))
        return self._after_self_attention(x, memory, cross_bias, True), cache

    def _after_self_attention(self, x, memory, cross_bias, deterministic):
        x = self.cross_residual(
            x, lambda y: self.cross_attention(y, memory, cross_bias, deterministic), deterministic
        )
        return self.ff_residual(x, lambda y: self.feed_forward(y, deterministic), deterministic)


class Transformer(nn.Module):
    """Maps source and target tokens to logits; also in two parts, for decoding."""

    config: ModelConfig
    vocab_size: int
    bos_id: int
    shared: bool = True
    """Whether source and target have one vocabulary; else each has one of `vocab_size` pieces."""

    def setup(self) -> None:
        config = self.config
        self.embedding = Embedding(config, self.vocab_size, self.shared)
        # The arguments that are counted here are those of __call__, the module itself being 0.
        encoder_layer = _remat(config, EncoderLayer, deterministic=3)
        decoder_layer = _remat(config, DecoderLayer, deterministic=5)
        if config.scan_layers:
            self.encoder_layers = encoder_layer(config)
            self.decoder_layers = decoder_layer(config)
        else:
            self.encoder_layers = [encoder_layer(config) for _ in range(config.num_layers)]
            self.decoder_layers = [decoder_layer(config) for _ in range(config.num_layers)]
        # Post-norm layers end with a normalisation; pre-norm stacks need one at their end.
        if config.norm == "pre":
            self.encoder_norm = layer_norm(config)
            self.decoder_norm = layer_norm(config)

    def __call__(self, batch: Batch, deterministic: bool = True) -> Logits:
        """Logits of every target token given the ones before it, in float32 (teacher forcing).

        Those of rows that `vocab_multiple` adds to the vocabulary can never be chosen.
        """
        return self.logits(self.decode(batch, deterministic))

    def decode(self, batch: Batch, deterministic: bool = True) -> Float[Array, "batch tgt model"]:
        """The decoder's output, of which `logits` makes logits (section 3.1)."""
        segments = batch["targets_segments"]
        encoded = self.encode(
            batch["inputs"], batch["inputs_positions"], batch["inputs_segments"], deterministic
        )
        self_bias = masks.to_bias(masks.causal_same_segment(segments))
        cross_bias = masks.to_bias(masks.same_segment(segments, batch["inputs_segments"]))
        shifted = shift_right(batch["targets"], batch["targets_positions"], self.bos_id)
        x = self.embedding(shifted, batch["targets_positions"], deterministic)
        x = self._stack(self.decoder_layers, x, encoded, self_bias, cross_bias, deterministic)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len vocab"]:
        """The logits of the decoder's output, in float32."""
        return self.embedding.logits(x)

    def encode(
        self, inputs: Sources, positions: Sources, segments: Sources, deterministic: bool = True
    ) -> Float[Array, "batch src model"]:
        """The encoder's output (section 3.1)."""
        bias = masks.to_bias(masks.same_segment(segments, segments))
        x = self.embedding(inputs, positions, deterministic, of_source=True)
        x = self._stack(self.encoder_layers, x, bias, deterministic)
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def remember(self, inputs: Sources, segments: Sources) -> Memory:
        """Encodes sentences, one a row, and projects all that decoding needs of them."""
        positions = jnp.where(segments != 0, jnp.arange(inputs.shape[1]), 0)
        encoded = self.encode(inputs, positions, segments)
        keys_values = tuple(layer.project_memory(encoded) for layer in self.decoder_layers)
        return Memory(keys_values, masks.to_bias((segments != 0)[:, None, :]))

    def decode_step(
        self, tokens: Int[Array, "batch beam"], index: Int[Array, ""], memory: Memory, cache: Cache
    ) -> tuple[Float[Array, "batch beam vocab"], Cache]:
        """Logits of the token after `tokens`, which stand at position `index` of every beam."""
        x = self.embedding(tokens, jnp.broadcast_to(index, tokens.shape), deterministic=True)
        updated = []
        for layer, keys_values, past in zip(
            self.decoder_layers, memory.keys_values, cache, strict=True
        ):
            x, present = layer.step(x, keys_values, memory.bias, past, index)
            updated.append(present)
        x = self.decoder_norm(x) if self.config.norm == "pre" else x
        # What is beyond the vocabulary would be chosen where the beam exceeds it.
        return self.embedding.logits(x)[:, :, : self.vocab_size], tuple(updated)

    def _stack(self, layers, x: Float[Array, "batch len model"], *arguments):
        """All layers of the encoder or of the decoder, one after the other."""
        if not self.config.scan_layers:
            for layer in layers:
                x = layer(x, *arguments)
            return x
        scan = nn.scan(
            lambda layer, x: (layer(x, *arguments), None),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scan(layers, x)[0]


def _remat(config: ModelConfig, layer: type[nn.Module], deterministic: int) -> type[nn.Module]:
    """The layer with what `config.remat` says computed again in the backward pass."""
    if config.remat == "none":
        return layer
    policies = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
    return nn.remat(layer, policy=policies[config.remat], static_argnums=(deterministic,))


def stack_layers(params: Params) -> Params:
    """Parameters of layers one by one → as `scan_layers` has them, with a leading dim of layers.

    `encoder_layers_0`, `encoder_layers_1`, ... become `encoder_layers`, and so for the decoder.
    """
    stacked = {name: value for name, value in params.items() if "_layers_" not in name}
    for stack in ("encoder_layers", "decoder_layers"):
        layers = [params[f"{stack}_{i}"] for i in range(_num_layers(params, stack))]
        stacked[stack] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return stacked


def unstack_layers(params: Params) -> Params:
    """The inverse of `stack_layers`."""
    stacks = ("encoder_layers", "decoder_layers")
    separate = {name: value for name, value in params.items() if name not in stacks}
    for stack in stacks:
        for i in range(len(jax.tree.leaves(params[stack])[0])):
            separate[f"{stack}_{i}"] = jax.tree.map(lambda leaf, i=i: leaf[i], params[stack])
    return separate


def _num_layers(params: Params, stack: str) -> int:
    return sum(name.startswith(f"{stack}_") for name in params)


def shift_right(targets: Targets, positions: Targets, bos_id: int) -> Targets:
    """The decoder's input: each sentence's start mark, then its tokens but the last."""
    return jnp.where(positions == 0, bos_id, jnp.roll(targets, 1, axis=1))


def empty_cache(config: ModelConfig, batch: int, beam: int, length: int) -> Cache:
    """A cache for `length` target positions."""

    def zeros(head_dim: int) -> Array:
        empty = jnp.zeros((batch, beam, length, config.num_heads, head_dim), config.dtype)
        return constrain(empty, "batch", None, None, "heads", "head_dim")

    return (KeysValues(zeros(config.key_dim), zeros(config.value_dim)),) * config.num_layers
