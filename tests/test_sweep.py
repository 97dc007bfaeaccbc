"""`evaluate --all` and `--watch`: every checkpoint once."""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_jax.__main__ import main
from transformer_jax.checkpoint import Checkpoints
from transformer_jax.commands import sweep
from transformer_jax.data.text import write_lines
from transformer_jax.experiment import to_json
from transformer_jax.results import read_results
from transformer_jax.run_directory import RunDirectory
from transformer_jax.translate import Hypothesis, Translation

pytestmark = pytest.mark.usefixtures("one_device")

GOLDEN = Path(__file__).parent / "golden/run"
REFERENCES = ["eins zwei drei vier", "fünf sechs sieben acht"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """In training until step 3000, with checkpoints of steps 1000 and 2000."""
    shutil.copytree(GOLDEN, tmp_path / "run")
    run = RunDirectory(str(tmp_path / "run"))
    set_training(run, num_steps=3000)
    add_checkpoint(run, 1000)
    write_lines(tmp_path / "test.en", ["one", "two"])
    write_lines(tmp_path / "test.de", REFERENCES)
    return run


def set_training(run: RunDirectory, **changes: int) -> None:
    config = run.load_config()
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
    run.config.write_text(to_json(config), encoding="utf-8")


def add_checkpoint(run: RunDirectory, step: int) -> None:
    shutil.copytree(GOLDEN / "checkpoints/2000", run.checkpoints / str(step))


def arguments(run: RunDirectory, *options: str) -> list[str]:
    texts = ["--sources", "--references"]
    files = [str(run.path.parent / f"test.{language}") for language in ("en", "de")]
    pairs = [part for pair in zip(texts, files, strict=True) for part in pair]
    return ["evaluate", str(run.path), *pairs, *options]


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoints that translate; the search itself, which takes long, is left out."""
    found = []

    def translate_lines(model, lines: list[str]) -> list[Translation]:
        found.append(model.checkpoint)
        texts = (Hypothesis(text, -1.0, -1.0, True, [[5]]) for text in REFERENCES)
        return [Translation([text], True, [[5]]) for text in texts]

    monkeypatch.setattr("transformer_jax.commands.systems.translate_lines", translate_lines)
    return found


def test_all_checkpoints_are_scored_once(
    run: RunDirectory, translated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(run, "--all", "--metrics", "BLEU")) == 0
    assert translated == ["step 1000", "step 2000"]
    out, _ = capsys.readouterr()
    results = [json.loads(line) for line in out.splitlines()]
    assert [result["system"] for result in results] == [f"{run.path}@1000", f"{run.path}@2000"]
    assert read_results(run) == results
    assert {result["BLEU"] for result in results} == {100.0}

    assert main(arguments(run, "--all", "--metrics", "BLEU")) == 0
    assert len(translated) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"step 1000 has a result in {run.results} already" in err

    add_checkpoint(run, 2500)
    assert main(arguments(run, "--all", "--metrics", "BLEU")) == 0
    assert translated[2:] == ["step 2500"]
    # Another search, other metrics: other results, of which the latter replace.
    assert main(arguments(run, "--all", "--metrics", "BLEU", "--decode.beam-size", "2")) == 0
    assert len(translated) == 6 and len(read_results(run)) == 6
    assert main(arguments(run, "--all", "--metrics", "BLEU", "chrF")) == 0
    assert len(translated) == 9 and len(read_results(run)) == 6
    assert main(arguments(run, "--all", "--metrics", "chrF")) == 0
    assert len(translated) == 9


def test_watching_goes_on_until_the_training_has_ended(
    run: RunDirectory, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    news = [
        lambda: None,
        lambda: (add_checkpoint(run, 2500), shutil.rmtree(run.checkpoints / "1000")),
        lambda: add_checkpoint(run, 3000),
    ]
    monkeypatch.setattr(time, "sleep", lambda seconds: news.pop(0)())
    assert main(arguments(run, "--watch", "--metrics", "BLEU")) == 0
    assert news == []
    assert translated == [f"step {step}" for step in (1000, 2000, 2500, 3000)]
    assert main(arguments(run, "--watch", "--metrics", "BLEU")) == 0
    assert len(translated) == 4


def test_watching_ends_with_patience_too(
    run: RunDirectory, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Checkpoints.progress

    def out_of_patience(checkpoints: Checkpoints, step: int):
        return dataclasses.replace(progress(checkpoints, step), validations_since_best=2)

    monkeypatch.setattr(Checkpoints, "progress", out_of_patience)
    set_training(run, patience=3)
    monkeypatch.setattr(time, "sleep", lambda seconds: set_training(run, patience=2))
    assert main(arguments(run, "--watch", "--metrics", "BLEU")) == 0
    assert translated == ["step 1000", "step 2000"]


def test_a_checkpoint_that_is_deleted_meanwhile_is_told(
    run: RunDirectory,
    translated: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = sweep._Sweep._look

    def look_and_lose(one: sweep._Sweep) -> list[int]:
        steps = look(one)
        shutil.rmtree(run.checkpoints / "1000", ignore_errors=True)
        return steps

    monkeypatch.setattr(sweep._Sweep, "_look", look_and_lose)
    assert main(arguments(run, "--all", "--metrics", "BLEU")) == 0
    assert translated == ["step 2000"]
    assert f"{run.path}: step 1000 is gone before it was scored\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda run: ["--all", "--step", "1000"], "leave out --step and --average-last"),
        (lambda run: ["--watch", "--average-last", "2"], "leave out --step and --average-last"),
    ],
)
def test_options_that_do_not_go_together(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], add: Callable, words: str
) -> None:
    assert main(arguments(run, *add(run))) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err
    named = arguments(run, "--all")
    named[1] += "@newest"
    assert main(named) == 2
    assert f"takes all checkpoints of a run: {run.path}@newest is not" in capsys.readouterr().err


def test_a_run_without_checkpoints_is_an_error_or_waited_for(
    run: RunDirectory,
    translated: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(run.checkpoints)
    assert main(arguments(run, "--all", "--metrics", "BLEU")) == 2
    assert f"{run.path}: no complete checkpoint; train first" in capsys.readouterr().err
    monkeypatch.setattr(time, "sleep", lambda seconds: add_checkpoint(run, 3000))
    assert main(arguments(run, "--watch", "--metrics", "BLEU")) == 0
    assert translated == ["step 3000"]
