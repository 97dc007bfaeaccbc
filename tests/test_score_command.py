"""`score` against what `translate` says of the same pairs."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_jax.__main__ import main

pytestmark = pytest.mark.usefixtures("one_device")

RUN = str(Path(__file__).parent / "golden/run")
LINES = ["May 26, 2020", "874%", "Maltese (Pakistan)", "17:10 – 20:30"]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines that a command writes."""

    def run(*arguments: str) -> list[str]:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    return run


def test_the_score_is_that_of_the_search_e13(tmp_path: Path, cli: Callable) -> None:
    sources = write(tmp_path / "in.en", LINES)
    options = ["--input", sources, "--format", "jsonl"]
    found = [json.loads(line)["hypotheses"][0] for line in cli("translate", RUN, *options)]
    targets = write(tmp_path / "out.de", [hypothesis["text"] for hypothesis in found])
    both = ["--sources", sources, "--targets", targets]
    lines = [line.split("\t") for line in cli("score", RUN, *both)]
    assert [int(tokens) for _, tokens in lines] == [each["tokens"] for each in found]
    for (log_prob, _), hypothesis in zip(lines, found, strict=True):
        assert float(log_prob) == pytest.approx(hypothesis["log_prob"], abs=1e-4)

    small = ["--per-token", "--decode.block-lines", "3", "--decode.tokens-per-batch", "1"]
    entries = [json.loads(line) for line in cli("score", RUN, *both, *small)]
    assert [entry["line"] for entry in entries] == [1, 2, 3, 4]
    for entry, (log_prob, tokens) in zip(entries, lines, strict=True):
        assert len(entry["pieces"]) == len(entry["log_probs"]) == int(tokens)
        assert entry["log_prob"] == pytest.approx(float(log_prob), abs=1e-4)
        assert sum(entry["log_probs"]) == pytest.approx(entry["log_prob"], abs=1e-4)
        assert max(entry["log_probs"]) <= 0
    pieces = "".join(entries[0]["pieces"]).removesuffix("</s>")
    assert pieces.replace("▁", " ").strip() == found[0]["text"]


def test_a_wrong_translation_is_less_likely_to_an_ensemble(
    tmp_path: Path, cli: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write(tmp_path / "in.en", ["874%"] * 3)
    text = b"874 %\n875 %\n\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    output = tmp_path / "scores"
    options = ["--sources", sources, "--targets", "-", "--output", str(output)]
    assert cli("score", RUN, f"{RUN}@2000", *options) == []
    lines = [line.split("\t") for line in output.read_text(encoding="utf-8").split("\n")[:-1]]
    right, wrong, blank = (float(log_prob) for log_prob, _ in lines)
    assert right > wrong + 2 and right > blank + 2
    assert lines[2][1] == "1"


@pytest.mark.parametrize(
    ("sources", "targets", "options", "words"),
    [
        (["a", "b"], ["a"], [], "in.en has 2 lines but"),
        (["a"], ["b " * 20], ["--decode.max-source-length", "8"], "line 1: the target has"),
    ],
)
def test_pairs_that_cannot_be_scored_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sources: list[str],
    targets: list[str],
    options: list[str],
    words: str,
) -> None:
    both = [write(tmp_path / "in.en", sources), write(tmp_path / "out.de", targets)]
    paths = ["--sources", both[0], "--targets", both[1]]
    output = tmp_path / "scores"
    assert main(["score", RUN, *paths, *options, "--output", str(output)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err
    assert not output.exists()
    assert main(["score", RUN, "--sources", both[0]]) == 2
    assert "both --sources and --targets" in capsys.readouterr().err
