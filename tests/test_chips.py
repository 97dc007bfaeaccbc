"""Limits of devices, and the FLOPs that a model needs."""

import builders
import jax
import jax.numpy as jnp
import pytest

from transformer_jax.chips import CHIPS, chip_of, model_flops
from transformer_jax.compile import matmul_flops
from transformer_jax.config import ModelConfig
from transformer_jax.model.transformer import Transformer
from transformer_jax.presets import PRESETS


def test_devices_are_found_by_what_jax_calls_them() -> None:
    for kind, name in [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "tpu7x"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
    ]:
        chip = chip_of(kind)
        assert chip is not None
        assert chip.name == name


def test_of_an_unknown_device_nothing_is_known() -> None:
    assert chip_of("cpu") is None
    assert chip_of("TPU v5 something") is None


def test_no_kind_of_device_is_listed_twice() -> None:
    kinds = [kind for chip in CHIPS for kind in chip.device_kinds]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_clocks_and_peaks_fit_the_matrix_units(name: str) -> None:
    """A matrix unit of 128 x 128 does as many multiplications and additions in a cycle."""
    units = {"v4": 8, "v5e": 4, "v5p": 8, "v6e": 16, "tpu7x": 16}[name]
    chip = next(chip for chip in CHIPS if chip.name == name)
    assert chip.clock_hz is not None
    assert chip.clock_hz * units * 2 * 128**2 == pytest.approx(chip.peak_flops, rel=0.01)


def test_a_token_costs_six_flops_for_each_weight_of_a_product() -> None:
    """Base, rows of no length: the parameters of the paper less biases and normalisation."""
    config = PRESETS["base"].model
    d, ff, layers, vocab = 512, 2048, 6, 37_000
    encoder = layers * (4 * d * d + 2 * d * ff)
    cross_keys_values = layers * 2 * d * d
    decoder = layers * (8 * d * d + 2 * d * ff) - cross_keys_values + vocab * d
    assert model_flops(config, vocab, 1, 0, 0, 0) == 6 * (encoder + cross_keys_values)
    assert model_flops(config, vocab, 0, 1, 0, 0) == 6 * decoder
    assert model_flops(config, vocab, 0, 1, 0, 0, training=False) == 2 * decoder


def test_attention_costs_a_product_for_every_query_and_key() -> None:
    config = PRESETS["base"].model
    without = model_flops(config, 37_000, 30, 20, 0, 0)
    pairs = 30 * 30 + 20 * 20 + 20 * 30
    expected = without + 6 * 6 * 2 * 512 * pairs
    assert model_flops(config, 37_000, 30, 20, 30, 20) == expected


@pytest.mark.parametrize(
    "changes", [{}, {"d_k": 8, "d_v": 2}, {"num_layers": 3, "norm": "pre"}, {"num_heads": 1}]
)
def test_the_formula_counts_the_products_of_the_model(changes: dict[str, int]) -> None:
    config = ModelConfig(
        **(
            {"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "vocab_multiple": 1}
            | changes
        )
    )
    model = Transformer(config, builders.VOCAB_SIZE, builders.BOS)
    rows, source, target = 3, 5, 7
    sides = {"inputs": source, "targets": target}
    batch = {
        side + part: jnp.ones((rows, length), jnp.int32)
        for side, length in sides.items()
        for part in ("", "_positions", "_segments")
    }
    variables = jax.eval_shape(model.init, jax.random.key(0), batch)
    jaxpr = jax.make_jaxpr(model.apply)(variables, batch)
    counts = rows * source, rows * target, source, target
    expected = model_flops(config, builders.VOCAB_SIZE, *counts, training=False)
    assert matmul_flops(jaxpr, []) == expected
