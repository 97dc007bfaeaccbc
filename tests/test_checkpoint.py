"""Checkpoints move between meshes, and hold the weights apart."""

import shutil
from pathlib import Path

import builders
import jax
import numpy as np
import pytest
from builders import mesh_of, small_config, small_model

from transformer_jax.checkpoint import Checkpoints, Progress
from transformer_jax.config import CheckpointConfig
from transformer_jax.train_step import abstract_params, init_state

CONFIG = small_config(num_layers=1)
MODEL = small_model(CONFIG)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint of a state on eight devices, and that state."""
    folder = tmp_path_factory.mktemp("saved")
    state, _ = init_state(CONFIG, MODEL, mesh_of(data=2, fsdp=2, tensor=2))
    with Checkpoints(folder, CheckpointConfig()) as checkpoints:
        checkpoints.save(3, state, Progress(epoch=1, batch=2))
        checkpoints.wait()
    return folder, host(state)


def host(state):
    """All but the key as NumPy arrays, the key as its integers."""
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 1, 1), (1, 4, 1), (1, 1, 4), (4, 1, 2)])
def test_a_checkpoint_is_restored_on_any_mesh(saved: tuple[Path, object], shape) -> None:
    """D27: saved on 2 x 2 x 2."""
    folder, state = saved
    other, _ = init_state(CONFIG, MODEL, mesh_of(*shape))
    with Checkpoints(folder) as checkpoints:
        restored, progress = checkpoints.restore(3, other)
        params = checkpoints.restore_params(3, abstract_params(MODEL, mesh_of(*shape)))
    assert (progress.epoch, progress.batch) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, host(restored), state)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), state.params)
    jax.tree.map(
        lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim) or pytest.fail(),
        restored.params,
        other.params,
    )


def test_weights_are_read_without_the_optimizer(saved: tuple[Path, object], tmp_path: Path) -> None:
    folder, state = saved
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "3/training")
    with Checkpoints(copy) as checkpoints:
        params = checkpoints.restore_params(3, abstract_params(MODEL, builders.one_device()))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), state.params)
