"""The experiment files that come with the project."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from wmt14 import make_wmt14

from transformer_jax.__main__ import main
from transformer_jax.config import Config
from transformer_jax.data.cldr import build_corpus
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.presets import PRESETS

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.py"))
TABLE_3 = next(path for path in EXPERIMENTS if path.stem == "table3")
WMT14 = [path for path in EXPERIMENTS if path.stem.startswith("wmt14_")]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_is_a_valid_configuration_with_a_command(path: Path) -> None:
    config = load_experiment(str(path))
    assert isinstance(config, Config)
    assert config.run_directory.startswith(f"runs/{path.stem}")
    first_line = path.read_text(encoding="utf-8").split("\n")[0]
    assert first_line.startswith('"""') and len(first_line) > 20
    command = f"python -m transformer_jax train experiments/{path.name}"
    assert command in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", PRESETS)
def test_every_row_of_table_3_is_an_experiment(row: str) -> None:
    config = load_experiment(f"{TABLE_3}:{row}")
    assert (config.model, config.loss, config.train) == PRESETS[row]
    assert config.run_directory == f"runs/table3_{row}"


def test_a_row_that_table_3_has_not_is_named_with_those_it_has() -> None:
    with pytest.raises(UserError, match=r"table3\.py: no row 'F1' .* base, A1, .*, big, tiny"):
        load_experiment(f"{TABLE_3}:F1")


def test_multi30k_reads_its_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(next(path for path in EXPERIMENTS if path.stem == "multi30k_en_de"))
    monkeypatch.setenv("MULTI30K_DIR", "/somewhere")
    assert load_experiment(path).data.directory == "/somewhere"
    monkeypatch.delenv("MULTI30K_DIR")
    assert load_experiment(path).data.directory == ""


# --- WMT14 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WMT14, ids=lambda path: path.stem)
def test_wmt14_has_the_settings_of_the_paper(path: Path) -> None:
    """Table 2, and sections 5.1 and 6.1."""
    language, size = path.stem.split("_")[2:]
    config = load_experiment(str(path))
    model, loss, train = PRESETS[size]
    dropout = {"de_base": 0.1, "de_big": 0.3, "fr_base": 0.1, "fr_big": 0.1}[f"{language}_{size}"]
    assert config.model == dataclasses.replace(model, dtype="bfloat16", dropout_rate=dropout)
    assert (config.loss, config.train.num_steps) == (loss, train.num_steps)
    assert config.data.tfds_name == f"wmt14_translate/{language}-en"
    assert (config.data.source_language, config.data.target_language) == ("en", language)
    assert config.tokenizer.vocab_size == {"de": 37_000, "fr": 32_000}[language]
    assert 24_000 <= config.data.tokens_per_update <= 26_000
    assert config.decode == Config().decode and config.optimizer == Config().optimizer
    assert config.decode.beam_size == 4 and config.decode.length_penalty == 0.6


@pytest.mark.parametrize("path", WMT14, ids=lambda path: path.stem)
def test_wmt14_keeps_evenly_spaced_checkpoints_to_average(path: Path) -> None:
    config = load_experiment(str(path))
    averaged, text = {"base": 5, "big": 20}[path.stem.split("_")[3]], path.read_text("utf-8")
    assert f"evaluate {config.run_directory} --average-last {averaged}\n" in text
    assert config.checkpoint.keep_newest == averaged
    # A validation writes a checkpoint too.
    for interval in (config.train.dev_loss_interval, config.train.dev_bleu_interval):
        assert interval > 0 and interval % config.checkpoint.interval == 0


@pytest.mark.parametrize("path", WMT14, ids=lambda path: path.stem)
@pytest.mark.parametrize("devices", [1, 2, 8, 16, 32])
def test_wmt14_has_no_idle_rows(path: Path, devices: int) -> None:
    data = load_experiment(str(path)).data
    assert data.tokens_per_update % (data.max_length * devices) == 0


SMALL = """
    --tokenizer.vocab-size 400 --model.num-layers 1 --model.d-model 16 --model.d-ff 32
    --model.num-heads 2 --data.max-length 64 --data.tokens-per-update 512 --train.num-steps 3
    --train.log-interval 1 --train.dev-loss-interval 3 --train.dev-bleu-interval 3
    --checkpoint.interval 1 --decode.beam-size 2 --decode.max-extra-length 4
""".split()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with few sentences of the CLDR in place of WMT14."""
    directory = tmp_path_factory.mktemp("tfds")
    for language in ("de", "fr"):
        corpus = build_corpus(language, "en")
        make_wmt14(
            directory,
            language,
            train=corpus["train"][::100],
            validation=corpus["dev"][:8],
            test=corpus["test"][:8],
        )
    return directory


@pytest.mark.parametrize("path", WMT14, ids=lambda path: path.stem)
def test_wmt14_runs_from_end_to_end(
    path: Path, stand_ins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the eight devices of these tests, with the recipe's averaging."""
    run = str(tmp_path / "run")
    options = ["--run-directory", run, "--data.directory", str(stand_ins), *SMALL]
    assert main(["train", str(path), *options]) == 0
    trained = capsys.readouterr()
    assert "step 3/3" in trained.err and "step 3: dev" in trained.err
    assert re.search(r"devices: 8 cpu, mesh data 8", trained.err)
    first = json.loads(trained.out.splitlines()[-1])
    assert (first["test_set"], first["checkpoint"]) == ("newstest2014", "step 3")
    assert first["sentences"] == 8
    assert "it has 8 lines" in trained.err, "the stand-in is not the true newstest2014"

    assert main(["evaluate", run, "--average-last", "3"]) == 0
    averaged = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert averaged["checkpoint"] == "average of steps 1, 2, 3"
    language = path.stem.split("_")[2]
    assert Path(averaged["hypotheses"]).suffix == f".{language}"
    assert len(Path(averaged["hypotheses"]).read_text("utf-8").split("\n")) == 8 + 1


def test_wmt14_runs_on_the_fake_data_of_tfds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random letters in place of text."""

    # tfds's own asks for a self that it is not given, and has text where data sets have bytes.
    def read_many(keys, generator, serialized=False) -> list:
        examples = (generator[key] for key in keys)
        return [{name: text.encode() for name, text in one.items()} for one in examples]

    monkeypatch.setattr("tensorflow_datasets.testing.mocking._getitems", read_many)
    options = ["--run-directory", str(tmp_path / "run"), *SMALL, "--data.inspection", "off"]
    with tfds.testing.mock_data(num_examples=50):
        assert main(["train", str(WMT14[0]), *options, "--decode.tokens-per-batch", "256"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["sentences"] == 50
