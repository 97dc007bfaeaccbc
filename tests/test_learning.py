"""Learns what it should: copy, reverse and sort strings, by the public command line alone."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

LETTERS = list("abcdefghij")
TASKS = {"copy": lambda letters: letters, "reverse": lambda letters: letters[::-1], "sort": sorted}
NUM_TRAIN, NUM_DEV, NUM_TEST = 20_000, 50, 300

CHANGES = {
    "data.source_language": "in",
    "data.target_language": "out",
    "data.dev": "dev",
    "data.test": "",
    "data.inspection": "warn",  # a copy is what it would stop at
    "data.max_length": 32,
    "data.tokens_per_update": 1_024,
    # A piece for every byte, every letter and the space, and no room to merge letters.
    "tokenizer.vocab_size": 261 + len(LETTERS),
    "model.num_layers": 2,
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.num_heads": 4,
    "model.dropout_rate": 0.0,
    "optimizer.warmup_steps": 200,
    "optimizer.learning_rate_scale": 0.5,
    "train.num_steps": 1_000,
    "train.log_interval": 100,
    "checkpoint.interval": 100,
}


def write_corpus(folder: Path, task: Callable[[list[str]], list[str]]) -> tuple[list[str], ...]:
    """Distinct strings of 1 to 12 letters; gives the held-out ones and what they should become."""
    random = np.random.default_rng(0)
    strings: dict[str, None] = {}
    while len(strings) < NUM_TRAIN + NUM_DEV + NUM_TEST:
        strings["".join(random.choice(LETTERS, random.integers(1, 13)))] = None
    sources = list(strings)
    targets = ["".join(task(list(source))) for source in sources]
    splits = {"train": NUM_TRAIN, "dev": NUM_DEV, "test": NUM_TEST}
    random.shuffle(order := np.arange(len(sources)))
    for name, count in splits.items():
        chosen, order = order[:count], order[count:]
        for language, lines in (("in", sources), ("out", targets)):
            text = "".join(f"{lines[number]}\n" for number in chosen)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return [sources[number] for number in chosen], [targets[number] for number in chosen]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_on_strings_is_learned(
    task: str,
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    run_cli: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XLA_FLAGS")  # here programs run for longer than they compile
    sources, targets = write_corpus(tmp_path, TASKS[task])
    experiment = tiny_experiment(tmp_path, CHANGES | {"data.directory": str(tmp_path)})
    start = time.monotonic()
    trained = run_cli("train", experiment)
    assert trained.returncode == 0, trained.stderr.decode()
    lines = "".join(f"{source}\n" for source in sources).encode()
    run = str(tmp_path / "run")
    translated = run_cli("translate", run, "--average-last", "5", stdin=lines)
    assert translated.returncode == 0, translated.stderr.decode()
    hypotheses = translated.stdout.decode().split("\n")[:-1]
    right = sum(one == other for one, other in zip(hypotheses, targets, strict=True))
    assert right >= 0.99 * len(targets)
    assert time.monotonic() - start < 180
