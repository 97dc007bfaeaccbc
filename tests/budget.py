"""What compiled programs cost, without a clock: counts that depend on no machine's load.

Command    python tests/budget.py [FILE]
Writes     tests/budget.json: what an update and a beam search cost on a CPU, and how many programs
           are compiled to train and to translate; with and without AVX-512 they are the same
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import jax

from transformer_jax.compile import trace_decode, trace_train
from transformer_jax.config import (
    Config,
    DataConfig,
    DecodeConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from transformer_jax.hlo import parse
from transformer_jax.translate import Translator

FILE = Path(__file__).with_name("budget.json")
TOLERANCE = 0.02
"""Share by which a figure of a program may lie above its budget; a number of programs may not."""

COMPILATIONS = "compilations"

Figures = dict[str, dict[str, int]]
"""Of a program by its name, each figure by its name."""

SMALL = Config(
    data=DataConfig(max_length=64, tokens_per_update=512),
    tokenizer=TokenizerConfig(vocab_size=8_000),
    model=ModelConfig(num_layers=3, d_model=256, d_ff=1_024, num_heads=4),
)
LEAN = replace(
    SMALL,
    model=replace(SMALL.model, dtype="bfloat16", scan_layers=True),
    loss=LossConfig(num_chunks=4),
)
# 8 sentences of up to 24 tokens.
SEARCH = replace(
    SMALL, data=DataConfig(max_length=24), decode=DecodeConfig(beam_size=4, tokens_per_batch=192)
)


def figures(compiled: Any) -> dict[str, int]:
    """What a compiled program costs; the bodies of its loops count once."""
    costs = compiled.cost_analysis()
    computations, _ = parse(compiled.as_text())
    opcodes = Counter(one.opcode for lines in computations.values() for one in lines)
    return {
        "flops": round(costs["flops"]),
        "bytes accessed": round(costs["bytes accessed"]),
        "temporary bytes": compiled.memory_analysis().temp_size_in_bytes,
        "instructions": opcodes.total(),
        "dots": opcodes["dot"],
        "transposes and copies": opcodes["transpose"] + opcodes["copy"],
    }


def count_compilations(work: Callable[[], object]) -> dict[str, int]:
    """How many programs are compiled, the small ones of single operations too."""
    programs = []

    def note(event: str, _seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        work()
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    return {COMPILATIONS: len(programs)}


def translate_file() -> None:
    """40 sentences of 1 to 8 clauses."""
    model, params = builders.decided_model()
    config = DecodeConfig(max_extra_length=5)
    mesh, tokenizers = builders.one_device(), builders.both(builders.corpus_tokenizer())
    translator = Translator((model,), tokenizers, config, mesh)
    lines = [" and ".join([builders.CORPUS[n]] * (n % 8 + 1)) for n in range(40)]
    translator.translate((params,), lines)


def train_run() -> None:
    """12 updates with two validations, and the checkpoints that go with them."""
    from transformer_jax.commands.train import train

    with tempfile.TemporaryDirectory() as folder:
        train(
            Config(
                run_directory=f"{folder}/run",
                data=DataConfig(
                    directory=str(FILE.parent / "data/base"),
                    dev="valid",
                    test="",
                    max_length=64,
                    tokens_per_update=256,
                    max_buckets=4,
                ),
                tokenizer=TokenizerConfig(vocab_size=320),
                model=ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2),
                optimizer=OptimizerConfig(warmup_steps=20),
                train=TrainConfig(
                    num_steps=12, log_interval=4, dev_loss_interval=6, dev_bleu_interval=0
                ),
            )
        )


def measure() -> Figures:
    """All that has a budget."""
    mesh = builders.one_device()

    def cost(trace: Callable, config: Config) -> dict[str, int]:
        with jax.set_mesh(mesh):
            return figures(trace(config, mesh).traced.lower().compile())

    return {
        "an update": cost(trace_train, SMALL),
        "an update in bfloat16, scanned, in chunks": cost(trace_train, LEAN),
        "a beam search": cost(trace_decode, SEARCH),
        "translating a file": count_compilations(translate_file),
        "a run of training": count_compilations(train_run),
    }


def above(found: Figures, budget: Figures) -> list[str]:
    """A line for each figure that is above its budget."""
    return [
        f"{program}: {found[program][name]:,} {name}, its budget is {most:,}"
        for program, most_of in budget.items()
        for name, most in most_of.items()
        if found[program][name] > most * (1 if name == COMPILATIONS else 1 + TOLERANCE)
    ]


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_enable_compilation_cache", False)
    text = json.dumps({"jax": jax.__version__, "programs": measure()}, indent=2)
    Path(*sys.argv[1:2] or [FILE]).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
