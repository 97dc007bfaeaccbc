"""Small models, batches and a corpus that several tests need."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import sharding
from transformer_jax.array_types import Batch, Params
from transformer_jax.config import (
    Config,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
)
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from transformer_jax.model.transformer import Transformer
from transformer_jax.train_step import init_state

VOCAB_SIZE = 24
PAD, BOS, EOS = 0, 1, 2

CORPUS = [
    f"the {adjective} {noun} {verb} {place}"
    for adjective in ("old", "young", "grey", "tired")
    for noun in ("dog", "woman", "teacher", "bird")
    for verb in ("sleeps", "waits", "sings", "reads")
    for place in ("here", "in the garden", "under a tree", "by the river")
]

Pair = tuple[list[int], list[int]]


def small_config(**model) -> Config:
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "dropout_rate": 0.0}
    sizes |= {"vocab_multiple": 1}
    return Config(
        data=DataConfig(max_length=2),  # unused: batches are made by hand
        model=ModelConfig(**(sizes | model)),
        loss=LossConfig(label_smoothing=0.1),
        # With the paper's 1e-9 Adam turns rounding in gradients near zero into whole updates.
        optimizer=OptimizerConfig(warmup_steps=10, epsilon=1e-3),
    )


def small_model(config: Config) -> Transformer:
    return Transformer(config.model, VOCAB_SIZE, BOS)


def small_params(config: Config) -> Params:
    """Weights of a new model."""
    state, _ = init_state(config, small_model(config), one_device())
    return state.params


def both(tokenizer: Tokenizer) -> Tokenizers:
    """One tokenizer for source and target."""
    return Tokenizers(tokenizer, tokenizer)


@functools.cache
def corpus_tokenizer() -> Tokenizer:
    """Of `CORPUS`."""
    return Tokenizer(train_tokenizer(CORPUS, TokenizerConfig(vocab_size=320)))


@functools.cache
def decided_model() -> tuple[Transformer, Params]:
    """Weights decided about what comes next, which end some sentences of `CORPUS` early.

    They are on no device, and so fit any mesh.
    """
    config, tokenizer = small_config(), corpus_tokenizer()
    model = Transformer(config.model, tokenizer.vocab_size, tokenizer.bos_id)
    state, _ = init_state(config, model, one_device())
    return model, jax.tree.map(lambda x: 1.5 * x, jax.device_get(state.params))


def one_device() -> jax.sharding.Mesh:
    return mesh_of(data=1)


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1) -> jax.sharding.Mesh:
    """A mesh of the first devices, where `sharding.make_mesh` takes all."""
    devices = np.array(jax.devices()[: data * fsdp * tensor]).reshape(data, fsdp, tensor)
    return jax.sharding.Mesh(devices, sharding.MESH_AXES)


def random_pairs(seed: int, count: int, longest: int = 9) -> list[Pair]:
    """Sentences of random tokens, each with its end mark."""
    random = np.random.default_rng(seed)

    def sentence() -> list[int]:
        return [*random.integers(4, VOCAB_SIZE, random.integers(1, longest)).tolist(), EOS]

    return [(sentence(), sentence()) for _ in range(count)]


def make_batch(rows: list[list[Pair]], source_length: int, target_length: int) -> Batch:
    """A batch with the given pairs in each row, written out token by token."""
    batch = {}
    for side, which, length in (("inputs", 0, source_length), ("targets", 1, target_length)):
        for part in ("", "_positions", "_segments"):
            batch[side + part] = np.zeros((len(rows), length), np.int32)
        for row, pairs in enumerate(rows):
            column = 0
            for segment, pair in enumerate(pairs, start=1):
                for position, token in enumerate(pair[which]):
                    batch[side][row, column] = token
                    batch[f"{side}_positions"][row, column] = position
                    batch[f"{side}_segments"][row, column] = segment
                    column += 1
    return jax.tree.map(jnp.asarray, batch)
