"""Checkpoints move between meshes, and hold the weights apart."""

import dataclasses
import gc
import resource
import shutil
from pathlib import Path

import builders
import jax
import numpy as np
import pytest
from builders import mesh_of, small_config, small_model
from jax.experimental import multihost_utils

from transformer_jax.checkpoint import Checkpoints, Progress, Unreadable
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
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


def test_the_moving_average_is_what_is_read_alone(tmp_path: Path) -> None:
    """And a state with it is restored whole."""
    optimizer = dataclasses.replace(CONFIG.optimizer, ema_decay=0.9)
    state, _ = init_state(
        dataclasses.replace(CONFIG, optimizer=optimizer), MODEL, builders.one_device()
    )
    state = state._replace(ema=jax.tree.map(lambda x: x + 1, state.params))
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(5, state, Progress())
        checkpoints.wait()
        params = checkpoints.restore_params(5, abstract_params(MODEL, builders.one_device()))
        restored, _ = checkpoints.restore(5, state)
    jax.tree.map(np.testing.assert_array_equal, params, state.ema)
    jax.tree.map(np.testing.assert_array_equal, host(restored), host(state))


def test_the_average_needs_the_memory_of_two_copies(tmp_path: Path) -> None:
    """Counted by the buffers that live while it is computed."""
    state, _ = init_state(CONFIG, MODEL, builders.one_device())
    size = sum(x.nbytes for x in jax.tree.leaves(state.params))
    with Checkpoints(tmp_path, CheckpointConfig(keep_newest=3)) as checkpoints:
        for step in (1, 2, 3):
            params = jax.tree.map(lambda x, by=step: x * by, state.params)
            checkpoints.save_params(step, params, Progress())
        expected = jax.tree.map(lambda x: 2 * np.asarray(x), state.params)
        del state, params
        gc.collect()
        before, most = live_bytes(), []
        restore = checkpoints.restore_params

        def restore_noted(*arguments):
            found = restore(*arguments)
            most.append(live_bytes() - before)
            return found

        checkpoints.restore_params = restore_noted
        mean = checkpoints.average([1, 2, 3], abstract_params(MODEL, builders.one_device()))
        most.append(live_bytes() - before)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mean, expected)
    assert most == [size, 2 * size, 2 * size, size]


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_saving_does_not_ask_whether_all_processes_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX answers the question of one number alone; its numbers are the training loop's."""
    asked = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    state, _ = init_state(CONFIG, MODEL, builders.one_device())
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, Progress())
        checkpoints.wait()
        checkpoints.save(1, state, Progress(), replace=True)
        checkpoints.wait()
        assert checkpoints.steps() == [1]
    assert asked == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_d21_a_full_disk_is_told_and_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """Full, as no file may grow beyond 2 kB."""
    state, _ = init_state(CONFIG, MODEL, builders.one_device())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, Progress(batch=1))
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
        try:
            with pytest.raises(
                UserError, match=f"{tmp_path}: .*cannot be written .*File too"
            ) as caught:
                checkpoints.save(2, state, Progress(batch=2))
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.steps() == [1]
        restored, progress = checkpoints.restore(1, state)
        jax.tree.map(np.testing.assert_array_equal, host(restored), host(state))
        assert progress.batch == 1
        # In this process, threads of the save that failed may still be writing what is 2's.
        checkpoints.save(3, state, Progress(batch=3))
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3]
    gc.collect()  # here, where what Orbax has left behind is no news


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_cut_short_makes_a_checkpoint_unreadable(
    saved: tuple[Path, object], tmp_path: Path
) -> None:
    """D19: whichever it is, or its values are those that were saved."""
    folder, expected = saved
    state, _ = init_state(CONFIG, MODEL, builders.one_device())
    copy, count = tmp_path / "copy", 0
    shutil.copytree(folder, copy)
    items = (copy / "3/params", copy / "3/progress")
    for path in [path for item in items for path in item.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with Checkpoints(copy) as checkpoints:
            try:
                restored, _ = checkpoints.restore(3, state)
                jax.tree.map(np.testing.assert_array_equal, host(restored), expected)
            except Unreadable as error:
                assert str(error).startswith(f"{copy}/3: ") and "\n" not in str(error)
                count += 1
        path.write_bytes(content)
    assert count >= 4
    gc.collect()
