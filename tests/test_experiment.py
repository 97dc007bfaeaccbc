"""Experiment files."""

import re
from pathlib import Path

import pytest

from transformer_jax.config import Config, ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment


def experiment(directory: Path, text: str, name: str = "experiment.py") -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


IMPORT = "from transformer_jax.config import Config, ModelConfig\n"


def test_an_experiment_file_is_run(tmp_path: Path) -> None:
    body = "def get_config() -> Config:\n    return Config(model=ModelConfig(num_layers=LAYERS))\n"
    path = experiment(tmp_path, f"{IMPORT}LAYERS = 1 + 2\n{body}")
    assert load_experiment(path) == Config(model=ModelConfig(num_layers=3))


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    experiment(tmp_path, f"{IMPORT}def get_config():\n    return Config(run_directory='home')\n")
    assert load_experiment("~/experiment.py").run_directory == "home"


@pytest.mark.parametrize("name", ["missing.py", "", "missing/experiment.py"])
def test_a_missing_experiment_file(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)  # An empty name leaves the folder, which is no file either.
    with pytest.raises(UserError, match=re.escape(f"{path}: no such experiment file")):
        load_experiment(path)


@pytest.mark.parametrize(
    ("text", "line"), [("def get_config(:\n", 1), ("x = 1\n\ny = = 2\n", 3), ("if 1:\nx\n", 2)]
)
def test_a_syntax_error_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = experiment(tmp_path, text)
    with pytest.raises(UserError, match=re.escape(f"{path}, line {line}: ")):
        load_experiment(path)


def test_an_experiment_without_get_config(tmp_path: Path) -> None:
    path = experiment(tmp_path, f"{IMPORT}config = Config()\n")
    with pytest.raises(UserError, match=re.escape(path) + r": .*get_config\(\)"):
        load_experiment(path)


@pytest.mark.parametrize(
    ("value", "name"), [("{}", "dict"), ("None", "NoneType"), ("ModelConfig()", "ModelConfig")]
)
def test_get_config_of_the_wrong_type(tmp_path: Path, value: str, name: str) -> None:
    path = experiment(tmp_path, f"{IMPORT}def get_config():\n    return {value}\n")
    with pytest.raises(UserError, match=re.escape(path) + rf": .* returned {name}, not Config"):
        load_experiment(path)


def test_an_invalid_value_in_an_experiment(tmp_path: Path) -> None:
    body = "def get_config():\n    return Config(model=ModelConfig(num_layers=0))\n"
    with pytest.raises(UserError, match=r"model\.num_layers is 0"):
        load_experiment(experiment(tmp_path, IMPORT + body))


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    path = experiment(tmp_path, "num_layers = 3\n", "experiment.toml")
    with pytest.raises(UserError, match=re.escape(path)):
        load_experiment(path)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("import nosuchmodule\n", 1, "ModuleNotFoundError"),
        ("\ndef get_config():\n    return undefined\n", 3, "NameError"),
    ],
)
def test_an_experiment_that_fails_names_its_line(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    path = experiment(tmp_path, text)
    with pytest.raises(UserError, match=rf"{re.escape(path)}, line {line}: {what}: "):
        load_experiment(path)


def test_get_config_that_is_no_function(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must define get_config\(\)"):
        load_experiment(experiment(tmp_path, "get_config = 3\n"))


def test_a_variant_is_handed_to_get_config(tmp_path: Path) -> None:
    body = "def get_config(name='a', *rest):\n    return Config(run_directory=name)\n"
    path = experiment(tmp_path, IMPORT + body)
    assert load_experiment(path).run_directory == "a"
    assert load_experiment(f"{path}:b c").run_directory == "b c"


def test_a_variant_of_an_experiment_that_has_none(tmp_path: Path) -> None:
    path = experiment(tmp_path, f"{IMPORT}def get_config():\n    return Config()\n")
    with pytest.raises(UserError, match=re.escape(f"{path}: get_config('A1') does not fit")):
        load_experiment(f"{path}:A1")
    path = experiment(tmp_path, f"{IMPORT}def get_config(row):\n    return Config()\n")
    with pytest.raises(UserError, match=re.escape(f"{path}: get_config() does not fit")):
        load_experiment(path)
    with pytest.raises(UserError, match=r"missing\.py: no such experiment file"):
        load_experiment(f"{tmp_path}/missing.py:A1")


def test_a_file_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    body = "def get_config():\n    return Config(run_directory='colon')\n"
    path = experiment(tmp_path, IMPORT + body, "a:b.py")
    assert load_experiment(path).run_directory == "colon"
