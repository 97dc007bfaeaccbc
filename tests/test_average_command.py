"""`average`: the mean of checkpoints becomes a run of its own."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax.__main__ import main
from transformer_jax.checkpoint import Checkpoints, Progress
from transformer_jax.config import CheckpointConfig

pytestmark = pytest.mark.usefixtures("one_device")

GOLDEN = Path(__file__).parent / "golden/run"


@pytest.fixture(scope="module")
def run(one_device: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained weights at step 2000, at 2001 and 2002 twice and three times those."""
    run = tmp_path_factory.mktemp("folder") / "run"
    shutil.copytree(GOLDEN, run)
    params = transformer_jax.load(str(run)).params[0]
    with Checkpoints(run / "checkpoints", CheckpointConfig(keep_newest=5)) as checkpoints:
        for step, factor in ((2001, 2), (2002, 3)):
            scaled = jax.tree.map(lambda x, by=factor: by * x, params)
            checkpoints.save_params(step, scaled, Progress(seconds=60.0 * step))
    return run


def test_the_mean_is_a_run_that_translates(run: Path, tmp_path: Path, capsys) -> None:
    new = tmp_path / "new/mean"
    assert main(["average", f"{run}@average:2000-2001", str(new)]) == 0
    _, err = capsys.readouterr()
    assert err == f"average of steps 2000, 2001 of {run} is now {new}\n"
    assert sorted(path.name for path in new.iterdir()) == sorted(
        ["config.json", "tokenizer.model", "checkpoints"]
    )
    assert json.loads((new / "config.json").read_text("utf-8"))["run_directory"] == str(new)
    model = transformer_jax.load(str(new))
    assert model.checkpoint == "average of steps 2000, 2001"
    assert model.minutes_trained == 2001
    single = transformer_jax.load(str(run), checkpoint=2000).params[0]
    jax.tree.map(
        lambda mean, one: np.testing.assert_allclose(mean, 1.5 * one, rtol=1e-6),
        model.params[0],
        single,
    )
    again = transformer_jax.load(str(new), checkpoint="average:2000,2001")
    assert again.checkpoint == model.checkpoint
    assert model.translate(["26 May 2020"]) == transformer_jax.load(
        str(run), checkpoint="average:2000,2001"
    ).translate(["26 May 2020"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}@average:2"], "usage: transformer-jax average RUN@average:5 NEW_RUN"),
        (["{run}", "{new}"], "which checkpoints? name them, such as {run}@average:5"),
        (["{run}@average:2", "{run}"], "{run}: there is something already"),
        (["{run}@average:7", "{new}"], "keep_newest = 1"),
        (["{run}@average:1-7", "{new}"], "no checkpoint 'average:1-7'"),
        (["{new}@average:2", "{new}"], "not a run's directory"),
    ],
)
def test_mistakes(run: Path, tmp_path: Path, capsys, arguments: list[str], words: str) -> None:
    paths = {"run": run, "new": tmp_path / "new"}
    assert main(["average", *(one.format(**paths) for one in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert words.format(**paths) in err
    assert list(tmp_path.iterdir()) == []
