"""The command line with two vocabularies, with a unigram model, and with models of others."""

import dataclasses
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from transformer_jax.__main__ import main
from transformer_jax.array_types import Params
from transformer_jax.config import Config, DecodeConfig, TokenizerConfig
from transformer_jax.data.text import read_lines
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.loading import Choice, load
from transformer_jax.prepare import load_prepared, prepare
from transformer_jax.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("one_device")

DATA = Path(__file__).parent / "data/base"
SOURCES, TARGETS = (list(read_lines(DATA / f"train.{language}")) for language in ("en", "de"))
SEPARATE = {
    "tokenizer.shared": False,
    "train.num_steps": 12,
    "train.dev_loss_interval": 12,
    "decode.beam_size": 1,
    "decode.max_extra_length": 1,
}


def weights(run: RunDirectory, step: int) -> Params:
    return load([Choice(run, str(step))], DecodeConfig()).params[0]


def translate(run: Path, text: str, capsysbinary: pytest.CaptureFixture[bytes]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        patch.setattr(sys, "stdin", stdin)
        assert main(["translate", str(run)]) == 0
    return capsysbinary.readouterr().out.decode()


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a user's mistake."""
    assert main(arguments) == 2
    err = capsys.readouterr().err
    (message,) = (line for line in err.splitlines() if line.startswith("transformer-jax: "))
    assert "Traceback" not in err
    return message


def test_two_vocabularies_from_text_to_scores_with_a_break(
    tmp_path: Path, tiny_experiment: Callable[..., str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    experiment = tiny_experiment(tmp_path, SEPARATE)
    assert main(["train", experiment, "--train.num-steps", "5", "--data.test", ""]) == 0
    assert main(["train", experiment]) == 0
    result = json.loads(capsysbinary.readouterr().out)

    run = RunDirectory(str(tmp_path / "run"))
    assert not (run.path / "tokenizer.model").exists()
    source, target = map(Tokenizer.load, run.tokenizers(shared=False))
    config = TokenizerConfig(vocab_size=320)
    assert source.model_bytes == train_tokenizer(SOURCES, config)
    assert target.model_bytes == train_tokenizer(TARGETS, config)
    store = load_prepared(run.load_config(), run).train
    for i in (0, 99, 299):
        assert source.decode([store.source(i)]) == [SOURCES[i]]
        assert target.decode([store.target(i)]) == [TARGETS[i]]

    table = weights(run, 12)["embedding"]
    assert table["source_embedding"].shape == table["embedding"].shape == (384, 16)
    before = weights(run, 5)["embedding"]
    for name in ("source_embedding", "embedding"):
        assert np.abs(table[name] - before[name]).max() > 1e-4, "both go on learning"
    metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "negative_loss" in line] == [5, 12]
    assert 0 <= result["BLEU"] <= 100
    lines = list(read_lines(DATA / "test.en"))
    translations = translate(run.path, "".join(f"{line}\n" for line in lines), capsysbinary)
    assert translations == Path(result["hypotheses"]).read_text(encoding="utf-8")
    assert "\ufffd" not in translations, "ids of the target's vocabulary"


def prepared(config: Config) -> tuple[RunDirectory, list[str]]:
    """The directory of a run before its first step, and what is said until then."""
    run, said = RunDirectory(config.run_directory), []
    prepare(config, run, said.append)
    return run, said


def test_a_unigram_model_is_trained_and_taken_by_another_run(
    tmp_path: Path, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11: in a path of the user's, `~` is the home; the run keeps a copy of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    changes: dict[str, object] = {"tokenizer.algorithm": "unigram"}
    prepared(tiny_config(tmp_path / "one", changes))
    first = tmp_path / "one/tokenizer.model"
    model = Tokenizer.load(first)
    assert (model.algorithm, model.vocab_size) == ("unigram", 320)

    taking = tiny_config(
        tmp_path / "two", changes | {"tokenizer.models": ("~/one/tokenizer.model",)}
    )
    run, said = prepared(taking)
    assert said[0] == f"taking {first}, which changes 0 of 23 lines of dev"
    assert (tmp_path / "two/tokenizer.model").read_bytes() == first.read_bytes()
    assert not Path("~").exists()
    first.unlink()
    prepared(taking)
    text = load_prepared(taking, run)
    assert text.tokenizers.fingerprint == model.fingerprint
    assert text.tokenizers.shared


def test_g13_paths_with_spaces_quotes_and_accents(
    tmp_path: Path, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: SentencePiece gets no path at all, and its options one by one."""
    monkeypatch.chdir(tmp_path)
    folder = Path("x 'y'")
    folder.mkdir()
    for language in ("en", "de"):
        shutil.copy(DATA / f"train.{language}", folder / f"träin data.{language}")
    changes: dict[str, object] = {
        "data.directory": "./x 'y'",
        "data.train": ("träin data",),
        "data.dev": "träin data",
        "data.test": "",
    }
    run, _ = prepared(tiny_config(Path("./out dir"), changes))
    assert Tokenizer.load(run.path / "tokenizer.model").vocab_size == 320
    changes |= {"tokenizer.models": ("./out dir/tokenizer.model",)}
    again, _ = prepared(tiny_config(Path('./out "2"'), changes))
    assert (again.path / "tokenizer.model").is_file()


def foreign(folder: Path, name: str = "a", **options: object) -> str:
    path = folder / f"{name}.model"
    config = dataclasses.replace(TokenizerConfig(vocab_size=320), **options)
    path.write_bytes(train_tokenizer(SOURCES + TARGETS, config))
    return str(path)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (lambda folder: [f"{folder}/no.model"], {}, ["no.model: cannot be read"]),
        (lambda folder: [f"{DATA}/train.en"], {}, ["train.en: not a SentencePiece model"]),
        (
            lambda folder: [foreign(folder, vocab_size=330)],
            {},
            ["vocab_size is 320, but", "a.model has 330: use --tokenizer.vocab-size 330"],
        ),
        (
            lambda folder: [foreign(folder, algorithm="unigram")],
            {},
            ["algorithm is 'bpe'", "'unigram': use --tokenizer.algorithm unigram"],
        ),
        (
            lambda folder: [foreign(folder), foreign(folder, "b", vocab_size=321)],
            {"tokenizer.shared": False},
            ["a.model has 320 pieces", "b.model 321"],
        ),
    ],
    ids=["missing", "no model", "size", "algorithm", "two sizes"],
)
def test_a_model_that_is_not_what_the_configuration_says_is_refused(
    tmp_path: Path,
    tiny_experiment: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], list[str]],
    changes: dict[str, object],
    words: list[str],
) -> None:
    models = {"tokenizer.models": tuple(make(tmp_path))}
    message = fails(["train", tiny_experiment(tmp_path, changes | models)], capsys)
    for word in words:
        assert word in message
    assert not (tmp_path / "run").exists()


def test_a_model_that_changes_text_is_taken_and_that_is_told(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    """B16: here an unknown letter, with a model that has no bytes."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.replace("a", "") for line in SOURCES + TARGETS),
        model_prefix=str(tmp_path / "theirs"),
        model_type="bpe",
        vocab_size=320,
        pad_id=3,
        minloglevel=2,
    )
    models = (str(tmp_path / "theirs.model"),)
    _, said = prepared(tiny_config(tmp_path / "run", {"tokenizer.models": models}))
    for line, language in zip(said, ("en", "de"), strict=False):
        changed = sum("a" in sentence for sentence in read_lines(DATA / f"valid.{language}"))
        assert 0 < changed < 23
        assert f"theirs.model, which changes {changed} of 23 lines of dev" in line
