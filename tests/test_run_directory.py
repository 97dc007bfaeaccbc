"""The folder of a run: its paths, and which runs may go on."""

import dataclasses
import re
from pathlib import Path

import pytest

from transformer_jax.config import Config, ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory

FREE = {
    "run_directory": "elsewhere",
    "data.directory": "moved",
    "data.test": "newstest2015",
    "data.prefetch_batches": 2,
    "mesh.data": 4,
    "mesh.fsdp": 2,
    "mesh.tensor": 2,
    "model.remat": "full",
    "model.attention": "xla",
    "train.num_steps": 200_000,
    "train.log_interval": 7,
    "train.dev_loss_interval": 7,
    "train.dev_bleu_interval": 0,
    "train.patience": 3,
    "train.max_skipped_updates": 3,
    "checkpoint.interval": 7,
    "checkpoint.keep_newest": 20,
    "checkpoint.keep_best": 3,
    "decode.beam_size": 8,
    "decode.length_penalty": 1.0,
    "decode.max_extra_length": 100,
    "decode.tokens_per_batch": 64,
}

FIXED = {
    "data.corpus": "cldr",
    "data.tfds_name": "wmt14_translate/fr-en",
    "data.source_language": "fr",
    "data.target_language": "fr",
    "data.train": ("train", "more"),
    "data.max_length": 128,
    "data.max_length_ratio": 3.0,
    "data.batching": "bucketed",
    "data.tokens_per_update": 50_000,
    "tokenizer.algorithm": "unigram",
    "tokenizer.shared": False,
    "tokenizer.vocab_size": 8_000,
    "tokenizer.max_sentences": 1_000,
    "tokenizer.character_coverage": 0.99,
    "tokenizer.models": ("spm.model",),
    "tokenizer.sampling_rate": 0.1,
    "model.num_layers": 3,
    "model.d_model": 256,
    "model.d_ff": 1024,
    "model.num_heads": 4,
    "model.dropout_rate": 0.3,
    "model.attention_bias": True,
    "model.attention_dropout_rate": 0.1,
    "model.ff_dropout_rate": 0.1,
    "model.norm": "pre",
    "model.dtype": "bfloat16",
    "loss.label_smoothing": 0.0,
    "optimizer.learning_rate_scale": 2.0,
    "optimizer.warmup_steps": 8_000,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.997,
    "optimizer.epsilon": 1e-8,
    "optimizer.clip_norm": 1.0,
    "train.seed": 1,
    "train.num_micro_batches": 2,
}


def changed(path: str, value: object) -> Config:
    """The default configuration with one field changed."""
    config = Config()
    section, _, name = path.partition(".")
    if name:
        value = dataclasses.replace(getattr(config, section), **{name: value})
    return dataclasses.replace(config, **{section: value})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that was begun with the default configuration."""
    run = RunDirectory(str(tmp_path / "run"))
    with run.creating():
        run.save_config(Config())
    return run


def test_the_same_experiment_goes_on(run: RunDirectory) -> None:
    run.check_same_experiment(Config())


def test_a_run_not_begun_takes_any_experiment(tmp_path: Path) -> None:
    RunDirectory(str(tmp_path / "new")).check_same_experiment(changed("model.num_layers", 3))


def test_another_model_is_another_experiment(run: RunDirectory) -> None:
    with pytest.raises(UserError) as caught:
        run.check_same_experiment(Config(model=ModelConfig(num_layers=3)))
    message = str(caught.value)
    assert str(run.path) in message
    assert "model.num_layers = 6, not 3" in message
    assert "--run-directory" in message


@pytest.mark.parametrize(("path", "value"), FIXED.items())
def test_what_an_update_computes_is_fixed(run: RunDirectory, path: str, value: object) -> None:
    """D11, D35: the size of a batch, for one."""
    message = re.escape(f"{path} = ") + ".*" + re.escape(f", not {value!r}: ")
    with pytest.raises(UserError, match=message):
        run.check_same_experiment(changed(path, value))


@pytest.mark.parametrize(("path", "value"), FREE.items())
def test_what_does_not_change_an_update_is_free(
    run: RunDirectory, path: str, value: object
) -> None:
    config = changed(path, value)
    assert config != Config()
    run.check_same_experiment(config)


def test_a_free_change_does_not_hide_another(run: RunDirectory) -> None:
    config = dataclasses.replace(changed("model.d_ff", 64), run_directory="elsewhere")
    with pytest.raises(UserError, match=r"model\.d_ff = 2048, not 64"):
        run.check_same_experiment(config)


def test_the_saved_configuration_is_loaded(run: RunDirectory) -> None:
    config = changed("model.num_layers", 3)
    run.save_config(config)
    assert run.load_config() == config
    assert [path.name for path in run.path.iterdir()] == ["config.json"], "nothing else is left"


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match=re.escape(f"{path}: not a run's directory")):
            RunDirectory(str(path)).load_config()


def test_a_broken_configuration_names_its_file(run: RunDirectory) -> None:
    run.config.write_text("{\n  broken", encoding="utf-8")
    for use in (run.load_config, lambda: run.check_same_experiment(Config())):
        with pytest.raises(UserError, match=re.escape(f"{run.config}, line 2")):
            use()


def test_home_and_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B11, G07."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("NEAR_HOME", "~/near")
    monkeypatch.chdir(tmp_path)
    expected = {
        "~/runs/1": tmp_path / "home/runs/1",
        "$SCRATCH/1": tmp_path / "scratch/1",
        "${SCRATCH}/a": tmp_path / "scratch/a",
        "$NEAR_HOME/1": tmp_path / "home/near/1",
        "runs/1": tmp_path / "runs/1",
        "./a/../b/1": tmp_path / "b/1",
        str(tmp_path / "absolute"): tmp_path / "absolute",
    }
    for path, where in expected.items():
        run = RunDirectory(path)
        assert run.path == where
        assert {p.parent for p in (run.config, *run.tokenizers(True), run.checkpoints)} == {where}


def test_a_run_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "a/b/c"))
    with run.creating():
        assert run.path.is_dir()
        (run.path / "kept").write_bytes(b"")
    assert [path.name for path in run.path.iterdir()] == ["kept"]


def test_a_run_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    with pytest.raises(UserError, match="the corpus is empty"), run.creating():
        run.tokens.touch()
        raise UserError("the corpus is empty")
    assert not run.path.exists()


def test_a_failure_leaves_what_was_there_before(run: RunDirectory) -> None:
    before, tokens = run.config.read_bytes(), run.path.parent / "tokens"
    with pytest.raises(KeyboardInterrupt), run.creating(tokens):
        tokens.mkdir()
        raise KeyboardInterrupt
    assert not tokens.exists()
    assert [path.name for path in run.path.iterdir()] == ["config.json"]
    assert run.config.read_bytes() == before


@pytest.mark.parametrize("below", ["", "run", "a/run"])
def test_a_place_that_cannot_be_written_to(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    run = RunDirectory(str(file / below))
    message = re.escape(str(run.path)) + r": cannot be written to .*--run-directory"
    with pytest.raises(UserError, match=message), run.creating():
        pytest.fail("the block must not run")
    assert file.read_bytes() == b"precious"


@pytest.mark.parametrize("path", ["$NO_SUCH_VARIABLE/1", "~no_such_user/1"])
def test_what_cannot_be_expanded_is_refused(path: str) -> None:
    with pytest.raises(UserError, match=re.escape(path)):
        RunDirectory(path)


@pytest.mark.parametrize("path", ["gs://bucket/run", "s3://bucket/run"])
def test_a_bucket_is_no_folder(path: str) -> None:
    """As a path it would make a folder named `gs:`."""
    with pytest.raises(UserError, match=rf"{path}: .* on a disk, local or shared"):
        RunDirectory(path)
