"""A checkpoint of long ago must load and translate as it did then.

`golden/run` was trained on 2026-11-30 (float32, 2,000 updates on the built-in corpus, 1 + 1 layers
of width 32), `golden/translations.json` is what it translated. Neither is ever made anew: where
this fails, the checkpoints of users fail too.
"""

import json
from collections.abc import Callable
from pathlib import Path

import builders
import jax
import numpy as np
import pytest

from transformer_jax.checkpoint import Checkpoints
from transformer_jax.loading import Choice, load
from transformer_jax.model.transformer import Transformer
from transformer_jax.presets import PRESETS
from transformer_jax.run_directory import RunDirectory
from transformer_jax.train_step import init_state

GOLDEN = Path(__file__).parent / "golden"
TRANSLATIONS = json.loads((GOLDEN / "translations.json").read_text(encoding="utf-8"))
SOURCES = [entry["source"] for entry in TRANSLATIONS]

pytestmark = pytest.mark.usefixtures("one_device")


def test_the_command_line_translates_as_it_did(run_cli: Callable[..., object]) -> None:
    lines = "".join(f"{source}\n" for source in SOURCES).encode()
    result = run_cli("translate", str(GOLDEN / "run"), stdin=lines)
    assert result.returncode == 0, result.stderr.decode()
    expected = [entry["translation"] for entry in TRANSLATIONS]
    assert result.stdout.decode().split("\n") == [*expected, ""]


def test_the_scores_are_what_they_were() -> None:
    run = RunDirectory(str(GOLDEN / "run"))
    model = load([Choice(run)], run.load_config().decode)
    translations = model.translator.translate(model.params, SOURCES)
    np.testing.assert_allclose(
        [translation.score for translation in translations],
        [entry["score"] for entry in TRANSLATIONS],
        atol=1e-4,
    )


def test_training_could_go_on_from_it() -> None:
    """The optimizer's state, the place in the data and the dropout key load too."""
    run = RunDirectory(str(GOLDEN / "run"))
    config = run.load_config()
    model = Transformer(config.model, 700, builders.BOS)
    new, _ = init_state(config, model, builders.one_device())
    with Checkpoints(run.checkpoints) as checkpoints:
        state, progress = checkpoints.restore(2_000, new)
    assert (state.step, progress.epoch, progress.batch) == (2_000, 13, 37)
    assert jax.tree.structure(state) == jax.tree.structure(new)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(state.opt_state[1].nu))
    assert 0 < largest < 1


def test_names_and_shapes_of_the_base_model_are_what_they_were() -> None:
    config = builders.small_config()
    model = Transformer(PRESETS["base"].model, 37_000, builders.BOS)
    shapes = jax.eval_shape(lambda: init_state(config, model, builders.one_device())[0].params)
    table = "".join(
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {leaf.shape} {leaf.dtype}\n"
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    )
    assert table == (GOLDEN / "base_parameters.txt").read_text(encoding="utf-8")
