"""The experiment files that come with the project."""

from pathlib import Path

import pytest

from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.presets import PRESETS

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.py"))
TABLE_3 = next(path for path in EXPERIMENTS if path.stem == "table3")


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
