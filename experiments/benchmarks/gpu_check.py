"""Checks and measures on one GPU; `gpu_check.sh` beside it says how it is started.

Tokens are random: neither time nor parity depends on what they mean.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax import sharding
from transformer_jax.array_types import Batch, Params
from transformer_jax.chips import chip_of, has_cudnn_attention, model_flops
from transformer_jax.compile import SPECIAL
from transformer_jax.config import Config, DataConfig, DecodeConfig, MeshConfig, TrainConfig
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.data.text import atomic_writer
from transformer_jax.errors import UserError
from transformer_jax.model.attention import use_cudnn
from transformer_jax.model.transformer import Transformer
from transformer_jax.presets import PRESETS
from transformer_jax.train_step import (
    abstract_batch,
    abstract_state,
    batch_loss,
    init_state,
    jit_train_step,
)
from transformer_jax.translate import padded_length, search

TOLERANCES = {
    "float32": {"loss": 1e-5, "gradient": 1e-3},
    "bfloat16": {"loss": 5e-3, "gradient": 0.1},
}
"""Largest relative errors of the loss, and of all gradients as one vector, by the type of the
computation; the reference is the CPU in float32."""
Row = dict[str, Any]
"""A measurement, as it stands in the JSON."""


class Sizes(NamedTuple):
    """How much is measured. Tokens are those of one side, source or target."""

    vocab_size: int
    length: int
    """Tokens of a row."""
    tokens_per_update: tuple[int, ...]
    compared: int
    """The one of them at which the implementations of attention are compared."""
    changes: dict[str, int]
    """Of the models."""
    rounds: int
    """Rounds of A B, or of A alone, of which the median is taken."""
    updates: int
    """Updates of a round."""
    sentences: int
    steps: tuple[int, int]
    """Tokens of the shortest and of the longest source, and of its translation."""


FULL = Sizes(37_000, 256, (24_576, 98_304), 24_576, {}, 6, 5, 64, (20, 60))
SMALL_MODEL = {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 2}
TINY = Sizes(320, 16, (64, 256), 64, SMALL_MODEL, 3, 3, 4, (3, 8))


# --- Parity --------------------------------------------------------------------------------------


def parity(device: jax.Device) -> list[Row]:
    """Loss and gradients of a small model with dropout on `device`, against those of the CPU."""
    sizes = SMALL_MODEL | {"d_model": 64}
    model = replace(PRESETS["base"].model, **sizes, attention="xla")
    batch = random_batch(512, rows=4, length=32, filled=[32, 25, 9, 0])
    config = Config(model=model, data=DataConfig(max_length=32))
    cpu = jax.devices("cpu")[0]
    params = init_state(config, _model(config, 512), mesh_of(cpu))[0].params
    params = jax.device_get(params)
    expected = loss_and_gradients(config, params, batch, cpu)
    rows = []
    for dtype, attention in (("float32", "xla"), ("bfloat16", "xla"), ("bfloat16", "auto")):
        changed = replace(config, model=replace(model, dtype=dtype, attention=attention))
        loss, gradient = loss_and_gradients(changed, params, batch, device)
        norm = float(np.linalg.norm(gradient - expected[1]) / np.linalg.norm(expected[1]))
        errors = {"loss": abs(loss / expected[0] - 1), "gradient": norm}
        most = TOLERANCES[dtype]
        row = {"dtype": dtype, "attention": attention_of(changed, 32)}
        row |= {f"{name}_error": error for name, error in errors.items()}
        row |= {f"{name}_tolerance": most[name] for name in errors}
        rows.append(row | {"passed": all(errors[name] <= most[name] for name in errors)})
    return rows


def loss_and_gradients(
    config: Config, params: Params, batch: Batch, device: jax.Device
) -> tuple[float, np.ndarray]:
    """The loss of a batch with dropout, and its gradients as one vector, computed on a device."""

    def loss(params: Params, batch: Batch) -> jax.Array:
        return batch_loss(config, _model(config, 512), params, batch, jax.random.key(1)).loss

    # GPUs compute products of float32 with fewer digits, unless told otherwise.
    with jax.default_matmul_precision("highest"), jax.default_device(device):
        value, gradients = jax.device_get(jax.jit(jax.value_and_grad(loss))(params, batch))
    leaves = jax.tree.leaves(gradients)
    return float(value), np.concatenate([leaf.ravel() for leaf in leaves]).astype(np.float64)


# --- Training ------------------------------------------------------------------------------------


def training(name: str, sizes: Sizes, device: jax.Device, say: Callable[[str], None]) -> list[Row]:
    """Speed of the update of a preset; with both ways of attention at `sizes.compared`."""
    rows: list[Row] = []
    mesh = mesh_of(device)
    smallest = train_config(name, sizes, sizes.tokens_per_update[0])
    state, _ = init_state(smallest, _model(smallest, sizes.vocab_size), mesh)
    for tokens in sizes.tokens_per_update:
        say(f"training {name}, {tokens:,} tokens an update")
        config = train_config(name, sizes, tokens)
        if rows:  # temporaries grow with the tokens of a micro-batch
            needed = rows[0]["memory_bytes"] * tokens / rows[0]["tokens_per_update"]
            parts = micro_batches(needed, memory_limit(device))
            config = replace(config, train=TrainConfig(num_micro_batches=parts))
        ways = ("auto", "xla") if tokens == sizes.compared else ("auto",)
        configs = [replace(config, model=replace(config.model, attention=way)) for way in ways]
        programs = [compile_update(one, sizes.vocab_size, mesh) for one in configs]
        batch = random_batch(sizes.vocab_size, tokens // sizes.length, sizes.length)
        state, seconds = time_updates(programs, state, sharding.to_global(batch, mesh), sizes)
        for one, program, taken in zip(configs, programs, seconds, strict=True):
            rows.append(training_row(name, one, sizes, device, program, taken))
    return rows


def train_config(name: str, sizes: Sizes, tokens: int) -> Config:
    """A model of the paper in bfloat16, with an update of so many tokens on each side."""
    model = replace(PRESETS[name].model, dtype="bfloat16", **sizes.changes)
    data = DataConfig(max_length=sizes.length, tokens_per_update=tokens)
    return Config(model=model, data=data, loss=PRESETS[name].loss)


def compile_update(config: Config, vocab_size: int, mesh: Mesh) -> jax.stages.Compiled:
    """The update of training for a full batch."""
    model = _model(config, vocab_size)
    state = abstract_state(config, model, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    length = config.data.max_length
    rows = config.data.tokens_per_update // length
    batch = abstract_batch(BatchShape(rows, length, length), mesh)
    with jax.set_mesh(mesh):
        return jit_train_step(config, model, shardings, mesh).lower(state, batch).compile()


def time_updates(programs, state, batch: Batch, sizes: Sizes) -> tuple[Any, list[float]]:
    """Median seconds of an update by each program, which take turns: A B A B ...

    The state goes through all of them, and comes back; the first two updates of each are warm-up.
    """
    seconds: list[list[float]] = [[] for _ in programs]
    for program in programs:
        for _ in range(2):
            state, _ = program(state, batch)
    jax.block_until_ready(state)
    for _ in range(sizes.rounds):
        for program, mine in zip(programs, seconds, strict=True):
            start = time.perf_counter()
            for _ in range(sizes.updates):
                state, _ = program(state, batch)
            jax.block_until_ready(state)
            mine.append((time.perf_counter() - start) / sizes.updates)
    return state, [median(mine) for mine in seconds]


def training_row(
    name: str,
    config: Config,
    sizes: Sizes,
    device: jax.Device,
    program: jax.stages.Compiled,
    seconds: float,
) -> Row:
    """Utilisation is model FLOPs / (seconds x peak), None of a device whose peak is not known."""
    tokens, length = config.data.tokens_per_update, sizes.length
    flops = model_flops(config.model, sizes.vocab_size, tokens, tokens, length, length)
    chip = chip_of(device.device_kind)
    memory = program.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return {
        "model": name,
        "attention": attention_of(config, length),
        "tokens_per_update": tokens,
        "num_micro_batches": config.train.num_micro_batches,
        "seconds": seconds,
        "tokens_per_second": 2 * tokens / seconds,
        "utilisation": None if chip is None else flops / (seconds * chip.peak_flops),
        "memory_bytes": used + memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }


def micro_batches(needed: float, limit: float) -> int:
    """The smallest power of two in so many parts of which `needed` bytes fit into `limit`."""
    parts = 1
    while needed / parts > limit and parts < 64:
        parts *= 2
    return parts


def memory_limit(device: jax.Device) -> float:
    """Bytes that programs may take: less than JAX has, for the batch and what is fragmented."""
    statistics = device.memory_stats() or {}
    return 0.85 * statistics.get("bytes_limit", float("inf"))


def compare(rows: list[Row]) -> list[Row]:
    """XLA's time of an update / the time with the attention that `auto` is here."""
    return [
        {
            "model": a["model"],
            "tokens_per_update": a["tokens_per_update"],
            "attention": a["attention"],
            "xla_seconds_ratio": b["seconds"] / a["seconds"],
        }
        for a, b in pairwise(rows)
        if (a["model"], a["tokens_per_update"]) == (b["model"], b["tokens_per_update"])
    ]


# --- Beam search ---------------------------------------------------------------------------------


def beam_search(sizes: Sizes, device: jax.Device) -> Row:
    """Speed of the search of base for random sentences, with weights that are random too.

    By `min_length` no translation ends before its limit, which is the length of its source.
    """
    config = train_config("base", sizes, sizes.tokens_per_update[0])
    model, mesh = _model(config, sizes.vocab_size), mesh_of(device)
    params = init_state(config, model, mesh)[0].params
    lengths = np.linspace(*sizes.steps, sizes.sentences).astype(int)
    length = padded_length(max(sizes.steps))
    batch = random_batch(sizes.vocab_size, sizes.sentences, length, filled=lengths)
    arrays = batch["inputs"], (batch["inputs_segments"] > 0).astype(np.int32), lengths[:, None]
    decode = DecodeConfig(beam_size=4, min_length=max(sizes.steps))
    jitted = jax.jit(partial(search, (model,), decode, SPECIAL))
    arguments = [sharding.spread(np.asarray(array, np.int32), mesh) for array in arrays]
    seconds = []
    with jax.set_mesh(mesh):
        result = jax.block_until_ready(jitted((params,), *arguments))
        for _ in range(sizes.rounds):
            start = time.perf_counter()
            jax.block_until_ready(jitted((params,), *arguments))
            seconds.append(time.perf_counter() - start)
    tokens = (np.asarray(result.tokens)[:, 0] != SPECIAL.pad).sum(axis=1)
    return {
        "model": "base",
        "beam_size": decode.beam_size,
        "sentences": sizes.sentences,
        "steps": int(tokens.max()),
        "seconds": median(seconds),
        "sentences_per_second": sizes.sentences / median(seconds),
        "tokens_per_second": int(tokens.sum()) / median(seconds),
    }


# --- All -----------------------------------------------------------------------------------------


def random_batch(vocab_size: int, rows: int, length: int, filled=None) -> Batch:
    """Random tokens in sentences of 25 on average; row i has `filled[i]` tokens, all by default."""
    random = np.random.default_rng(0)
    index = np.broadcast_to(np.arange(length), (rows, length))
    is_token = index < (length if filled is None else np.asarray(filled)[:, None])
    begins = (random.random((rows, length)) < 1 / 25) | (index == 0)
    starts = np.maximum.accumulate(np.where(begins, index, 0), axis=1)
    batch = {}
    for side in ("inputs", "targets"):
        tokens = random.integers(max(SPECIAL) + 1, vocab_size, (rows, length))
        parts = {"": tokens, "_positions": index - starts, "_segments": begins.cumsum(axis=1)}
        for part, values in parts.items():
            batch[side + part] = np.where(is_token, values, 0).astype(np.int32)
    return batch  # type: ignore[return-value]


def attention_of(config: Config, length: int) -> str:
    """Which implementation computes attention here."""
    return "cudnn" if use_cudnn(config.model, length, length) else "xla"


def mesh_of(device: jax.Device) -> Mesh:
    return sharding.make_mesh(MeshConfig(), [device])


def _model(config: Config, vocab_size: int) -> Transformer:
    return Transformer(config.model, vocab_size, SPECIAL.bos)


def table(result: Row) -> str:
    """The measurements for a person."""
    lines = [f"{result['device']['kind']}, jax {result['jax']}, {result['seconds']:.0f} s in all"]
    for row in result["parity"]:
        errors = f"loss {row['loss_error']:.1e}, gradient {row['gradient_error']:.1e}"
        verdict = "passed" if row["passed"] else "FAILED"
        lines.append(f"parity {row['dtype']:9} {row['attention']:6} {errors}  {verdict}")
    for row in result["training"]:
        mfu = "unknown" if row["utilisation"] is None else f"{row['utilisation']:.1%}"
        lines.append(
            f"train {row['model']:5} {row['attention']:6} {row['tokens_per_update']:>7,} tokens in "
            f"{row['num_micro_batches']}: {row['seconds'] * 1e3:.1f} ms, "
            f"{row['tokens_per_second']:,.0f} tokens/s, MFU {mfu}"
        )
    for row in result["attention"]:
        ratio = f"xla / {row['attention']} {row['xla_seconds_ratio']:.2f}"
        lines.append(f"attention {row['model']} {row['tokens_per_update']:,} tokens: {ratio}")
    row = result["beam_search"]
    speed = (
        f"{row['sentences_per_second']:.1f} sentences/s, {row['tokens_per_second']:,.0f} tokens/s"
    )
    lines.append(f"beam search, beam {row['beam_size']}, {row['steps']} steps: {speed}")
    return "\n".join(lines)


def first_device(tiny: bool) -> jax.Device:
    """The device to measure. Raises UserError where that must be a GPU, and is none."""
    platforms = "cpu" if tiny else "cuda,cpu"
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", platforms))
    try:
        device = jax.devices()[0]
    except RuntimeError as error:  # no driver, or no jax for GPUs
        raise UserError(f"JAX finds no GPU ({str(error).splitlines()[0]}): give --tiny") from None
    if not tiny and not has_cudnn_attention(device):
        raise UserError(f"the first device is {device.device_kind!r}, no GPU: give --tiny")
    return device


def measure(tiny: bool, save: Callable[[Row], None]) -> Row:
    """All measurements; those that are there are saved after each part, should another fail."""
    device, start = first_device(tiny), time.monotonic()
    sizes = TINY if tiny else FULL
    result: Row = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "device": {"platform": device.platform, "kind": device.device_kind},
        "tiny": tiny,
    }

    def say(what: str) -> None:
        save(result)
        print(f"{time.monotonic() - start:5.0f} s  {what}", file=sys.stderr)

    say("parity with the CPU")
    result["parity"] = parity(device)
    result["training"] = []
    for name in ("base", "big"):
        result["training"] += training(name, sizes, device, say)
    result["attention"] = compare(result["training"])
    say("beam search")
    result["beam_search"] = beam_search(sizes, device)
    result["seconds"] = time.monotonic() - start
    say("done")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, on a CPU")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"), help="JSON to write")
    options = parser.parse_args()

    def save(result: Row) -> None:
        with atomic_writer(options.output) as file:
            file.write(json.dumps(result, indent=1).encode() + b"\n")

    try:
        result = measure(options.tiny, save)
    except UserError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    print(table(result))
    return 0 if all(row["passed"] for row in result["parity"]) else 1


if __name__ == "__main__":
    sys.exit(main())
