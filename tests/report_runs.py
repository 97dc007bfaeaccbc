"""Two runs that a report compares, evaluated by the command on text that may do harm."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from transformer_jax.__main__ import main
from transformer_jax.data.text import write_lines
from transformer_jax.experiment import to_json
from transformer_jax.run_directory import RunDirectory
from transformer_jax.translate import Hypothesis, Translation

GOLDEN = Path(__file__).parent / "golden"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> <!-- <b>&lt;"
METRICS = [
    {"step": 100, "split": "train", "loss": 5.0, "perplexity": 90.0, "learning_rate": 1e-3},
    {"step": 100, "split": "dev", "loss": 4.5, "perplexity": 70.0},
    {"step": 200, "split": "train", "loss": 4.0, "perplexity": 40.0, "learning_rate": 2e-3},
    {"step": 200, "split": "dev", "loss": 3.5, "perplexity": 30.0},
    {"step": 200, "split": "dev", "BLEU": 12.5, "unfinished": 0},
]
SPEED = {"source_tokens_per_second": 100.0, "target_tokens_per_second": 150.0}


class Runs(NamedTuple):
    """The directories of two runs, and the lines of their test set and translations."""

    first: Path
    second: Path
    """Moved, of another seed, and without weights."""
    sources: list[str]
    references: list[str]
    first_hypotheses: list[str]
    second_hypotheses: list[str]


def make_runs(folder: Path) -> Runs:
    """Trained weights of long ago, with what they translated then."""
    known = json.loads((GOLDEN / "translations.json").read_text(encoding="utf-8"))
    more = [f"Wort {count}" for count in range(10)]
    sources = [EVIL, *(entry["source"] for entry in known), *more]
    first_hypotheses = [f"{EVIL}!", *(entry["translation"] for entry in known), *more]
    second_hypotheses = [text.replace("2", "").title() for text in first_hypotheses]
    references = [" ".join(reversed(text.split(" "))) for text in second_hypotheses]
    references[0] = EVIL
    for language, lines in (("en", sources), ("de", references)):
        write_lines(folder / f"test.{language}", lines)
    first, second = folder / "first", folder / "second"
    shutil.copytree(GOLDEN / "run", first)
    _save_config(first, str(folder), seed=0)
    rows = [row | (SPEED if row["split"] == "train" else {}) for row in METRICS]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (first / "metrics.jsonl").write_text(text, encoding="utf-8")
    evaluate(["evaluate", str(first)], first_hypotheses)
    shutil.copytree(first, second)
    shutil.rmtree(second / "checkpoints")
    _save_config(second, str(folder), seed=7)
    (hypotheses,) = (second / "evaluations").iterdir()
    write_lines(hypotheses, second_hypotheses)
    return Runs(first, second, sources, references, first_hypotheses, second_hypotheses)


def evaluate(arguments: list[str], hypotheses: list[str]) -> None:
    """The command, but that the search for translations, which takes long, is left out."""

    def translate_lines(model: object, lines: list[str]) -> list[Translation]:
        found = (Hypothesis(text, -1.0, -1.0, True, [[5]]) for text in hypotheses)
        return [Translation([one], True, [[5]]) for one in found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.commands.systems.translate_lines", translate_lines)
        assert main(arguments) == 0


def _save_config(run: Path, directory: str, seed: int) -> None:
    config = RunDirectory(str(run)).load_config()
    data = dataclasses.replace(config.data, corpus="files", directory=directory)
    train = dataclasses.replace(config.train, seed=seed)
    config = dataclasses.replace(config, data=data, train=train, run_directory=str(run))
    (run / "config.json").write_text(to_json(config), encoding="utf-8")
