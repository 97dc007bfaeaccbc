"""What accelerators can do at most, and how much of it a model needs: the parts of utilisation."""

import os
from typing import NamedTuple

import jax

from transformer_jax.config import ModelConfig


class Chip(NamedTuple):
    """The limits of one device as JAX counts devices, by its maker's data sheet.

    That is a whole chip, except of TPU7x, where each of the two cores of a chip is a device.
    """

    name: str
    device_kinds: tuple[str, ...]
    """What `jax.Device.device_kind` calls it."""
    peak_flops: float
    """Dense products of bfloat16, FLOP/s."""
    hbm_bytes: float
    """Memory, bytes."""
    hbm_bandwidth: float
    """Between memory and the cores, bytes/s."""
    link_bandwidth: float
    """Bytes/s that a device sends at most: over the two links along one dimension of a TPU's
    torus, or over all of a GPU's NVLink (of its PCIe bus, where it has no other)."""
    clock_hz: float | None = None
    """Cycles/s of the compiler's estimates; None where it makes none.

    TPUs: the peak divided by the FLOPs of a cycle, 2 x 128 x 128 of each of the 4 matrix units of
    a core (v4, v5e, v5p), or 2 x 512 x 512 of a core (v6e, TPU7x). The estimates of large matrix
    products come to 70 to 91 % of the peak with these clocks.
    """


GIB = 2**30

CHIPS = (
    Chip("v4", ("TPU v4",), 275e12, 32 * GIB, 1228e9, 100e9, 1.05e9),
    Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16 * GIB, 819e9, 100e9, 1.5e9),
    Chip("v5p", ("TPU v5", "TPU v5p"), 459e12, 95 * GIB, 2765e9, 200e9, 1.75e9),
    Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 32 * GIB, 1638e9, 200e9, 1.75e9),
    Chip("tpu7x", ("TPU7x",), 1153.5e12, 96 * GIB, 3690e9, 100e9, 2.2e9),
    Chip("A100 40GB", ("NVIDIA A100-SXM4-40GB",), 312e12, 40 * GIB, 1555e9, 300e9),
    Chip("A100 80GB", ("NVIDIA A100-SXM4-80GB",), 312e12, 80 * GIB, 2039e9, 300e9),
    Chip("A100 PCIe", ("NVIDIA A100 80GB PCIe",), 312e12, 80 * GIB, 1935e9, 32e9),
    Chip("H100", ("NVIDIA H100 80GB HBM3",), 989e12, 80 * GIB, 3350e9, 450e9),
    Chip("H100 PCIe", ("NVIDIA H100 PCIe",), 756e12, 80 * GIB, 2000e9, 64e9),
    Chip("H200", ("NVIDIA H200",), 989e12, 141e9, 4800e9, 450e9),
)


def chip_of(device_kind: str) -> Chip | None:
    """The limits of a device by its `device_kind`; None of one that is not in the table."""
    for chip in CHIPS:
        if device_kind in chip.device_kinds:
            return chip
    return None


def has_cudnn_attention(device: jax.Device) -> bool:
    """Whether cuDNN has its fused attention for a device: NVIDIA GPUs since Ampere, 8.0."""
    is_nvidia = device.platform == "gpu" and device.device_kind.startswith("NVIDIA")
    return is_nvidia and float(device.compute_capability) >= 8


def model_flops(
    config: ModelConfig,
    vocab_size: int,
    source_tokens: int,
    target_tokens: int,
    source_length: int,
    target_length: int,
    training: bool = True,
) -> float:
    """FLOPs of the matrix products that a model cannot do without, for so many tokens.

    A token costs 2 FLOPs for every weight that it meets in a matrix product, and as many again
    for the gradients of its activations and of the weights: 6 x weights x tokens when `training`,
    2 otherwise. Source tokens meet the encoder's weights and those of the keys and values of the
    attention to the source; target tokens meet the others of the decoder and the output's.
    Embeddings are looked up, not multiplied.

    Attention adds, for every query, head and key, the same number for d_k + d_v products: keys are
    `source_length` or `target_length`, the tokens of a row, those that a mask forbids counted.
    Nothing else is counted, neither what is computed again to save memory, nor dropout, softmax,
    normalisation, loss and optimizer.
    """
    model, layers = config.d_model, config.num_layers
    query_and_output = model * config.num_heads * (config.key_dim + config.value_dim)
    keys_and_values = query_and_output
    feed_forward = 2 * model * config.d_ff
    source_weights = layers * (query_and_output + 2 * keys_and_values + feed_forward)
    target_weights = layers * (2 * query_and_output + keys_and_values + feed_forward)
    target_weights += vocab_size * model
    products = source_weights * source_tokens + target_weights * target_tokens
    pairs = source_tokens * source_length + target_tokens * (target_length + source_length)
    products += layers * config.num_heads * (config.key_dim + config.value_dim) * pairs
    return (6.0 if training else 2.0) * products


def program_memory(compiled: jax.stages.Compiled) -> int:
    """Bytes of a device that a program needs by the compiler's count: what it is given, and more.

    What it gives takes the place of what it is given, or is small.
    """
    memory = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def device_memory() -> int:
    """Bytes that programs on a device can have: of a CPU, all there is of the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
