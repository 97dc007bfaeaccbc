"""How the cost of an update and of beam search grows with the length of sentences.

Command    python experiments/benchmarks/length.py [--size small|base] [--tokens 4096]
           [--lengths 64 128 ...] [--json FILE] [--plot FILE.svg]
Prints     seconds and bytes of memory at every length: of updates, whole rows and rows in chunks of
           queries, with as many tokens each; of translations forced to that length, beam 4. Then
           the fitted line a + b n of seconds an update, or a decoded token, and a / b: the length
           where the part that is quadratic in the length takes over.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from train_step import BOS, MODELS, PAD, VOCAB_SIZE, full_batch

from transformer_jax.config import Config, DataConfig, DecodeConfig, MeshConfig, ModelConfig
from transformer_jax.decode import SpecialIds
from transformer_jax.host_memory import keep_freed_memory
from transformer_jax.model.transformer import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.train_step import init_state, jit_train_step
from transformer_jax.translate import search

LONGEST_PAIRS = "transformer_jax.model.attention.LONGEST_PAIRS"
WAYS = {"whole": 2**62, "chunks": 0}
"""The most pairs of a whole row, by the name of what is measured."""
COLORS = {"whole": "#0072b2", "chunks": "#d55e00", "decode": "#009e73"}
SOURCE, SENTENCES, BEAM, EOS = 20, 8, 4, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=MODELS, default="small")
    parser.add_argument("--tokens", type=int, default=4_096, help="of a side, in an update")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**i for i in range(6, 13)])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in COLORS}
    for length in options.lengths:
        for name in COLORS:
            with mock.patch(LONGEST_PAIRS, WAYS.get(name, WAYS["whole"])):
                measure = decoding if name == "decode" else partial(updates, options.tokens)
                row = measure(MODELS[options.size], length, options.repeats)
            rows[name].append({"length": length, **row})
            print(name, json.dumps(rows[name][-1]), flush=True)
    result = {name: {"rows": found, "fit": fit(found, name)} for name, found in rows.items()}
    for name, found in result.items():
        print(name, json.dumps(found["fit"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        options.plot.write_text(svg(result), encoding="utf-8")


def updates(tokens: int, model_config: ModelConfig, length: int, repeats: int) -> dict[str, float]:
    data = DataConfig(max_length=length, tokens_per_update=tokens)
    config = Config(data=data, model=model_config)
    model, mesh = Transformer(config.model, VOCAB_SIZE, BOS), make_mesh(MeshConfig(data=1))
    state, shardings = init_state(config, model, mesh)
    shape = (2, max(1, tokens // length), length)
    batch = full_batch(np.random.default_rng(0).integers(4, VOCAB_SIZE, shape))
    with jax.set_mesh(mesh):
        batch = jax.device_put(batch)
        compiled = jit_train_step(config, model, shardings, mesh).lower(state, batch).compile()

        def run() -> None:
            nonlocal state
            state, metrics = compiled(state, batch)
            jax.block_until_ready(metrics)

        return cost(run, compiled, repeats)


def decoding(model_config: ModelConfig, length: int, repeats: int) -> dict[str, float]:
    """Of a batch whose translations are forced to `length` tokens."""
    config = Config(data=DataConfig(max_length=length), model=model_config)
    model, mesh = Transformer(model_config, VOCAB_SIZE, BOS), make_mesh(MeshConfig(data=1))
    params = init_state(config, model, mesh)[0].params
    decode = DecodeConfig(beam_size=BEAM, min_length=length, max_extra_length=length)
    find = jax.jit(partial(search, (model,), decode, SpecialIds(pad=PAD, bos=BOS, eos=EOS)))
    inputs = np.random.default_rng(0).integers(4, VOCAB_SIZE, (SENTENCES, SOURCE), np.int32)
    limits = np.full((SENTENCES, 1), length, np.int32)
    arguments = (params,), inputs, np.ones_like(inputs), limits
    with jax.set_mesh(mesh):
        compiled = find.lower(*arguments).compile()
        return cost(lambda: jax.block_until_ready(compiled(*arguments)), compiled, repeats)


def cost(run: Callable[[], None], compiled: Any, repeats: int) -> dict[str, float]:
    """Median seconds of a run after the first, and the compiler's bytes of what is kept in it."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    memory = compiled.memory_analysis().temp_size_in_bytes
    return {"seconds": statistics.median(seconds[1:]), "memory_bytes": memory}


def fit(rows: list[dict[str, float]], name: str) -> dict[str, float]:
    """Least squares for a + b n, of seconds an update or a decoded position."""
    lengths = np.array([row["length"] for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    slope, constant = np.polyfit(lengths, seconds / (lengths if name == "decode" else 1), 1)
    return {"a": constant, "b": slope, "quadratic_from": constant / slope}


def svg(result: dict[str, Any]) -> str:
    """Seconds and memory against length, both axes logarithmic, each from its least to its most."""
    panels = [panel(result, name, 420 * i) for i, name in enumerate(("seconds", "memory_bytes"))]
    opening = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 320" font-size="12">'
    white = '<rect width="840" height="320" fill="white"/>'
    return "\n".join([opening, white, *panels, "</svg>\n"])


def panel(result: dict[str, Any], value: str, left: int) -> str:
    points = {n: [(r["length"], r[value]) for r in f["rows"]] for n, f in result.items()}
    x, y = np.log(np.array([point for line in points.values() for point in line])).T

    def at(length: float, height: float) -> str:
        right = (np.log(length) - x.min()) / max(np.ptp(x), 1e-9)
        up = (np.log(height) - y.min()) / max(np.ptp(y), 1e-9)
        return f"{left + 70 + 320 * right:.1f},{280 - 230 * up:.1f}"

    parts = [f'<text x="{left + 70}" y="20">{value} against length</text>']
    for i, (name, line) in enumerate(points.items()):
        path = " ".join(at(*point) for point in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[name]}"/>')
        parts.append(f'<text x="{left + 75}" y="{60 + 15 * i}" fill="{COLORS[name]}">{name}</text>')
    parts += [
        f'<text x="{left + 5}" y="{y_}">{np.exp(v):.3g}</text>'
        for y_, v in ((280, y.min()), (50, y.max()))
    ]
    parts += [
        f'<text x="{left + x_}" y="300">{np.exp(v):.0f}</text>'
        for x_, v in ((70, x.min()), (380, x.max()))
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
