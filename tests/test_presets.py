"""Table 3 of the paper, row by row."""

import dataclasses
import math

import jax
import pytest
from builders import BOS

from transformer_jax.array_types import Batch
from transformer_jax.config import ModelConfig
from transformer_jax.model.transformer import Transformer
from transformer_jax.presets import PRESETS

# N, d_model, d_ff, h, d_k, d_v, P_drop, label smoothing, as the paper prints them.
PAPER = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, 0.1),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, 0.1),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, 0.1),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, 0.1),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, 0.1),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, 0.1),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, 0.1),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, 0.1),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, 0.1),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, 0.0),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, 0.2),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1),
}
MILLIONS = {
    "base": 65,
    "B1": 58,
    "B2": 60,
    "C1": 36,
    "C2": 50,
    "C3": 80,
    "C4": 28,
    "C5": 168,
    "C6": 53,
    "C7": 90,
    "big": 213,
}


@pytest.mark.parametrize("row", PAPER)
def test_a_row_is_that_of_the_paper(row: str) -> None:
    model, loss, train = PRESETS[row]
    sizes = (model.num_layers, model.d_model, model.d_ff, model.num_heads)
    heads = (model.key_dim, model.value_dim)
    assert (*sizes, *heads, model.dropout_rate, loss.label_smoothing) == PAPER[row]
    assert model.positions == ("learned" if row == "E" else "sinusoidal")
    assert train.num_steps == (300_000 if row == "big" else 100_000)
    assert (model.norm, model.activation, model.attention_bias) == ("post", "relu", False)
    assert model.attention_dropout_rate == model.ff_dropout_rate == 0


def test_no_row_is_missing_and_all_differ() -> None:
    assert set(PRESETS) == {*PAPER, "tiny"}
    rows = [repr(preset) for preset in PRESETS.values()]
    assert len(set(rows)) == len(rows)


def by_formula(row: str, vocab_size: int) -> int:
    """Parameters: attention without biases, two biases in a feed-forward network, one embedding."""
    n, d, ff, h, d_k, d_v, *_ = PAPER[row]
    attention, norm, feed_forward = 2 * d * h * (d_k + d_v), 2 * d, 2 * d * ff + ff + d
    encoder = n * (attention + feed_forward + 2 * norm)
    decoder = n * (2 * attention + feed_forward + 3 * norm)
    learned = 1_024 * d if row == "E" else 0
    return encoder + decoder + vocab_size * d + learned


def count(config: ModelConfig, vocab_size: int, shared: bool = True) -> int:
    """Parameters of the model that is built."""
    model = Transformer(config, vocab_size, BOS, shared)
    one = jax.numpy.ones((1, 1), int)
    batch = dict.fromkeys(Batch.__annotations__, one)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("row", PAPER)
def test_number_of_parameters_is_that_of_the_formula(row: str) -> None:
    """C10: with one matrix for source, target and output."""
    # The embedding has a multiple of 128 rows.
    assert count(PRESETS[row].model, 37_000) == by_formula(row, 37_120)
    separate = by_formula(row, 37_120) + 37_120 * PAPER[row][1]
    assert count(PRESETS[row].model, 37_000, shared=False) == separate


@pytest.mark.parametrize("row", MILLIONS)
def test_number_of_parameters_is_that_of_the_paper(row: str) -> None:
    """For one vocabulary, about which, and about `big`, see the docstring of `presets.py`."""
    vocab_size = 36_000 if row == "big" else 41_100
    assert round(by_formula(row, vocab_size) / 1e6) == MILLIONS[row]
    assert round(by_formula("big", 41_100) / 1e6) == 218


def test_biases_are_counted_too() -> None:
    """In each of 2 + 2 x 2 attentions four biases of d_model; one of the logits."""
    tiny = PRESETS["tiny"].model
    with_biases = dataclasses.replace(tiny, attention_bias=True, output_bias=True)
    assert count(with_biases, 100) - count(tiny, 100) == 6 * 4 * 128 + 128
