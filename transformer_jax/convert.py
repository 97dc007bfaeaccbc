"""Weights as the transformers library stores Marian models ↔ our parameters.

A Marian model is a post-norm Transformer with biases in the attention and in the output. Two
things are laid out in another way there. Linear maps are stored as [outputs, inputs]. And the
features of a position are all sines, then all cosines (`concatenated`), where ours alternate
(`interleaved`, as in section 3.5): the same numbers in another order, so the features of the
residual stream are reordered with them, in every array that reads or writes it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.array_types import Params
from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError

Layout = Literal["concatenated", "interleaved"]
"""How the other model orders the features of a position; Marian's own is `concatenated`."""

StateDict = dict[str, np.ndarray]
"""Arrays by the names of PyTorch, such as `model.encoder.layers.0.fc1.weight`."""


class _Linear(NamedTuple):
    """A linear map: its name there, its path here, and the dims of its inputs and outputs."""

    name: str
    path: tuple[str, ...]
    inputs: str
    outputs: str


_ATTENTIONS = {
    "encoder": {"self_attn": "self"},
    "decoder": {"self_attn": "self", "encoder_attn": "cross"},
}


_MARIAN_FIELDS = {
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "d_model",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
}


def marian_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model that a Marian `config.json` describes.

    Raises UserError where it describes one that `ModelConfig` cannot.
    """
    missing = sorted(_MARIAN_FIELDS - values.keys())
    if missing:
        raise UserError(f"Marian config: {missing[0]} is missing")
    required = {
        "decoder_layers": (values["encoder_layers"], None),
        "decoder_attention_heads": (values["encoder_attention_heads"], None),
        "decoder_ffn_dim": (values["encoder_ffn_dim"], None),
        "scale_embedding": (True, False),
        "share_encoder_decoder_embeddings": (True, True),
        "tie_word_embeddings": (True, True),
        "normalize_before": (False, False),
    }
    for name, (wanted, default) in required.items():
        value = values.get(name, default)
        if value != wanted:
            raise UserError(f"Marian config: {name} is {value!r}: it must be {wanted!r}")
    activation = values["activation_function"]
    return ModelConfig(
        num_layers=values["encoder_layers"],
        d_model=values["d_model"],
        d_ff=values["encoder_ffn_dim"],
        num_heads=values["encoder_attention_heads"],
        dropout_rate=float(values["dropout"]),
        attention_dropout_rate=float(values["attention_dropout"]),
        ff_dropout_rate=float(values["activation_dropout"]),
        activation="swish" if activation == "silu" else activation,
        attention_bias=True,
        output_bias=True,
        layer_norm_epsilon=1e-5,
        vocab_multiple=1,
    )


def from_marian(
    state: Mapping[str, Any], config: ModelConfig, positions: Layout = "concatenated"
) -> Params:
    """Our parameters, in float32, from a Marian state dict, whose values NumPy takes as arrays.

    `config` is that of `marian_model_config`, `positions` the layout of the other model. Files that
    the transformers library saves do not hold the tables of positions; a state dict that does is
    checked against the layout. Raises UserError for a state dict of another model: a name missing
    or unknown, a shape that does not fit, tables of another layout.
    """
    _check_marian_like(config)
    order = _our_order(config, positions)
    left = {name: np.asarray(value, np.float32) for name, value in state.items()}
    params: Params = {}

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in left:
            raise UserError(f"Marian weights: {name} is missing")
        value = left.pop(name)
        if value.shape != shape:
            raise UserError(f"Marian weights: {name} has shape {value.shape}, not {shape}")
        return value

    def put(path: tuple[str, ...], **arrays: np.ndarray) -> None:
        node = params
        for name in path:
            node = node.setdefault(name, {})
        node |= arrays

    sizes = _sizes(config)
    for linear in _linears(config):
        inputs, outputs = (sizes[linear.inputs], sizes[linear.outputs])
        shape = (int(np.prod(outputs)), int(np.prod(inputs)))
        kernel = take(f"{linear.name}.weight", shape).T
        bias = take(f"{linear.name}.bias", shape[:1])
        kernel = kernel[order] if linear.inputs == "model" else kernel
        if linear.outputs == "model":
            kernel, bias = kernel[:, order], bias[order]
        put(linear.path, kernel=kernel.reshape(*inputs, *outputs), bias=bias.reshape(outputs))
    for name, path in _norms(config):
        scale, bias = (take(f"{name}.{part}", sizes["model"]) for part in ("weight", "bias"))
        put(path, scale=scale[order], bias=bias[order])

    shared = np.shape(state.get("model.shared.weight", ()))
    embedding = take("model.shared.weight", (shared or (0,))[:1] + sizes["model"])
    output_bias = take("final_logits_bias", (1, len(embedding)))
    put(("embedding",), embedding=embedding[:, order], output_bias=output_bias[0])
    _check_copies(left, embedding, positions)
    if left:
        raise UserError(f"Marian weights: {min(left)} is not a part of such a model")
    return jax.tree.map(jnp.asarray, params)


def to_marian(
    params: Params,
    config: ModelConfig,
    positions: Layout = "concatenated",
    max_positions: int = 512,
) -> StateDict:
    """The Marian state dict of our parameters; the inverse of `from_marian`.

    `max_positions` is the number of rows of the tables of positions, which a Marian model stores.
    Raises UserError where a Marian model cannot be like `config`, or have these parameters.
    """
    _check_marian_like(config)
    if "source_embedding" in params["embedding"]:
        raise UserError("tokenizer.shared is False: a Marian model here has one vocabulary")
    order = np.argsort(_our_order(config, positions))
    state: StateDict = {}

    def at(path: tuple[str, ...]) -> Params:
        node = params
        for name in path:
            node = node[name]
        return {name: np.asarray(value) for name, value in node.items()}

    for linear in _linears(config):
        kernel, bias = at(linear.path)["kernel"], at(linear.path)["bias"].reshape(-1)
        weight = kernel.reshape(-1, len(bias)).T
        weight = weight[:, order] if linear.inputs == "model" else weight
        if linear.outputs == "model":
            weight, bias = weight[order], bias[order]
        state |= {f"{linear.name}.weight": weight, f"{linear.name}.bias": bias}
    for name, path in _norms(config):
        norm = at(path)
        state |= {f"{name}.weight": norm["scale"][order], f"{name}.bias": norm["bias"][order]}
    shared = at(("embedding",))
    embedding = shared["embedding"][:, order]
    state["final_logits_bias"] = shared["output_bias"][None]
    state |= dict.fromkeys(("model.shared.weight", *_TIED), embedding)
    table = _sinusoids(max_positions, config.d_model, positions)
    return state | dict.fromkeys(_POSITIONS, table)


_TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
_POSITIONS = tuple(f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))


def _check_marian_like(config: ModelConfig) -> None:
    head_dim = config.d_model // config.num_heads
    wanted = {
        "norm": "post",
        "positions": "sinusoidal",
        "attention_bias": True,
        "output_bias": True,
        "layer_norm_epsilon": 1e-5,
        "vocab_multiple": 1,
        "scan_layers": False,
        "key_dim": head_dim,
        "value_dim": head_dim,
    }
    for field, value in wanted.items():
        if getattr(config, field) != value:
            name = {"key_dim": "d_k", "value_dim": "d_v"}.get(field, field)
            raise UserError(
                f"model.{name} is {getattr(config, field)!r}: a Marian model has {value!r}"
            )


def _check_copies(left: StateDict, embedding: np.ndarray, positions: Layout) -> None:
    """Takes from `left` what repeats the embedding, or can be computed, once it is seen equal."""
    for name in _TIED:
        if not np.array_equal(left.pop(name, embedding), embedding):
            raise UserError(f"Marian weights: {name} is not the shared embedding")
    for name in _POSITIONS:
        if name in left:
            table = left.pop(name)
            if not np.allclose(
                table, _sinusoids(*table.shape, positions), atol=1e-3
            ):  # they may be rounded
                raise UserError(
                    f"Marian weights: {name} holds no sines and cosines that are {positions}; "
                    f"the layouts are {', '.join(get_args(Layout))}"
                )


def _linears(config: ModelConfig) -> Iterator[_Linear]:
    for name, layer, attentions in _layers(config):
        for theirs, ours in attentions.items():
            attention, keys_values = f"{ours}_attention", f"{ours}_keys_values"
            for letter, path in (
                ("q", (layer, attention, "query")),
                ("k", (layer, keys_values, "key")),
                ("v", (layer, keys_values, "value")),
            ):
                yield _Linear(f"{name}.{theirs}.{letter}_proj", path, "model", "heads")
            output = (layer, attention, "output")
            yield _Linear(f"{name}.{theirs}.out_proj", output, "heads", "model")
        yield _Linear(f"{name}.fc1", (layer, "feed_forward", "inner"), "model", "ff")
        yield _Linear(f"{name}.fc2", (layer, "feed_forward", "outer"), "ff", "model")


def _norms(config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, layer, attentions in _layers(config):
        for theirs, ours in (attentions | {"final": "ff"}).items():
            yield f"{name}.{theirs}_layer_norm", (layer, f"{ours}_residual", "LayerNorm_0")


def _layers(config: ModelConfig) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every layer: its name there, its name here, and its attentions, from there to here."""
    for stack, attentions in _ATTENTIONS.items():
        for number in range(config.num_layers):
            yield f"model.{stack}.layers.{number}", f"{stack}_layers_{number}", attentions


def _sizes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    heads = (config.num_heads, config.d_model // config.num_heads)
    return {"model": (config.d_model,), "heads": heads, "ff": (config.d_ff,)}


def _our_order(config: ModelConfig, positions: Layout) -> Int[np.ndarray, "model"]:
    """For each of our features of the residual stream, which of the other model's it is."""
    if positions not in get_args(Layout):
        raise UserError(f"positions {positions!r}: the layouts are {', '.join(get_args(Layout))}")
    features = np.arange(config.d_model)
    if positions == "interleaved":
        return features
    return features.reshape(2, -1).T.reshape(-1)


def _sinusoids(length: int, d_model: int, positions: Layout) -> Float[np.ndarray, "length model"]:
    """Section 3.5, in the order of the features of the other model."""
    rates = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] * rates
    axis = 1 if positions == "concatenated" else 2
    sines_cosines = np.stack([np.sin(angles), np.cos(angles)], axis=axis)
    return sines_cosines.reshape(length, d_model).astype(np.float32)
