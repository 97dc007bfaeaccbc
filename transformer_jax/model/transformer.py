"""The encoder-decoder Transformer (figure 1)."""

from dataclasses import replace
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.array_types import Batch, Logits, Params, Sources, Targets
from transformer_jax.config import ModelConfig
from transformer_jax.model import masks
from transformer_jax.model.attention import (
    Attention,
    KeysValues,
    ProjectKeysValues,
    bias_or_mask,
    project,
)
from transformer_jax.model.layers import Embedding, FeedForward, Residual, layer_norm
from transformer_jax.model.masks import Mask
from transformer_jax.sharding import constrain


class Memory(NamedTuple):
    """What decoding needs of the source sentences, computed once."""

    keys_values: tuple[KeysValues, ...]
    """Of each decoder layer's attention to the source."""
    bias: Float[Array, "batch 1 1 src"]
    """Forbids the padding of the source."""

    def reorder(self, _parents: Int[Array, "batch beam"]) -> "Memory":
        """The same: all hypotheses of a sentence share it."""
        return self

    def grow(self, _length: int) -> "Memory":
        """The same, as it does not grow with the target."""
        return self


class Cache(NamedTuple):
    """What decoding remembers of the target.

    Hypotheses that go on from one leave its past where it is: a beam attends to the places of all
    beams, but for those that are not its past. So the search copies a table of small numbers, and
    never keys and values.
    """

    keys_values: tuple[KeysValues, ...]
    """Of each decoder layer's attention to the target: [batch, ...], length x beam of them."""
    places: Int[Array, "batch beam length"]
    """The beam in whose place stands what a hypothesis was at each position before."""

    def reorder(self, parents: Int[Array, "batch beam"]) -> "Cache":
        """That of the hypotheses which go on from those of the beams `parents`."""
        chosen = jnp.take_along_axis(self.places, parents[:, :, None], axis=1)
        return self._replace(places=chosen)

    def grow(self, length: int) -> "Cache":
        """The same with room for `length` target positions."""
        beam = self.places.shape[1]
        missing = max(0, length - self.places.shape[2])
        grown = tuple(each.grow(length * beam) for each in self.keys_values)
        return Cache(grown, jnp.pad(self.places, [(0, 0), (0, 0), (0, missing)]))


class AttentionWeights(NamedTuple):
    """How much each position attends to each, head by head; the weights of a query sum to 1.

    The query at target position t sees the tokens before t, and predicts token t.
    """

    encoder: Float[Array, "layers batch heads src src"]
    decoder: Float[Array, "layers batch heads tgt tgt"]
    cross: Float[Array, "layers batch heads tgt src"]


class EncoderLayer(nn.Module):
    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.self_keys_values = ProjectKeysValues(config)
        self.self_attention = Attention(config)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.ff_residual = Residual(config)

    def __call__(
        self,
        x: Float[Array, "batch src model"],
        bias: Float[Array, "batch 1 src src"] | Mask,
        deterministic: bool,
    ) -> Float[Array, "batch src model"]:
        return self.with_weights(x, bias, deterministic)[0]

    def with_weights(
        self,
        x: Float[Array, "batch src model"],
        bias: Float[Array, "batch 1 src src"] | Mask,
        deterministic: bool,
    ) -> tuple[Float[Array, "batch src model"], Float[Array, "batch heads src src"] | None]:
        """The output, and the weights of the attention."""

        def attend(y):
            queries, keys_values = self.self_keys_values.with_queries(y, self.self_attention.query)
            return self.self_attention(queries, keys_values, bias, deterministic)

        x, weights = self.self_residual(x, attend, deterministic)
        return _feed_forward(self, x, deterministic), weights


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
        self_bias: Float[Array, "batch 1 tgt tgt"] | Mask,
        cross_bias: Float[Array, "batch 1 tgt src"] | Mask,
        deterministic: bool,
    ) -> Float[Array, "batch tgt model"]:
        return self.with_weights(x, encoded, self_bias, cross_bias, deterministic)[0]

    def with_weights(
        self,
        x: Float[Array, "batch tgt model"],
        encoded: Float[Array, "batch src model"],
        self_bias: Float[Array, "batch 1 tgt tgt"] | Mask,
        cross_bias: Float[Array, "batch 1 tgt src"] | Mask,
        deterministic: bool,
    ) -> tuple[
        Float[Array, "batch tgt model"],
        tuple[
            Float[Array, "batch heads tgt tgt"] | None, Float[Array, "batch heads tgt src"] | None
        ],
    ]:
        """The output, and the weights of the attention to the target and to the source."""

        def attend(y):
            queries, keys_values = self.self_keys_values.with_queries(y, self.self_attention.query)
            return self.self_attention(queries, keys_values, self_bias, deterministic)

        x, self_weights = self.self_residual(x, attend, deterministic)
        memory = self.project_memory(encoded)
        x, cross_weights = self._after_self_attention(x, memory, cross_bias, deterministic)
        return x, (self_weights, cross_weights)

    def step(
        self,
        x: Float[Array, "batch beam model"],
        self_bias: Float[Array, "batch 1 beam past"],
        memory: KeysValues,
        cross_bias: Float[Array, "batch 1 1 src"],
        past: KeysValues,
        place: Int[Array, ""],
    ) -> tuple[Float[Array, "batch beam model"], KeysValues]:
        """One target position of every beam, kept from `place` on; the beams are the queries."""

        def attend(y):
            queries, new = self.self_keys_values.with_queries(y, self.self_attention.query)
            present = past.insert(new, place)
            return self.self_attention(queries, present, self_bias, True, decoding=True)[0], present

        x, present = self.self_residual(x, attend, True)
        return self._after_self_attention(x, memory, cross_bias, True, decoding=True)[0], present

    def _after_self_attention(self, x, memory, cross_bias, deterministic, decoding=False):
        def attend(y):
            (queries,) = project(y, self.cross_attention.query)
            return self.cross_attention(queries, memory, cross_bias, deterministic, decoding)

        x, weights = self.cross_residual(x, attend, deterministic)
        return _feed_forward(self, x, deterministic), weights


def _feed_forward(layer: EncoderLayer | DecoderLayer, x: jax.Array, deterministic: bool):
    def apply(y):
        return layer.feed_forward(y, deterministic), None

    return layer.ff_residual(x, apply, deterministic)[0]


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

        Those of rows that `vocab_multiple` adds to the vocabulary are -inf.
        """
        return self.logits(self.decode(batch, deterministic))

    def decode(self, batch: Batch, deterministic: bool = True) -> Float[Array, "batch tgt model"]:
        """The decoder's output, of which `logits` makes logits (section 3.1)."""
        encoded = self.encode(
            batch["inputs"], batch["inputs_positions"], batch["inputs_segments"], deterministic
        )
        x, *target_masks = self._embed_target(batch, deterministic)
        biases = [bias_or_mask(self.config, mask) for mask in target_masks]
        x = self._stack(self.decoder_layers, x, encoded, *biases, deterministic)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len vocab"]:
        """The logits of the decoder's output, in float32."""
        return self.embedding.logits(x)

    def encode(
        self, inputs: Sources, positions: Sources, segments: Sources, deterministic: bool = True
    ) -> Float[Array, "batch src model"]:
        """The encoder's output (section 3.1)."""
        x, mask = self._embed_source(inputs, positions, segments, deterministic)
        bias = bias_or_mask(self.config, mask)
        x = self._stack(self.encoder_layers, x, bias, deterministic)
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def attention_weights(self, batch: Batch) -> AttentionWeights:
        """The weights of every attention in the forward pass of `__call__` without dropout.

        For a model of `unrolled` whose `config.attention` is "xla".
        """
        x, mask = self._embed_source(
            batch["inputs"], batch["inputs_positions"], batch["inputs_segments"], True
        )
        encoder, decoder = [], []
        for layer in self.encoder_layers:
            x, weights = layer.with_weights(x, mask.bias(), True)
            encoder.append(weights)
        encoded = self.encoder_norm(x) if self.config.norm == "pre" else x
        x, *target_masks = self._embed_target(batch, True)
        biases = [mask.bias() for mask in target_masks]
        for layer in self.decoder_layers:
            x, weights = layer.with_weights(x, encoded, *biases, True)
            decoder.append(weights)
        self_weights, cross_weights = zip(*decoder, strict=True)
        return AttentionWeights(*map(jnp.stack, (encoder, self_weights, cross_weights)))

    def _embed_source(self, inputs, positions, segments, deterministic):
        x = self.embedding(inputs, positions, deterministic, of_source=True)
        return x, masks.whole(segments, segments)

    def _embed_target(self, batch: Batch, deterministic: bool):
        segments, positions = batch["targets_segments"], batch["targets_positions"]
        shifted = shift_right(batch["targets"], positions, self.bos_id)
        return (
            self.embedding(shifted, positions, deterministic),
            masks.causal(segments),
            masks.whole(segments, batch["inputs_segments"]),
        )

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
        beam = tokens.shape[1]
        places = cache.places.at[:, :, index].set(jnp.arange(beam))
        bias = masks.to_bias(masks.own_past(places, index))
        updated = []
        for layer, keys_values, past in zip(
            self.decoder_layers, memory.keys_values, cache.keys_values, strict=True
        ):
            x, present = layer.step(x, bias, keys_values, memory.bias, past, index * beam)
            updated.append(present)
        x = self.decoder_norm(x) if self.config.norm == "pre" else x
        return self.embedding.logits(x), Cache(tuple(updated), places)

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


def unrolled(model: Transformer, params: Params) -> tuple[Transformer, Params]:
    """The same function with layers one by one, as decoding needs them."""
    if not model.config.scan_layers:
        return model, params
    return model.clone(config=replace(model.config, scan_layers=False)), unstack_layers(params)


def _num_layers(params: Params, stack: str) -> int:
    return sum(name.startswith(f"{stack}_") for name in params)


def shift_right(targets: Targets, positions: Targets, bos_id: int) -> Targets:
    """The decoder's input: each sentence's start mark, then its tokens but the last."""
    return jnp.where(positions == 0, bos_id, jnp.roll(targets, 1, axis=1))


def empty_cache(config: ModelConfig, batch: int, beam: int, length: int) -> Cache:
    """A cache for `length` target positions."""

    def zeros(*shape: int) -> Array:
        empty = jnp.zeros((batch, config.num_heads, *shape), config.dtype)
        return constrain(empty, "batch", "heads", None, None)

    places = length * beam
    layer = KeysValues(zeros(config.key_dim, places), zeros(places, config.value_dim))
    return Cache((layer,) * config.num_layers, jnp.zeros((batch, beam, length), jnp.int32))
