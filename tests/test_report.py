"""`report`: what the page holds, compared with what is computed here from the same files."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from report_runs import EVIL, SPEED, Runs, evaluate, make_runs
from sacrebleu.significance import PairedTest

import transformer_jax as tj
from transformer_jax.__main__ import main
from transformer_jax.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.loading import Choice
from transformer_jax.report import attention_maps, curve, read_runs

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def runs(one_device: None, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(runs, tmp_path_factory.mktemp("page"), "--attention-maps", "3")


def write(runs: Runs, folder: Path, *options: str) -> str:
    """The page about both runs."""
    path = folder / "page.html"
    assert main(["report", str(runs.first), str(runs.second), "--output", str(path), *options]) == 0
    return path.read_text(encoding="utf-8")


def held(page: str, name: str) -> object:
    """What the page holds for its scripts."""
    found = re.search(f'<script type="application/json" id="{name}">(.*?)</script>', page)
    return json.loads(found[1])


def visible(page: str) -> str:
    """The text of the page, without tags."""
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", " ", page))


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


# --- Sentences ----------------------------------------------------------------------------------


def test_sentences_scores_and_differences(runs: Runs, page: str) -> None:
    (section,) = held(page, "data")
    sentences = section["sentences"]
    assert section["systems"] == ["first", "second"]
    assert [one["number"] for one in sentences] == list(range(1, len(runs.sources) + 1))
    assert [one["source"] for one in sentences] == runs.sources
    assert [one["references"] for one in sentences] == [[text] for text in runs.references]
    for place, hypotheses in enumerate((runs.first_hypotheses, runs.second_hypotheses)):
        parts = [one["hypotheses"][place] for one in sentences]
        shown = ["".join(text for text, mark in one if mark != "-") for one in parts]
        assert shown == hypotheses
        expected = [
            sacrebleu.sentence_chrf(text, [reference]).score
            for text, reference in zip(hypotheses, runs.references, strict=True)
        ]
        np.testing.assert_allclose([one["scores"][place] for one in sentences], expected, atol=0.01)
    split = sacrebleu.BLEU(tokenize="13a").tokenizer
    assert [one["words"] for one in sentences] == [len(split(r).split()) for r in runs.references]
    assert sentences[0]["hypotheses"][0] == [[EVIL, ""], ["!", "+"]]


def test_attention_maps_are_those_of_the_model(runs: Runs, page: str) -> None:
    (section,) = held(page, "data")
    model = tj.load(str(runs.first))
    assert len(section["maps"]) == 3
    pairs = zip(runs.sources, runs.first_hypotheses, section["maps"], strict=False)
    for source, hypothesis, found in pairs:
        expected = model.attention(source, hypothesis)
        assert (found["source"], found["target"]) == (
            expected.source_pieces,
            expected.target_pieces,
        )
        assert (found["layers"], found["heads"]) == expected.cross.shape[:2]
        weights = np.frombuffer(base64.b64decode(found["weights"]), np.uint8) / 255
        np.testing.assert_allclose(weights, expected.cross.ravel(), atol=0.51 / 255)


def test_maps_are_of_the_checkpoint_that_translated(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several layers too, and of an average of weights, while those are there."""
    cross = np.random.default_rng(0).dirichlet(np.ones(5), size=(3, 2, 4))
    maps = SimpleNamespace(source_pieces=["s"] * 5, target_pieces=["t"] * 4, cross=cross)
    chosen = []

    def load(choices: list[Choice], decode: DecodeConfig) -> SimpleNamespace:
        chosen.extend(choices)
        attention = lambda source, target: maps  # noqa: E731
        return SimpleNamespace(checkpoint="average of steps 10, 20, 30", attention=attention)

    monkeypatch.setattr("transformer_jax.loading.load", load)
    (run,) = read_runs([str(runs.first)])
    (found,) = attention_maps(run, "average of steps 10, 20, 30", ["a"], ["b"])
    assert chosen == [Choice(run.directory, "average:10,20,30")]
    weights = np.frombuffer(base64.b64decode(found.weights), np.uint8).reshape(3, 2, 4, 5)
    np.testing.assert_allclose(weights / 255, cross, atol=0.51 / 255)
    monkeypatch.undo()
    with pytest.raises(UserError, match="no checkpoint 5; it has 2000"):
        list(attention_maps(run, "step 5", ["a"], ["b"]))


def test_fewer_sentences_are_drawn_by_the_seed(runs: Runs, tmp_path: Path) -> None:
    options = "--sentences 4 --attention-maps 0 --seed"
    (one,), (same,), (other,) = (
        held(write(runs, tmp_path, *options.split(), seed), "data") for seed in "112"
    )
    assert one == same != other
    assert len(one["sentences"]) == 4 and one["maps"] == []


def test_text_of_the_corpus_runs_nothing(page: str) -> None:
    assert "alert(1)</script>" not in page and "<script>alert" not in page
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert held(page, "data")[0]["sentences"][0]["source"] == EVIL


def test_the_page_needs_no_other_file(page: str) -> None:
    assert not re.search(r"<script[^>]*\ssrc=|<link|@import", page)
    assert "Plotly.newPlot" in page


# --- Scores -------------------------------------------------------------------------------------


def test_results_stand_with_their_signatures(runs: Runs, page: str) -> None:
    (result,) = map(json.loads, (runs.first / "evaluations.jsonl").read_text().splitlines())
    text = visible(page)
    for place, (name, signature) in enumerate(result["signatures"].items(), start=1):
        assert f"{result[name]:.2f} [{place}]" in text
        assert re.search(rf"\[{place}\]\s+{name}\s+{re.escape(signature)}", text)
    assert "step 2000" in text and "beam 4, penalty 0.6, extra length 50" in text


def test_the_first_run_is_the_baseline_of_the_bootstrap(runs: Runs, page: str) -> None:
    systems = [("a", runs.first_hypotheses), ("b", runs.second_hypotheses)]
    metrics = {"BLEU": sacrebleu.BLEU(force=True), "chrF": sacrebleu.CHRF()}
    text = visible(page)
    assert "Paired bootstrap against first" in text
    for name, metric in metrics.items():
        _, found = PairedTest(systems, {name: metric}, [runs.references], test_type="bs")()
        first, second = next(found[column] for column in found if column != "System")
        row = rf"{name}\s+{first.mean:.2f} ± {first.ci:.2f}\s+"
        row += rf"{second.mean:.2f} ± {second.ci:.2f}, p = {second.p_value:.4f}\s+nrefs:1\|bs:1000"
        assert re.search(row, text), row


def test_bleu_by_length_is_there(runs: Runs, page: str) -> None:
    split = sacrebleu.BLEU(tokenize="13a").tokenizer
    short = [n for n, text in enumerate(runs.references) if len(split(text).split()) <= 5]
    scores = [
        sacrebleu.corpus_bleu([texts[n] for n in short], [[runs.references[n] for n in short]])
        for texts in (runs.first_hypotheses, runs.second_hypotheses)
    ]
    row = rf"0 to 5\s+{len(short)}\s+{scores[0].score:.2f}\s+{scores[1].score:.2f}\s"
    assert re.search(row, visible(page))
    bars = held(page, "figures")["lengths-0"]["data"]
    assert [one["y"][0] for one in bars] == pytest.approx([score.score for score in scores])


# --- Training and configuration -----------------------------------------------------------------


def test_curves_are_those_of_the_metrics(runs: Runs, page: str) -> None:
    figures = held(page, "figures")
    lines = {name: {line["name"]: line for line in figures[name]["data"]} for name in figures}
    train, dev = "first train", "first dev"
    assert lines["loss"][train]["y"] == [5.0, 4.0] and lines["loss"][dev]["y"] == [4.5, 3.5]
    assert lines["perplexity"][dev]["y"] == [70.0, 30.0]
    assert lines["learning_rate"][train]["x"] == [100, 200]
    assert lines["throughput"][train]["y"] == [250.0, 250.0]
    assert lines["BLEU"][dev]["y"] == [12.5] and lines["BLEU"][dev]["x"] == [200]
    (tested,) = (line for name, line in lines["BLEU"].items() if name == "first test")
    assert tested["x"] == [2000]
    assert set(lines["loss"]) == {train, dev, "second train", "second dev"}


def test_curves_that_were_not_recorded_are_named(runs: Runs, tmp_path: Path) -> None:
    shutil.copy(runs.first / "config.json", tmp_path)
    row = {"step": 1, "split": "train", "loss": 1.0, "learning_rate": 0.1, **SPEED}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    path = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--output", str(path)]) == 0
    assert "Not recorded: Perplexity; BLEU." in visible(path.read_text(encoding="utf-8"))


def test_of_a_repeated_step_the_later_metrics_count(runs: Runs, tmp_path: Path) -> None:
    shutil.copy(runs.first / "config.json", tmp_path)
    rows = [(100, 5.0), (200, 4.0), (300, None), (200, 3.5)]
    lines = [json.dumps({"step": step, "split": "train", "loss": loss}) for step, loss in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 400, "spl']))
    (run,) = read_runs([str(tmp_path)])
    assert curve(run, "train", "loss") == {100: 5.0, 200: 3.5, 300: None}
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 400, "spl', ""]))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 5: no JSON"):
        read_runs([str(tmp_path)])


def test_runs_are_named_by_their_folders_where_those_differ(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs.second, tmp_path / "first")
    paths = [str(runs.first), str(tmp_path / "first")]
    assert [run.name for run in read_runs(paths)] == paths


def test_differences_of_the_configurations(page: str) -> None:
    text = visible(page)
    heavy, _, light = text.partition("Other differences")
    assert re.search(r"what an update computes .*\s+train\.seed\s+0\s+7\s*$", heavy, re.DOTALL)
    assert light.startswith(": none.")
    assert re.search(r"decode\.beam_size\s+4\s+4\s", light)


# --- What is not there --------------------------------------------------------------------------


def test_a_run_without_metrics_and_scores(runs: Runs, tmp_path: Path) -> None:
    shutil.copy(runs.first / "config.json", tmp_path)
    path = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--output", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert "Not recorded" not in visible(page)
    assert f"{tmp_path.name} has no metrics (yet)." in visible(page)
    assert f"{tmp_path.name} has not been evaluated (yet)." in visible(page)
    assert held(page, "data") == [] and held(page, "figures") == {}


def test_a_checkpoint_that_is_gone(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert main(["report", str(runs.second), "--output", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert "There are no attention maps:" in visible(page)
    (section,) = held(page, "data")
    assert section["maps"] == [] and len(section["sentences"]) == len(runs.sources)
    assert "Paired bootstrap" not in visible(page)


@pytest.mark.parametrize("change", ["text", "file"])
def test_a_test_set_that_is_gone(runs: Runs, tmp_path: Path, change: str) -> None:
    for language in ("en", "de"):
        shutil.copy(runs.first.parent / f"test.{language}", tmp_path)
    if change == "text":
        lines = (tmp_path / "test.de").read_text(encoding="utf-8")
        (tmp_path / "test.de").write_text(lines.replace("2", "3"), encoding="utf-8")
    else:
        (tmp_path / "test.de").unlink()
    page = write(runs, tmp_path, "--directory", str(tmp_path))
    assert "The text of test is not found: " in visible(page)
    assert "[1]" in visible(page) and held(page, "data") == [None]


def test_translations_that_are_gone(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.second, run)
    (hypotheses,) = (run / "evaluations").iterdir()
    hypotheses.unlink()
    path = tmp_path / "page.html"
    arguments = ["report", str(run), str(runs.second), "--output", str(path)]
    assert main([*arguments, "--attention-maps", "0"]) == 0
    page = path.read_text(encoding="utf-8")
    assert "The translations of run are not shown: " in visible(page)
    assert held(page, "data")[0]["systems"] == ["second"]


def test_results_of_older_versions_are_told_of(runs: Runs, tmp_path: Path) -> None:
    shutil.copy(runs.first / "config.json", tmp_path)
    (tmp_path / "evaluations.jsonl").write_text('{"test_set": "old", "BLEU": 1.5}\n')
    path = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--output", str(path)]) == 0
    assert f"1 older results of {tmp_path.name} lack" in visible(path.read_text(encoding="utf-8"))


def test_files_that_were_evaluated_are_found_again(runs: Runs, tmp_path: Path) -> None:
    run, texts = tmp_path / "run", runs.first.parent
    shutil.copytree(runs.first, run)
    (run / "evaluations.jsonl").unlink()
    files = [str(texts / "test.en"), str(texts / "test.de")]
    more = ["--references", files[1], "--metrics", "BLEU"]
    evaluate(["evaluate", str(run), "--sources", files[0], *more], runs.first_hypotheses)
    path = tmp_path / "page.html"
    arguments = ["report", str(run), "--output", str(path), "--attention-maps", "0"]
    assert main(arguments) == 0
    (section,) = held(path.read_text(encoding="utf-8"), "data")
    assert [one["source"] for one in section["sentences"]] == runs.sources


# --- The command --------------------------------------------------------------------------------


def test_mistakes_are_told_in_one_line(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, output = str(runs.first), str(tmp_path / "page.html")
    assert "no config.json" in fails([str(tmp_path), "--output", output], capsys)
    assert "no config.json" in fails([first, f"{first}/none", "--output", output], capsys)
    assert "given twice" in fails([first, f"{first}/", "--output", output], capsys)
    assert "no such folder" in fails([first, "--output", f"{tmp_path}/none/page.html"], capsys)
    assert "--sentences is -1" in fails([first, "--sentences", "-1"], capsys)
    assert "the path comes first" in fails([], capsys)
    assert list(tmp_path.iterdir()) == []


def test_without_attention_maps_neither_jax_nor_weights_are_needed(
    runs: Runs, tmp_path: Path, run_cli: Callable[..., object]
) -> None:
    program = "import sys; from transformer_jax.__main__ import main; main(sys.argv[1:])"
    program += "; assert not {'jax', 'flax', 'orbax'} & set(sys.modules)"
    arguments = ["report", str(runs.second), "--output", "page.html", "--attention-maps", "0"]
    environment = os.environ | {"PYTHONPATH": str(Path(tj.__file__).parents[1])}
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "page.html").is_file()
