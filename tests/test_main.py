"""The command line: mistakes of users, and the straight way from text to scores.

Ids such as A10 name folders of tests/data.
"""

import ast
import dataclasses
import gzip
import inspect
import io
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import sacrebleu

from transformer_jax import config as config_module
from transformer_jax.__main__ import main
from transformer_jax.commands.shared import translate_lines
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.loading import Choice, LoadedModel, load
from transformer_jax.prepare import prepare
from transformer_jax.run_directory import RunDirectory
from transformer_jax.translate import Hypothesis, Translation

pytestmark = pytest.mark.usefixtures("one_device")

DATA = Path(__file__).parent / "data"


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """The message of a command that must fail as a user's mistake: one line, the last one."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    return message_of(err)


def message_of(err: str) -> str:
    assert "Traceback" not in err
    messages = [line for line in err.splitlines() if line.startswith("transformer-jax: ")]
    assert len(messages) == 1, err
    assert err.endswith(f"{messages[0]}\n")
    return messages[0].removeprefix("transformer-jax: ")


# --- Text that cannot be trained on -------------------------------------------------------------


def text_folder(folder: Path, *sources: str) -> Path:
    """A folder with the files of data/base, then those of the other folders, joined as text."""
    text = folder / "text"
    for source in ("base", *sources):
        for file in (DATA / source).iterdir():
            text.mkdir(exist_ok=True)
            plain = text / file.name.removesuffix(".gz")
            plain.unlink(missing_ok=True)
            shutil.copy(file, text)
    return text


def unequal(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder, "A10_unequal")
    return {}, [f"{text}/train.en has 20 lines", f"{text}/train.de has 17"]


def unequal_dev(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    with (text / "valid.de").open("a", encoding="utf-8") as file:
        file.write("noch einer\n")
    return {}, [f"{text}/valid.en has 23 lines", f"{text}/valid.de has 24"]


def bad_utf8(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder, "A23_bad_utf8")
    return {}, [f"{text}/train.de, line 4: not valid UTF-8"]


def bad_utf8_dev(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    lines = (text / "valid.de").read_bytes().split(b"\n")
    lines[22] = b"gr\xfcn"
    (text / "valid.de").write_bytes(b"\n".join(lines))
    return {}, [f"{text}/valid.de, line 23: not valid UTF-8"]


def bad_utf8_test(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    lines = (text / "test.en").read_bytes().split(b"\n")
    lines[28] = b"\xff"
    (text / "test.en").write_bytes(b"\n".join(lines))
    return {}, [f"{text}/test.en, line 29: not valid UTF-8"]


def truncated_gz(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder, "A15_truncated_gz")
    return {}, [f"{text}/train.", ".gz: a broken or cut archive"]


def fake_gz(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    (text / "train.en").unlink()
    shutil.copy(DATA / "A15_truncated_gz/fake.en.gz", text / "train.en.gz")
    return {}, [f"{text}/train.en.gz: named .gz, but not a gzip file"]


def empty(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    for language in ("en", "de"):
        (text / f"train.{language}").write_bytes(b"")
    return {}, ["data.train: train is empty: there is no pair to read"]


def empty_dev(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    for language in ("en", "de"):
        (text / f"valid.{language}").write_bytes(b"")
    return {}, ["data.dev: valid is empty"]


def empty_test(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    for language in ("en", "de"):
        (text / f"test.{language}").write_bytes(b"")
    return {}, ["data.test: test is empty"]


def all_blank(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    (text / "train.de").write_bytes(b" \n" * 300)
    return {"tokenizer.vocab_size": 300}, ["all 300 pairs", "300 empty side"]


def all_filtered(folder: Path) -> tuple[dict, list[str]]:
    text_folder(folder)
    return {"data.max_length": 2}, ["all 300 pairs", "source too long", "data.max_length"]


def all_dev_filtered(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    for language in ("en", "de"):
        (text / f"valid.{language}").write_text("ab " * 99 + "\n", encoding="utf-8")
    return {}, ["all 1 pairs", "dev", "source too long"]


def large_vocabulary(folder: Path) -> tuple[dict, list[str]]:
    text_folder(folder)
    return {"tokenizer.vocab_size": 30_000}, ["tokenizer.vocab_size is 30000", "at most"]


def small_vocabulary(folder: Path) -> tuple[dict, list[str]]:
    text_folder(folder)
    return {"tokenizer.vocab_size": 261}, ["tokenizer.vocab_size is 261", "at least"]


def missing_file(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    return {"data.train": ("train", "more")}, [f"{text}/more.en: no such file"]


def missing_test(folder: Path) -> tuple[dict, list[str]]:
    text = text_folder(folder)
    (text / "test.de").unlink()
    return {}, [f"{text}/test.de: no such file"]


def missing_directory(folder: Path) -> tuple[dict, list[str]]:
    return {}, [f"{folder}/text/train.en: no such file"]


def no_directory(folder: Path) -> tuple[dict, list[str]]:
    return {"data.directory": ""}, ["data.directory is empty"]


BAD_TEXT = [
    *(unequal, unequal_dev, bad_utf8, bad_utf8_dev, bad_utf8_test, truncated_gz, fake_gz, empty),
    *(
        empty_dev,
        empty_test,
        all_blank,
        all_filtered,
        all_dev_filtered,
        large_vocabulary,
        small_vocabulary,
    ),
    *(missing_file, missing_test, missing_directory, no_directory),
]


@pytest.mark.parametrize("make", BAD_TEXT, ids=lambda make: make.__name__)
@pytest.mark.parametrize("run_exists", [False, True], ids=["new", "existing"])
def test_bad_text_is_refused_and_leaves_no_run_behind(
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], tuple[dict, list[str]]],
    run_exists: bool,
) -> None:
    """A10, A12, A15, A22, A23: before a tokenizer is trained, or anything written."""
    changes, words = make(tmp_path)
    experiment = tiny_experiment(tmp_path, {"data.directory": f"{tmp_path}/text"} | changes)
    run = tmp_path / "run"
    if run_exists:
        run.mkdir()
        (run / "notes.txt").write_text("mine", encoding="utf-8")
    status = 1 if make in (all_blank, all_filtered) else 2
    message = fails(["train", experiment], capsys, status)
    for word in words:
        assert word in message
    if run_exists:
        assert [path.name for path in run.iterdir()] == ["notes.txt"]
    else:
        assert not run.exists()


def test_bad_text_from_the_shell(
    tmp_path: Path, tiny_experiment: Callable[..., str], run_cli: Callable
) -> None:
    _, words = bad_utf8(tmp_path)
    experiment = tiny_experiment(tmp_path, {"data.directory": f"{tmp_path}/text"})
    done = run_cli("train", experiment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words[0] in message_of(done.stderr.decode())
    assert not (tmp_path / "run").exists()


def test_text_that_has_gone_bad_leaves_a_run_as_it_was(
    tmp_path: Path, tiny_experiment: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_folder(tmp_path)
    changes = {"data.directory": str(text), "train.num_steps": 2, "data.test": ""}
    experiment = tiny_experiment(tmp_path, changes)
    assert main(["train", experiment]) == 0
    capsys.readouterr()
    for language in ("en", "de"):
        (text / f"valid.{language}").write_bytes(b"")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "valid is empty" in fails(["train", experiment], capsys)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("place", ["file", "below a file"])
def test_a_run_directory_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    place: str,
) -> None:
    """G06."""
    file = tmp_path / "file"
    file.write_text("not a folder", encoding="utf-8")
    run = file if place == "file" else file / "run"
    assert main(["train", tiny_experiment(tmp_path), "--run-directory", str(run)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, "nothing comes before the message, no training of a tokenizer"
    assert f"{run}: cannot be written to" in message_of(err)
    assert file.read_text(encoding="utf-8") == "not a folder"


SHORT = {
    "train.num_steps": 2,
    "decode.beam_size": 1,
    "decode.max_extra_length": 2,
}


def test_a25_one_huge_line_is_told_and_harms_neither_training_nor_validation(
    tmp_path: Path, tiny_experiment: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_folder(tmp_path, "A25_one_huge_line")
    changes = {"data.directory": str(text), "data.dev": "train", "train.dev_loss_interval": 2}
    assert main(["train", tiny_experiment(tmp_path, SHORT | changes | {"data.test": ""})]) == 0
    err = capsys.readouterr().err
    for split in ("train", "dev"):
        assert f"{split}: dropped 1 (" in err
        assert "source too long" in err
    assert "step 2: dev loss" in err


def test_a01_a_lone_carriage_return_is_told_before_training(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    text = text_folder(tmp_path, "A01_bare_cr")
    changes = {"data.directory": str(text), "tokenizer.vocab_size": 300}
    config = tiny_config(tmp_path / "run", changes)
    told: list[str] = []
    prepare(config, RunDirectory(config.run_directory), told.append)
    assert [line for line in told if "CR" in line] == [
        "train: train: 1 line with a lone CR or another control character, read as a space"
    ]
    assert "train: read 6 pairs" in told and "train: kept 6 (100.0 %)" in told


def test_relative_paths_with_spaces_and_accents_without_a_network(
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G05, G06, G07, G13: and nothing is written where the text is."""
    text = tmp_path / "x y"
    shutil.copytree(DATA / "base", text)
    for language in ("en", "de"):
        (text / f"train.{language}").rename(text / f"träin data.{language}")
    for path in (*text.iterdir(), text):
        path.chmod(path.stat().st_mode & ~0o222)  # root may write all the same
    before = {path: path.read_bytes() for path in text.iterdir()}

    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    changes = {"data.directory": "../x y", "data.train": ("träin data",)}
    experiment = tiny_experiment(tmp_path, SHORT | changes)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    first = ["--run-directory", "./a/../my runs/été 1", "--data.test", ""]
    assert main(["train", experiment, *first]) == 0
    assert os.listdir() == ["my runs"]

    run = tmp_path / "here/my runs/été 1"
    monkeypatch.chdir(tmp_path)
    more = ["--run-directory", str(run), "--data.directory", "x y", "--train.num-steps", "3"]
    capsys.readouterr()
    assert main(["train", experiment, *more]) == 0
    assert "steps 2 to 3 in " in capsys.readouterr().err
    files = ["--input", "x y/test.en", "--output", "out.de"]
    assert main(["translate", "here/my runs/été 1", *files]) == 0
    (hypotheses,) = (run / "evaluations").glob("test-*.step-3.beam1-alpha0.6.de")
    assert (tmp_path / "out.de").read_bytes() == hypotheses.read_bytes()
    assert {path: path.read_bytes() for path in text.iterdir()} == before
    text.chmod(0o755)


# --- Experiments, options and runs that do not exist --------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["experiment.py: no such experiment file"]),
        ("x = (\n", ["experiment.py, line 1"]),
        ("x = 1\n", ["experiment.py: an experiment file must define get_config"]),
        ("def get_config():\n    return {}\n", ["experiment.py: get_config() returned dict"]),
        (
            "from transformer_jax.config import *\n"
            "def get_config():\n    return Config(model=ModelConfig(d_model=15, num_heads=1))\n",
            ["model.d_model is 15"],
        ),
    ],
    ids=["missing", "syntax", "no function", "no config", "bad value"],
)
def test_bad_experiment_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: list[str]
) -> None:
    if text is not None:
        (tmp_path / "experiment.py").write_text(text, encoding="utf-8")
    message = fails(["train", str(tmp_path / "experiment.py")], capsys)
    for word in words:
        assert word in message


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_run_that_does_not_exist(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    message = fails([command, str(tmp_path / "nowhere")], capsys)
    assert f"{tmp_path}/nowhere: not a run's directory" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tarin"], ["no command 'tarin'", "train, translate, score, evaluate"]),
        (["train"], ["usage", "train EXPERIMENT"]),
        (["translate", "--step", "3"], ["usage", "translate RUN"]),
    ],
)
def test_bad_commands(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    message = fails(arguments, capsys)
    for word in words:
        assert word in message


def test_an_option_that_breaks_a_rule(
    tmp_path: Path, tiny_experiment: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(["train", tiny_experiment(tmp_path), "--model.num-heads", "3"], capsys)
    assert "model.d_model is 16: it must be a multiple of model.num_heads = 3" in message
    assert not (tmp_path / "run").exists()


def test_an_unknown_option_is_answered_with_the_right_one(
    tmp_path: Path, tiny_experiment: Callable[..., str], run_cli: Callable
) -> None:
    done = run_cli("train", tiny_experiment(tmp_path), "--model.num-layer", "3")
    err = done.stderr.decode()
    assert done.returncode == 2
    assert "Traceback" not in err
    assert "--model.num-layer," in err and "--model.num-layers INT" in err
    assert not (tmp_path / "run").exists()


def test_help_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    for command in ("train EXPERIMENT", "translate RUN", "evaluate RUN"):
        assert command in out


def fields(cls: type, prefix: str = "") -> Iterator[tuple[str, str, object]]:
    """All fields below a dataclass: the path, the docstring after it, the default."""
    body = ast.parse(inspect.getsource(cls)).body[0].body
    docs = {
        field.target.id: doc.value.value
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            yield from fields(field.default_factory, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", docs[field.name], field.default


def test_help_explains_every_field_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "79")
    with pytest.raises(SystemExit) as exit_info:
        main(["train", "--help"])
    assert exit_info.value.code == 0
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", capsys.readouterr().out)
    text = " ".join(text.split())
    documented = list(fields(Config))
    assert len(documented) > 40
    assert {path.split(".")[0] for path, _, _ in documented} == {
        field.name for field in dataclasses.fields(Config)
    }
    for path, doc, default in documented:
        shown = " ".join(default) if isinstance(default, tuple) else default
        shown = repr(default) if default == "" else shown
        # A comma, where there is a second option that turns it off.
        option = re.search(f"--{path.replace('_', '-')}[ ,]", text)
        assert option, path
        entry = text[option.start() :]
        entry = entry[: entry.index(")", entry.index("(default: ")) + 1]
        assert entry.endswith(f"{' '.join(doc.split())} (default: {shown})")
    for section in dataclasses.fields(Config)[1:]:
        title = inspect.getdoc(getattr(config_module, section.default_factory.__name__))
        assert title in text


# --- The straight way ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(
    one_device: None,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_experiment: Callable[..., str],
) -> tuple[Path, str]:
    """The directory of a trained run, and what `train` wrote on standard output."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {
        "train.num_steps": 600,
        "train.log_interval": 100,
        "train.dev_loss_interval": 300,
        "train.dev_bleu_interval": 300,
        "checkpoint.interval": 150,
        "checkpoint.keep_newest": 3,
        "model.dropout_rate": 0.0,
        "model.d_model": 64,
        "model.d_ff": 128,
        "optimizer.warmup_steps": 100,
        "decode.beam_size": 2,
        "decode.max_extra_length": 20,
    }
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["train", tiny_experiment(folder, changes)]) == 0
    return folder / "run", out.getvalue()


def lines_of(path: Path) -> list[str]:
    text = path.read_bytes().decode()
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def translate(
    run: Path, text: bytes, capsysbinary: pytest.CaptureFixture[bytes], *options: str
) -> bytes:
    """What `translate` writes for `text` on standard input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        assert main(["translate", str(run), *options]) == 0
    return capsysbinary.readouterr().out


def test_training_ends_with_the_score_of_the_test_set(trained: tuple[Path, str]) -> None:
    """D17: of 29 sentences."""
    run, out = trained
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result["checkpoint"] == "step 600"
    assert result["sentences"] == 29
    hypotheses = lines_of(Path(result["hypotheses"]))
    references = lines_of(DATA / "base/test.de")
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert result["BLEU"] == round(score, 2)
    assert score > 30, "it has learnt something, so that the other tests compare no empty lines"
    assert lines_of(run / "evaluations.jsonl")[0] == out.strip()
    dev = [json.loads(line) for line in lines_of(run / "metrics.jsonl")]
    assert [line["step"] for line in dev if "BLEU" in line] == [300, 600]
    assert all(0 < line["BLEU"] <= 100 for line in dev if "BLEU" in line)


def test_translate_from_file_to_file(trained: tuple[Path, str], tmp_path: Path) -> None:
    run, out = trained
    output = tmp_path / "out.de"
    arguments = ["--input", str(DATA / "base/test.en"), "--output", str(output)]
    assert main(["translate", str(run), *arguments]) == 0
    # `train` has translated the same sentences with the same weights.
    assert lines_of(output) == lines_of(Path(json.loads(out)["hypotheses"]))

    packed = tmp_path / "in.en.gz"
    packed.write_bytes(gzip.compress((DATA / "base/test.en").read_bytes()))
    again = tmp_path / "again.de"
    assert main(["translate", str(run), "--input", str(packed), "--output", str(again)]) == 0
    assert again.read_bytes() == output.read_bytes()


def test_translate_gives_a_line_for_a_line(
    trained: tuple[Path, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A07."""
    run, _ = trained
    text = (DATA / "A07_translate_blank/in.en").read_bytes()
    lines = text.decode().split("\n")[:-1]
    blank = [number for number, line in enumerate(lines) if not line.strip()]
    assert blank == [1, 3, 4, 6]
    out = translate(run, text, capsysbinary).decode()
    assert out.count("\n") == len(lines) and out.endswith("\n")
    translations = out.split("\n")[:-1]
    assert [n for n, line in enumerate(translations) if not line] == blank
    # The others do not depend on their neighbours, nor on the order.
    filled = [line for line in lines if line.strip()]
    alone = translate(run, "".join(f"{line}\n" for line in filled[::-1]).encode(), capsysbinary)
    assert alone.decode().split("\n")[:-1] == [line for line in translations if line][::-1]


def test_translate_of_other_ends_of_lines_and_of_files(
    trained: tuple[Path, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run, _ = trained
    lines = (DATA / "base/test.en").read_bytes().split(b"\n")[:3]
    expected = translate(run, b"\n".join(lines) + b"\n", capsysbinary)
    assert expected.count(b"\n") == 3
    assert translate(run, b"\n".join(lines), capsysbinary) == expected
    assert translate(run, b"\r\n".join(lines) + b"\r\n", capsysbinary) == expected
    assert translate(run, b"\xef\xbb\xbf" + b"\n".join(lines), capsysbinary) == expected


def test_lines_keep_their_order_whatever_their_lengths(
    trained: tuple[Path, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """E08, E09: backwards, or with no line feed at the end, each line is translated the same."""
    run, _ = trained
    # To lines unlike those it learnt from a weak model may say the same: others stand beside them.
    text = (DATA / "E_order/in.en").read_bytes() + (DATA / "base/test.en").read_bytes()
    lines = text.split(b"\n")[:-1]
    assert len(lines) == 37 + 29
    out = translate(run, text, capsysbinary).split(b"\n")
    assert len(out) == 37 + 29 + 1 and out[-1] == b""
    assert len(set(out)) > 20  # not a model that says the same to all
    small = ["--decode.tokens-per-batch", "64"]
    again = translate(run, b"\n".join(lines[::-1]), capsysbinary, *small).split(b"\n")
    assert again == [*out[-2::-1], b""]


def test_a_long_line_is_told_and_changes_no_other(
    trained: tuple[Path, str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """E11: the third of five lines goes in parts."""
    run, _ = trained
    lines = (DATA / "E_long/in.en").read_bytes().split(b"\n")[:-1]
    options = ["--decode.max-source-length", "64"]
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for chosen in (lines, lines[:2] + lines[3:]):
            stdin = io.TextIOWrapper(io.BytesIO(b"\n".join(chosen)), encoding="utf-8")
            patch.setattr(sys, "stdin", stdin)
            assert main(["translate", str(run), *options]) == 0
            out, err = capfdbinary.readouterr()
            found.append((out.split(b"\n")[:-1], err.decode()))
    (with_long, told), (without, nothing_told) = found
    assert len(with_long) == 5
    assert with_long[:2] + with_long[3:] == without
    assert "line 3 is long: it was translated in" in told
    assert "is long" not in nothing_told


def test_what_was_cut_and_what_is_empty_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """E06, E12: a blank line is no empty translation."""

    class Translator:
        def translate(self, *arguments: object, **options: object) -> list[Translation]:
            texts = ["", "ein Hund", "", "noch einer"]
            return [
                Translation([Hypothesis(text, 0.0, 0.0, True, [[5]])], finished, [[5]])
                for text, finished in zip(texts, (True, False, True, True), strict=True)
            ]

    model = LoadedModel(Config(), (), (), None, Translator(), None, "step 1", 0.0)
    translate_lines(model, ["", "a dog", "a cat", "another"])
    err = capsys.readouterr().err
    assert "1 of 4 translations reached the longest length allowed" in err
    assert "1 of 4 translations are empty, though their sources are not" in err


@pytest.mark.parametrize(("text", "expected"), [(b"", b""), (b"\n", b"\n"), (b"\n \n", b"\n\n")])
def test_translate_of_nothing(
    trained: tuple[Path, str],
    capsysbinary: pytest.CaptureFixture[bytes],
    text: bytes,
    expected: bytes,
) -> None:
    assert translate(trained[0], text, capsysbinary) == expected


def test_translate_from_the_shell(
    trained: tuple[Path, str], tmp_path: Path, run_cli: Callable
) -> None:
    run, out = trained
    done = run_cli("translate", str(run), stdin=(DATA / "base/test.en").read_bytes(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == Path(json.loads(out)["hypotheses"]).read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_g11_the_encoding_of_the_machine_changes_nothing(
    trained: tuple[Path, str],
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    run_cli: Callable,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Everything is read and written as in a UTF-8 locale."""
    run, _ = trained
    environment = os.environ | {"PYTHONPATH": str(DATA.parents[1]), "JAX_NUM_CPU_DEVICES": "1"}
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    text = (DATA / "B14_emoji/in.txt").read_bytes() + (DATA / "base/test.en").read_bytes()
    done = run_cli("translate", str(run), stdin=text, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == translate(run, text, capsysbinary)
    assert not done.stdout.isascii()

    done = run_cli("train", tiny_experiment(tmp_path, SHORT), env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert "reference   die alte Tür steht hier." in done.stderr.decode()
    assert (tmp_path / "run/tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()


def test_translate_into_a_pipe_that_has_ended(
    trained: tuple[Path, str], start_cli: Callable[..., subprocess.Popen]
) -> None:
    process = start_cli("translate", str(trained[0]))
    process.stdout.close()
    process.stdin.write(b"the cat\n")
    process.stdin.close()
    assert process.stderr.read().decode() == ""
    assert process.wait(timeout=120) == 128 + 13


def test_translate_refuses_what_is_no_utf8(
    trained: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A23: before the first line is translated."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n"), encoding="utf-8"))
    message = fails(["translate", str(trained[0]), "--output", str(tmp_path / "out")], capsys)
    assert message.startswith("standard input, line 2: not valid UTF-8")
    missing = tmp_path / "missing.en"
    message = fails(["translate", str(trained[0]), "--input", str(missing)], capsys)
    assert str(missing) in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step", "7"], ["no checkpoint 7", "300, 450, 600"]),
        (["--step", "last"], ["no checkpoint 'last'", "300, 450, 600"]),
        (["--average-last", "4"], ["average:4", "keep_newest = 3"]),
        (["--average-last", "0"], ["--average-last is 0"]),
        (["--average-last", "2", "--step", "300"], ["leave out --step"]),
    ],
)
@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_checkpoints_that_do_not_exist(
    trained: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    options: list[str],
    words: list[str],
) -> None:
    run, _ = trained
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
    results = (run / "evaluations.jsonl").read_bytes()
    message = fails([command, str(run), *options], capsys)
    for word in words:
        assert word in message
    assert (run / "evaluations.jsonl").read_bytes() == results


def test_a_run_without_a_checkpoint(
    trained: tuple[Path, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("config.json", "tokenizer.model"):
        shutil.copy(trained[0] / name, tmp_path)
    message = fails(["evaluate", str(tmp_path)], capsys)
    assert f"{tmp_path}/checkpoints: no checkpoints here; train first" in message


@pytest.mark.parametrize("options", [[], ["--average-last", "2"], ["--step", "450"]])
def test_evaluate_scores_the_file_that_it_writes(
    trained: tuple[Path, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    run, _ = trained
    # Another test set than the run's own, a sixth of it wrong.
    sources, references = tmp_path / "news.en", tmp_path / "news.de"
    shutil.copy(DATA / "base/valid.en", sources)
    lines = lines_of(DATA / "base/valid.de")
    lines[::6] = ["etwas ganz anderes ."] * len(lines[::6])
    references.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    arguments = ["--sources", str(sources), "--references", str(references), *options]
    assert main(["evaluate", str(run), *arguments]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    checkpoint = {
        (): "step 600",
        ("--average-last", "2"): "average of steps 450, 600",
        ("--step", "450"): "step 450",
    }[tuple(options)]
    assert result["checkpoint"] == checkpoint
    assert result["test_set"] == "news"
    hypotheses = lines_of(Path(result["hypotheses"]))
    assert len(hypotheses) == result["sentences"] == 23
    score = sacrebleu.corpus_bleu(hypotheses, [lines])
    assert 0 < score.score < 90
    assert result["BLEU"] == round(score.score, 2)
    assert f"{score.score:.2f}  {run}  {checkpoint}\n" in err
    assert "tok:13a" in result["signatures"]["BLEU"]
    assert "moses-de-compounds" in result["signatures"]["paper_BLEU"]
    assert lines_of(run / "evaluations.jsonl")[-1] == out.strip()

    output = tmp_path / "out.de"
    arguments = ["--input", str(sources), "--output", str(output), *options]
    assert main(["translate", str(run), *arguments]) == 0
    assert lines_of(output) == hypotheses


def test_bleu_while_training_is_that_of_evaluate_f08(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run's own test set has every score with its signature, at the end of `train`."""
    run, out = trained
    lines = map(json.loads, lines_of(run / "metrics.jsonl"))
    (while_training,) = (line["BLEU"] for line in lines if "BLEU" in line and line["step"] == 600)
    files = ["--sources", str(DATA / "base/valid.en"), "--references", str(DATA / "base/valid.de")]
    assert main(["evaluate", str(run), *files]) == 0
    assert json.loads(capsys.readouterr().out)["BLEU"] == round(while_training, 2) > 0
    result = json.loads(out)
    assert (result["test_set"], result["system"], len(result["fingerprint"])) == (
        "test",
        str(run),
        64,
    )
    assert {"BLEU", "paper_BLEU", "chrF", "TER"} == set(result["signatures"]) <= set(result)


def test_evaluate_takes_options_of_the_search(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for size in (1, 2):
        assert main(["evaluate", str(trained[0]), "--decode.beam-size", str(size)]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert [result["beam_size"] for result in results] == [1, 2]
    assert [result["length_penalty"] for result in results] == [0.6, 0.6]


def test_evaluate_refuses_unequal_files(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    sources, references = DATA / "A10_unequal/train.en", DATA / "A10_unequal/train.de"
    results = (run / "evaluations.jsonl").read_bytes()
    both = ["--sources", str(sources), "--references", str(references)]
    message = fails(["evaluate", str(run), *both], capsys)
    assert f"{sources} has 20 lines but {references} has 17" in message
    message = fails(["evaluate", str(run), *both[:2]], capsys)
    assert "both --sources and --references" in message
    message = fails(["evaluate", str(run), "--directory", str(tmp_path)], capsys)
    assert f"{tmp_path}/test.en: no such file" in message
    (tmp_path / "none").write_bytes(b"")
    none = ["--sources", str(tmp_path / "none"), "--references", str(tmp_path / "none")]
    message = fails(["evaluate", str(run), *none], capsys)
    assert "no sentences to score" in message
    assert (run / "evaluations.jsonl").read_bytes() == results


def weights(run: Path, step: int) -> dict[str, np.ndarray]:
    tree = ocp.StandardCheckpointer().restore(run / "checkpoints" / str(step) / "params")
    return named(tree)


def named(tree: object) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def test_the_average_is_the_mean_of_the_weights(trained: tuple[Path, str]) -> None:
    run, _ = trained
    choice = Choice(RunDirectory(str(run)), "average:3")
    loaded = named(load([choice], DecodeConfig()).params[0])
    parts = [weights(run, step) for step in (300, 450, 600)]
    assert loaded.keys() == parts[0].keys()
    for name, array in loaded.items():
        expected = np.mean([part[name].astype(np.float64) for part in parts], axis=0)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)
        assert array.dtype == np.float32
    assert any((parts[0][name] != parts[2][name]).any() for name in loaded)


def test_the_best_checkpoint_is_the_one_with_the_best_score(trained: tuple[Path, str]) -> None:
    run, _ = trained
    scores = {
        line["step"]: line["BLEU"]
        for line in map(json.loads, lines_of(run / "metrics.jsonl"))
        if "BLEU" in line
    }
    best = max(scores, key=lambda step: (scores[step], -step))
    loaded = load([Choice(RunDirectory(str(run)), "best")], DecodeConfig())
    assert loaded.checkpoint == f"step {best}"
    expected = weights(run, best)
    for name, array in named(loaded.params[0]).items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_run_without_scores_has_no_best_checkpoint(
    tmp_path: Path, tiny_experiment: Callable[..., str]
) -> None:
    changes = {"train.num_steps": 2, "data.test": ""}
    assert main(["train", tiny_experiment(tmp_path, changes)]) == 0
    with pytest.raises(UserError, match="no checkpoint has been scored"):
        load([Choice(RunDirectory(str(tmp_path / "run")), "best")], DecodeConfig())


def test_experiment_files_are_read_as_they_are_written(
    tmp_path: Path, tiny_experiment: Callable[..., str], tiny_config: Callable[..., Config]
) -> None:
    changes = {"data.train": ("train", "valid"), "model.dropout_rate": 0.3}
    path = tiny_experiment(tmp_path, changes)
    assert load_experiment(path) == tiny_config(tmp_path / "run", changes)
    assert load_experiment(path).data.train == ("train", "valid")


@pytest.mark.parametrize("moment", ["gc.callbacks.append(stop)", "Freed()"])
def test_sigint_is_heard_where_python_drops_what_is_raised(moment: str) -> None:
    """As in a callback of the garbage collector, of which JAX has one, or in a destructor."""
    script = f"""
import gc, signal, sys
import jax
import transformer_jax.__main__ as program

class Freed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def stop(*_):
    signal.raise_signal(signal.SIGINT)

class Command:
    @staticmethod
    def run(arguments):
        print("a line", flush=True)
        {moment}
        gc.collect()
        return 0

program.importlib.import_module = lambda name: Command
sys.argv = ["transformer-jax", "train"]
program.program()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 130
    assert done.stdout == b"a line\n"
    assert done.stderr == b"transformer-jax: interrupted\n"
