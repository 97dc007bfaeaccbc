"""The training loop and its effects: data, checkpoints, metrics, signals."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax import sharding
from transformer_jax.array_types import Batch, Params
from transformer_jax.checkpoint import Checkpoints, Progress, Unreadable
from transformer_jax.chips import model_flops, program_memory
from transformer_jax.config import Config
from transformer_jax.data.batch_plan import (
    BatchShape,
    largest_shape,
    row_shapes,
    with_largest,
)
from transformer_jax.data.loader import Cursor, Epochs, dev_batches, train_batches
from transformer_jax.data.token_store import TokenStore
from transformer_jax.distributed import is_first
from transformer_jax.errors import UserError
from transformer_jax.metrics import MetricsLog
from transformer_jax.model.transformer import Transformer
from transformer_jax.run_directory import RunDirectory
from transformer_jax.train_step import (
    abstract_batch,
    init_state,
    jit_train_step,
    make_eval_step,
)


class Stopped(Exception):
    """Raised by an evaluator that gave up because of a signal."""


class StopSignal:
    """Whether SIGTERM or SIGINT has come, to any process of the job.

    Alone, a second signal ends the process at once. Of several processes all learn of it at the
    same question, as long as all ask equally often.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._questions = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens while the block runs."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        if jax.process_count() > 1:
            numbers = (signal.SIGINT,)  # JAX itself listens for SIGTERM, and tells the others
        previous = {number: signal.getsignal(number) for number in numbers}

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        def handle(number: int, _frame: object) -> None:
            restore()
            if jax.process_count() > 1:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self.number = number

        for number in previous:
            signal.signal(number, handle)
        try:
            yield
        finally:
            restore()

    def requested(self) -> bool:
        """Whether to stop here."""
        self._questions += 1
        if jax.process_count() > 1 and self.number is None:
            if multihost_utils.reached_preemption_sync_point(self._questions):
                self.number = signal.SIGTERM
        return self.number is not None

    def check(self) -> None:
        """Raises Stopped where a signal has come."""
        if self.requested():
            raise Stopped


class Evaluation(NamedTuple):
    """Something computed from the weights every `interval` updates; 0 is never."""

    interval: int
    evaluate: Callable[[Params, int], dict[str, float]]
    score: str = ""
    """Which of its results ranks checkpoints, higher is better; empty where none does."""

    def is_due(self, step: int, last_step: int) -> bool:
        """At every interval, and at the last step."""
        return self.interval > 0 and step > 0 and (step % self.interval == 0 or step == last_step)


class Trainer:
    """A run in progress. `train()` goes on from the newest checkpoint to the last step.

    The caller gives a new one its evaluations; `state`, `step` and `progress` tell how far it is.
    """

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        model: Transformer,
        store: TokenStore,
        checkpoints: Checkpoints,
        store_of: Callable[[int], TokenStore] | None = None,
    ):
        """`store_of` gives the store of an epoch, where they differ in the segmentation of text."""
        self.config, self.run, self.store, self.checkpoints = config, run, store, checkpoints
        self.mesh = sharding.make_mesh(config.mesh)
        self.row_multiple = sharding.num_batch_shards(self.mesh) * config.train.num_micro_batches
        self.row_shapes = row_shapes(store.source_lengths, store.target_lengths, config.data)
        if store_of is not None:  # its sentences may be longer
            self.row_shapes = with_largest(self.row_shapes, config.data)
        self.epochs = Epochs(
            store_of or (lambda epoch: store),
            config.data,
            config.train.seed,
            self.row_multiple,
            self.row_shapes,
        )
        self.state, shardings = init_state(config, model, self.mesh)
        self._count_flops = partial(model_flops, config.model, model.vocab_size)
        self.step = 0
        self.progress = Progress(corpus_fingerprint=store.fingerprint)
        self._saved_validation = 0
        self._warnings: list[str] = []
        self._jitted = jit_train_step(config, model, shardings, self.mesh)
        self._compiled: dict[BatchShape, jax.stages.Compiled] = {}

    def resume(self) -> None:
        """Goes to the newest checkpoint; where there is none, writes one, to see that it works.

        A damaged one is set aside for the one before it. Raises UserError where none is whole, and
        where the corpus or the tokenizer is not the one that the run was begun with.
        """
        steps = self.checkpoints.steps()
        if not steps:
            self._save()
            self.checkpoints.wait()
            return
        damaged: dict[int, Unreadable] = {}
        for step in reversed(steps):
            try:
                self._restore(step)
                break
            except Unreadable as error:
                # Several processes would all have to find the same ones damaged.
                if step == steps[0] or jax.process_count() > 1:
                    raise
                damaged[step] = error
        for step, error in damaged.items():
            path = self.checkpoints.set_aside(step)
            self._warnings.append(
                f"WARNING: {error}; going on from step {self.step}; the damaged one is now {path}"
            )

    def _restore(self, step: int) -> None:
        self.step = step
        # Before the weights: another vocabulary would give them another shape.
        if self.checkpoints.progress(self.step).corpus_fingerprint != self.store.fingerprint:
            raise UserError(
                f"{self.run.path}: the training corpus, or the tokenizer, is not the one that "
                "this run was begun with; restore it, or give another --run-directory"
            )
        self.state, self.progress = self.checkpoints.restore(self.step, self.state)
        self._saved_validation = self.progress.validated_step

    def compile_largest(self) -> jax.stages.Compiled:
        """Compiles the step for the batch that needs most memory, before the first update."""
        shape = largest_shape(self.config.data, self.row_multiple, self.row_shapes)
        return self._executable(shape)

    def summary(self) -> list[str]:
        """What will happen, a line each; compiles the largest batch to know its memory."""
        config = self.config
        num_params = sum(x.size for x in jax.tree.leaves(self.state.params))
        mesh = " x ".join(f"{name} {size}" for name, size in self.mesh.shape.items())
        store, plan = self.epochs.get(self.progress.epoch)
        lengths = store.source_lengths, store.target_lengths
        per_update = [f"{side[plan.pairs].sum() / plan.num_batches:,.0f}" for side in lengths]
        gigabytes = program_memory(self.compile_largest()) / 2**30
        training = f"steps {self.step:,} to {config.train.num_steps:,} in {self.run.path}"
        if self._is_over():
            training = (
                f"already at step {self.step:,} of {config.train.num_steps:,} in {self.run.path}: "
                "nothing is left to do; raise train.num_steps, or train.patience, to go on"
            )
        return [
            *self._warnings,
            f"model: {num_params:,} parameters, {config.model.dtype}",
            f"devices: {jax.device_count()} {jax.devices()[0].device_kind}, mesh {mesh}",
            f"data: {len(self.store):,} pairs, {plan.num_batches:,} updates an epoch of "
            f"{' source + '.join(per_update)} target tokens on average",
            f"memory: {gigabytes:.2f} GiB a device by the compiler's count",
            f"training: {training}",
        ]

    def train(self, evaluations: list[Evaluation], stop: StopSignal) -> None:
        """Trains until the last step, the end of patience or a signal; saves on leaving."""
        config = self.config
        session_start, seconds_before = time.monotonic(), self.progress.seconds
        log = MetricsLog(self.run.path, config.train, self.step, self._count_flops)
        with log, stop.listening(), self._trace() as trace:
            try:
                self._validate(evaluations, log)
                for cursor, batch in self._batches(log):
                    if stop.requested() or self._is_over():
                        break
                    trace(self.step, log)
                    self._update(batch, log)
                    self.progress.epoch, self.progress.batch = cursor
                    self.progress.seconds = seconds_before + time.monotonic() - session_start
                    self._validate(evaluations, log)
                    if self.step % config.checkpoint.interval == 0:
                        log.fetch()  # what still computes is not saving
                        with log.aside("saving"):
                            self._save()
            except Stopped:
                pass
            log.fetch()
            with log.aside("saving"):
                self._save()
                self.checkpoints.wait()
            log.print(log.summary())

    def _batches(self, log: MetricsLog) -> Iterator[tuple[Cursor, Batch]]:
        start = Cursor(self.progress.epoch, self.progress.batch)
        shard = sharding.process_shard(self.mesh)
        batches = train_batches(self.epochs, self.config.data, start, shard)
        while True:
            asked = time.monotonic()
            cursor, rows = next(batches)
            log.waited(time.monotonic() - asked)
            yield cursor, sharding.to_global(rows, self.mesh)

    @contextmanager
    def _trace(self) -> Iterator[Callable[[int, MetricsLog], None]]:
        """Called before every update: traces, in the first process, those that are asked for."""
        start = max(self.config.profile.start, self.step)
        end = start + self.config.profile.steps if is_first() else start
        tracing = False

        def trace(step: int, log: MetricsLog) -> None:
            nonlocal tracing
            if start <= step < end and not tracing:
                log.fetch()
                jax.profiler.start_trace(str(self.run.profile))
                tracing = True
                log.print(f"tracing updates {start + 1} to {end} in {self.run.profile}")
            elif tracing and step >= end:
                log.fetch()
                jax.profiler.stop_trace()
                tracing = False

        try:
            yield trace
        finally:
            if tracing:
                jax.profiler.stop_trace()

    def _update(self, batch: Batch, log: MetricsLog) -> None:
        shape = BatchShape(*batch["inputs"].shape, batch["targets"].shape[1])
        self.state, metrics = self._executable(shape)(self.state, batch)
        self.step += 1
        log.update(self.step, metrics, shape)

    def _executable(self, shape: BatchShape) -> jax.stages.Compiled:
        if shape not in self._compiled:
            batch = abstract_batch(shape, self.mesh)
            with jax.set_mesh(self.mesh):
                self._compiled[shape] = self._jitted.lower(self.state, batch).compile()
        return self._compiled[shape]

    def _validate(self, evaluations: list[Evaluation], log: MetricsLog) -> None:
        """Runs what is due at this step and was not run yet; cut by Stopped, it is run again."""
        due = [e for e in evaluations if e.is_due(self.step, self.config.train.num_steps)]
        if not due or self.progress.validated_step == self.step:
            return
        log.fetch()
        with log.aside("evaluation"):
            results = [e.evaluate(self.state.weights, self.step) for e in due]
        self.progress.validated_step = self.step
        for evaluation, scores in zip(due, results, strict=True):
            log.write("dev", self.step, scores)
            shown = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
            log.print(f"step {self.step}: dev {shown}")
            if evaluation.score:
                with log.aside("saving"):
                    self._rank(scores[evaluation.score])

    def _rank(self, score: float) -> None:
        progress = self.progress
        score = -math.inf if math.isnan(score) else score
        ranked = sorted([*progress.best, [score, self.step]], key=lambda pair: (-pair[0], pair[1]))
        progress.best = ranked[: self.config.checkpoint.keep_best]
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step = score, self.step
            progress.validations_since_best = 0
        else:
            progress.validations_since_best += 1
        self._save()

    def _is_over(self) -> bool:
        train = self.config.train
        return self.step >= train.num_steps or self.progress.is_out_of_patience(train.patience)

    def _save(self) -> None:
        is_saved = self.step in self.checkpoints.steps()
        # A validation that was cut and made up for changes the progress of a step already saved.
        if is_saved and self._saved_validation == self.progress.validated_step:
            return
        self.checkpoints.save(self.step, self.state, self.progress, replace=is_saved)
        self._saved_validation = self.progress.validated_step


def make_dev_loss(
    config: Config, model: Transformer, store: TokenStore, trainer: Trainer, stop: StopSignal
) -> Callable[[Params, int], dict[str, float]]:
    """An evaluator of the loss and the perplexity on the validation set, exact to the token."""
    mesh = trainer.mesh
    eval_step = jax.jit(make_eval_step(config, model), out_shardings=sharding.replicated(mesh))
    shard = sharding.process_shard(mesh)
    shapes = with_largest(trainer.row_shapes, config.data)

    def evaluate(params: Params, step: int) -> dict[str, float]:
        totals = np.zeros(3)
        for rows in dev_batches(store, config.data, trainer.row_multiple, shard, shapes):
            stop.check()
            batch = sharding.to_global(rows, mesh)
            with jax.set_mesh(mesh):
                totals += np.array(jax.device_get(eval_step(params, batch)))
        loss, nll, tokens = totals
        mean = loss / tokens
        return {"loss": mean, "perplexity": float(np.exp(nll / tokens)), "negative_loss": -mean}

    return evaluate
