"""`inspect`, and the same inspection before a training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_jax.__main__ import main
from transformer_jax.data.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_device")

BASE = Path(__file__).parent / "data/base"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the text of data/base."""
    return shutil.copytree(BASE, tmp_path / "text")


@pytest.fixture
def experiment(folder: Path, tiny_experiment: Callable[..., str]) -> str:
    changes = {"data.directory": str(folder), "train.num_steps": 1, "data.test": ""}
    return tiny_experiment(folder.parent, changes)


def shift_lines(folder: Path) -> None:
    """Loses the first target, as an editor does, and ends with another line."""
    file = folder / "train.de"
    first, *lines = file.read_bytes().split(b"\n")[:-1]
    file.write_bytes(b"\n".join([*lines, first]) + b"\n")


def stops(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a command prints that must end with status 1, and its reason: one line, the last."""
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    reason = err.rstrip("\n").split("\n")[-1]
    assert reason.startswith("transformer-jax: ")
    return out, reason


def test_the_table(experiment: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", experiment, "--data.test", "test"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("en -> de: 300 pairs from train\n")
    assert "met of test's 29 sentences" in out
    assert "lost to filter*: length ratio" in out
    assert err.startswith("no tokenizer in ") and err.count("\n") == 1


def test_json_and_the_page(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder / "page.html"
    with (folder / "train.en").open("a", encoding="utf-8") as file:
        file.write("<script>alert(1)</script>\n")
    with (folder / "train.de").open("a", encoding="utf-8") as file:
        file.write("<script>alert(1)</script>\n")
    assert main(["inspect", experiment, "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["pairs"] == 301
    assert found["overall"]["source"]["tokens"]["counts"]
    assert found["reasons"] == []
    assert "Plotly.newPlot" in (text := page.read_text(encoding="utf-8"))
    assert "<script>alert(1)" not in text


def test_the_tokenizer_of_the_run_is_used(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", experiment]) == 0
    capsys.readouterr()
    assert main(["inspect", experiment, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    tokenizer = Tokenizer.load(folder.parent / "run/tokenizer.model")
    lines = (folder / "train.en").read_text(encoding="utf-8").split("\n")[:-1]
    tokens = sum(len(ids) + 1 for ids in tokenizer.encode(lines))
    assert json.loads(out)["overall"]["source"]["tokens"]["mean"] == pytest.approx(tokens / 300)


def test_shifted_lines_end_it_with_status_1_and_the_table(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shift_lines(folder)
    out, reason = stops(["inspect", experiment, "--html", str(folder / "page.html")], capsys)
    assert "train: 100.0 % of the text looks misaligned" in reason
    assert "target line i-1" in reason
    assert out.startswith("en -> de: 300 pairs")
    assert reason.split(": ")[2] in (folder / "page.html").read_text(encoding="utf-8")


def test_text_without_a_tokenizer_is_inspected_all_the_same(
    experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", experiment, "--tokenizer.vocab-size", "30000"]) == 0
    out, err = capsys.readouterr()
    assert "tokens and filters: not measured" in out
    assert "nothing is counted in tokens: tokenizer.vocab_size is 30000" in err


def test_an_empty_corpus(experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for language in ("en", "de"):
        (folder / f"train.{language}").write_bytes(b"")
    assert "the corpus is empty" in stops(["inspect", experiment], capsys)[1]


@pytest.mark.parametrize("option", [["--data.dev", "nothing"], ["--html", "/nowhere/at/all.html"]])
def test_what_cannot_be_read_or_written_is_a_mistake(
    experiment: str, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["inspect", experiment, *option]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert option[1] in err.split("\n")[-2]


def test_training_begins_with_the_direction_and_two_pairs(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, targets = (
        (folder / f"train.{language}").read_text(encoding="utf-8").split("\n")
        for language in ("en", "de")
    )
    assert main(["train", experiment]) == 0
    err = capsys.readouterr().err
    for text in ("direction en -> de", "inspected 300 pairs: 50 duplicates"):
        assert text in err
    for number in (0, 1):
        assert f"pair {number + 1}  {sources[number]}\n     ->   {targets[number]}\n" in err
    assert main(["train", experiment, "--train.num-steps", "2"]) == 0
    assert "inspected" not in capsys.readouterr().err, "it is the corpus that was inspected"


def test_training_stops_where_it_would_be_meaningless(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shift_lines(folder)
    out, reason = stops(["train", experiment], capsys)
    assert out == ""
    assert "looks misaligned" in reason and "--data.inspection warn" in reason
    assert not (folder.parent / "run").exists()
    assert main(["train", experiment, "--data.inspection", "warn"]) == 0
    assert "WARNING: train: 100.0 % of the text looks misaligned" in capsys.readouterr().err
    # What is free to change may change when the run goes on.
    assert main(["train", experiment, "--train.num-steps", "2"]) == 0


def test_training_that_does_not_look(
    experiment: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shift_lines(folder)
    assert main(["train", experiment, "--data.inspection", "off"]) == 0
    assert "inspected" not in capsys.readouterr().err
