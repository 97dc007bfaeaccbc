"""Checkpoints by Orbax: written in the background, committed whole or not at all.

A checkpoint is `checkpoints/<step>/` of a run's directory: `params`, `training` (the rest of the
train state) and `progress` (the place in the data, the best score, as JSON). Arrays and JSON only:
loading one executes nothing.
"""

import dataclasses
import logging
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN

from transformer_jax.array_types import Params
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
from transformer_jax.train_step import TrainState


@dataclass
class Progress:
    """What training remembers besides the train state."""

    epoch: int = 0
    """Epoch of the next batch."""
    batch: int = 0
    """Its place in the plan of the epoch."""
    corpus_fingerprint: str = ""
    """Of the token store trained on."""
    validated_step: int = 0
    """The last step whose validation is complete."""
    best_score: float | None = None
    """Highest score on the validation set."""
    best_step: int = 0
    """The step that had it."""
    best: list[list[float | int]] = field(default_factory=list)
    """The highest scores, best first, each with its step, whose checkpoint is kept."""
    validations_since_best: int = 0
    """Scores that were not better, in a row."""
    seconds: float = 0.0
    """Wall-clock time spent training, all sessions together."""
    averaged_steps: list[int] = field(default_factory=list)
    """The steps whose mean the weights are, in a run that `average` made."""

    def is_out_of_patience(self, patience: int) -> bool:
        """Whether as many validations as that, if not 0, were no better."""
        return 0 < patience <= self.validations_since_best


class Unreadable(UserError):
    """A checkpoint is damaged, or that of another model."""


class Checkpoints:
    """The checkpoints of a run. Use as a context manager: leaving waits for what is being saved."""

    def __init__(self, directory: Path, retention: CheckpointConfig | None = None):
        """Opens them for writing with a retention rule, without one for reading only."""
        # Orbax logs every save in several lines; errors are raised all the same.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self.directory = directory.absolute()
        self._best = _KeepBest()
        if retention is None:
            if not self.directory.is_dir():
                raise UserError(f"{self.directory}: no checkpoints here; train first")
            options = ocp.CheckpointManagerOptions(read_only=True)
        else:
            policy = AnyPreservationPolicy([LatestN(retention.keep_newest), self._best])
            # What a kill left half-written is not a checkpoint, but would lie there for ever.
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policy, cleanup_tmp_directories=True
            )
        try:
            self._manager = _Manager(
                self.directory, options=options, item_names=("params", "training", "progress")
            )
        except OSError as error:
            raise UserError(f"{self.directory}: cannot be written to ({error.strerror})") from None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, progress: Progress, replace: bool = False) -> None:
        """Starts to write a checkpoint; the older ones of `progress.best` are kept.

        Raises UserError where it, or the one before, cannot be written, as on a full disk.
        """
        params, training = _split(state)
        self._best.steps = {step for _, step in progress.best}
        with self._writing():
            if replace:
                self._manager.delete(step)
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params),
                    training=ocp.args.StandardSave(training),
                    progress=ocp.args.JsonSave(dataclasses.asdict(progress)),
                ),
                force=True,
            )

    def save_params(self, step: int, params: Params, progress: Progress) -> None:
        """Writes weights alone, from which no training goes on. Raises UserError as `save` does."""
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params),
                    progress=ocp.args.JsonSave(dataclasses.asdict(progress)),
                ),
            )
        self.wait()

    def wait(self) -> None:
        """Returns when the last save is complete. Raises UserError where it failed."""
        with self._writing():
            self._manager.wait_until_finished()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            reason = str(error).strip().split("\n")[0]
            for unfinished in self.directory.glob("*.orbax-checkpoint-tmp"):
                shutil.rmtree(unfinished, ignore_errors=True)  # room, where the disk is full
            raise UserError(
                f"{self.directory}: a checkpoint cannot be written ({reason}); those before it are "
                "whole: make room, and the same command goes on from there"
            ) from None

    def set_aside(self, step: int) -> Path:
        """Renames a checkpoint, so that it is none any more; gives back its new path."""
        path = self.directory / f"unreadable-{step}-{secrets.token_hex(2)}"
        (self.directory / str(step)).rename(path)
        self._manager.reload()
        return path

    def restore(self, step: int, state: TrainState) -> tuple[TrainState, Progress]:
        """The state and progress of a step; `state` gives shapes and shardings, not values."""
        params, training = _split(state)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, (params, training))
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract[0]),
                    training=ocp.args.StandardRestore(abstract[1]),
                    progress=ocp.args.JsonRestore(),
                ),
            )
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise self._unreadable(step, error) from None
        return _join(state, restored.params, restored.training), Progress(**restored.progress)

    def restore_params(self, step: int, abstract_params: Params) -> Params:
        """The weights of a step alone, with the shapes and shardings of `abstract_params`."""
        try:
            return self._manager.restore(
                step,
                args=ocp.args.Composite(params=ocp.args.StandardRestore(abstract_params)),
            ).params
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise self._unreadable(step, error) from None

    def progress(self, step: int) -> Progress:
        """The progress of a step alone."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        try:
            return Progress(**self._manager.restore(step, args=args).progress)
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise self._unreadable(step, error) from None

    def average(self, steps: list[int], abstract_params: Params) -> Params:
        """The mean of the weights of several steps (section 6.1), two copies in memory at most."""
        total = self.restore_params(steps[0], abstract_params)
        for step in steps[1:]:
            total = _add(total, self.restore_params(step, abstract_params))
        return jax.tree.map(lambda x: x / np.float32(len(steps)), total)

    def _unreadable(self, step: int, error: Exception) -> Unreadable:
        reason = str(error).strip().split("\n")[0]
        return Unreadable(
            f"{self.directory / str(step)}: not a checkpoint of this model ({reason})"
        )


class _Manager(ocp.CheckpointManager):
    """Leaves it to the training loop to ask JAX whether all processes stop here.

    JAX tells it at the question of one agreed number: to Orbax's questions, numbered by step in
    between, the answer would be lost, and the job went on for ever.
    """

    def reached_preemption(self, step: int) -> bool:
        del step
        return False


class _KeepBest:
    """Orbax's retention by score forgets the scores when the process ends; `Progress` does not."""

    def __init__(self) -> None:
        self.steps: set[int] = set()

    def should_preserve(self, checkpoints: Sequence, *, context: object) -> list[bool]:
        return [checkpoint.step in self.steps for checkpoint in checkpoints]


@partial(jax.jit, donate_argnums=0)
def _add(total: Params, params: Params) -> Params:
    return jax.tree.map(jax.numpy.add, total, params)


def _split(state: TrainState) -> tuple[Params, dict]:
    """The weights to translate with apart from the rest, so that they can be read alone.

    With a moving average those are the average. The key goes as plain integers.
    """
    training = {
        "step": state.step,
        "opt_state": state.opt_state,
        "key": jax.random.key_data(state.key),
        "skipped": state.skipped,
        "skipped_in_a_row": state.skipped_in_a_row,
    }
    if state.ema is not None:
        training["params"] = state.params
    return state.weights, training


def _join(like: TrainState, weights: Params, training: dict) -> TrainState:
    key = jax.random.wrap_key_data(training.pop("key"), impl=jax.random.key_impl(like.key))
    ema = None if like.ema is None else weights
    params = training.pop("params", weights)
    return TrainState(params=params, key=key, ema=ema, **training)
