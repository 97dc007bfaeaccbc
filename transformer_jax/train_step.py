"""One update, as a pure function of the state and the batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from transformer_jax import sharding
from transformer_jax.array_types import Batch, Count, Key, Params, Scalar
from transformer_jax.config import Config
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.loss import LossSums, chunked_loss_sums
from transformer_jax.model.transformer import Transformer
from transformer_jax.optimizer import learning_rate, make_optimizer, moving_average


class TrainState(NamedTuple):
    """All that an update changes, and the key that its randomness is derived from."""

    step: Count
    """Updates tried, the skipped ones included."""
    params: Params
    opt_state: optax.OptState
    key: Key
    """Never changes: the dropout of a step is derived from this key and the step."""
    skipped: Count
    """Updates skipped because the loss or a gradient was not finite."""
    skipped_in_a_row: Count
    """The same, since the last update that was not skipped."""
    ema: Params | None
    """The moving average of the weights, where `optimizer.ema_decay` asks for one."""

    @property
    def weights(self) -> Params:
        """What is evaluated, and translated with."""
        return self.params if self.ema is None else self.ema


class StepMetrics(NamedTuple):
    """What one update reports; sums and counts are those of the whole job."""

    sums: LossSums
    source_tokens: Count
    learning_rate: Scalar
    gradient_norm: Scalar
    skipped: Count
    skipped_in_a_row: Count


def init_state(config: Config, model: Transformer, mesh: Mesh) -> tuple[TrainState, TrainState]:
    """A new state, and its shardings; every array is born where it belongs."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(config, model, mesh))
    # The key is made inside, so that no process has to hand it to another.
    init = jax.jit(
        lambda: sharding.unbox(_boxed_state(config, model, jax.random.key(config.train.seed))),
        out_shardings=shardings,
    )
    return init(), shardings


def abstract_state(config: Config, model: Transformer, mesh: Mesh) -> TrainState:
    """Shapes and shardings of a state, for compiling an update without making one."""
    return _abstract(lambda: _boxed_state(config, model, jax.random.key(0)), mesh)


def abstract_params(model: Transformer, mesh: Mesh) -> Params:
    """Shapes and shardings of the weights, for reading them from a checkpoint."""
    return _abstract(lambda: _boxed_params(model, jax.random.key(0)), mesh)


def abstract_batch(shape: BatchShape, mesh: Mesh) -> Batch:
    """A batch, as shapes and shardings."""
    where = sharding.batch_sharding(mesh)

    def rows_of(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shape.rows, length), jnp.int32, sharding=where)

    lengths = {"inputs": shape.source_length, "targets": shape.target_length}
    names = Batch.__annotations__
    return {name: rows_of(lengths[name.split("_")[0]]) for name in names}  # type: ignore[return-value]


def _abstract(make_boxed: Callable[[], Any], mesh: Mesh):
    boxed = jax.eval_shape(make_boxed)
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        sharding.unbox(boxed),
        sharding.state_shardings(boxed, mesh),
    )


def _boxed_state(config: Config, model: Transformer, key: Key) -> TrainState:
    params_key, dropout_key = jax.random.split(key)
    params = _boxed_params(model, params_key)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero,
        params=params,
        opt_state=make_optimizer(config.optimizer, config.model.d_model).init(params),
        key=dropout_key,
        skipped=zero,
        skipped_in_a_row=zero,
        ema=params if config.optimizer.ema_decay else None,
    )


def _boxed_params(model: Transformer, key: Key) -> Params:
    one = jnp.ones((1, 1), jnp.int32)
    return model.init(key, dict.fromkeys(Batch.__annotations__, one))["params"]


def make_train_step(
    config: Config, model: Transformer
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """The update of section 5; equal whatever the number of devices and, dropout apart, of
    micro-batches, each of which has masks of its own.

    An update with a loss or gradient that is not finite leaves weights, their moving average and
    the optimizer as they were.
    """
    optimizer = make_optimizer(config.optimizer, config.model.d_model)

    def gradients(params: Params, batch: Batch, key: Key) -> tuple[Params, LossSums]:
        def loss(params: Params) -> tuple[Scalar, LossSums]:
            sums = batch_loss(config, model, params, batch, key)
            return sums.loss, sums

        return jax.grad(loss, has_aux=True)(params)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(state.key, state.step)
        grads, sums = _accumulate(
            gradients, state.params, batch, key, config.train.num_micro_batches
        )
        grads = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1), grads)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        applied_before = state.step - state.skipped
        ema = state.ema
        if ema is not None:
            ema = moving_average(ema, params, applied_before + 1, config.optimizer.ema_decay)
        skipped = state.skipped + ~finite
        new_state = TrainState(
            step=state.step + 1,
            params=_choose(finite, params, state.params),
            opt_state=_choose(finite, opt_state, state.opt_state),
            key=state.key,
            skipped=skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
            ema=_choose(finite, ema, state.ema),
        )
        metrics = StepMetrics(
            sums=sums,
            source_tokens=jnp.sum(batch["inputs_segments"] != 0),
            learning_rate=learning_rate(applied_before + 1, config.optimizer, config.model.d_model),
            gradient_norm=norm,
            skipped=skipped,
            skipped_in_a_row=new_state.skipped_in_a_row,
        )
        return new_state, metrics

    return train_step


def jit_train_step(config: Config, model: Transformer, shardings: TrainState, mesh: Mesh):
    """`make_train_step`, jitted for a mesh; the state given to it is used up."""
    return jax.jit(
        make_train_step(config, model),
        in_shardings=(shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, sharding.replicated(mesh)),
        donate_argnums=0,
    )


def make_eval_step(config: Config, model: Transformer) -> Callable[[Params, Batch], LossSums]:
    """The loss without dropout, as sums over the batch."""

    def eval_step(params: Params, batch: Batch) -> LossSums:
        return batch_loss(config, model, params, batch, None)

    return eval_step


def batch_loss(
    config: Config, model: Transformer, params: Params, batch: Batch, key: Key | None
) -> LossSums:
    """The sums of the loss over a batch, with dropout where there is a key."""
    variables, rngs = {"params": params}, None if key is None else {"dropout": key}
    x = model.apply(variables, batch, key is None, rngs=rngs, method="decode")
    return chunked_loss_sums(
        lambda x: model.apply(variables, x, method="logits"),
        x,
        batch["targets"],
        batch["targets_segments"],
        config.loss.label_smoothing,
        model.vocab_size,
        config.loss.num_chunks,
    )


def _accumulate(gradients, params: Params, batch: Batch, key: Key, parts: int):
    """Sums `gradients` over micro-batches, one after the other."""
    if parts == 1:
        return gradients(params, batch, key)

    def split(rows: jax.Array) -> jax.Array:
        # Every device's rows go evenly into all micro-batches: no row moves between devices.
        return rows.reshape(-1, parts, *rows.shape[1:]).swapaxes(0, 1)

    def body(total, part):
        micro_batch, index = part
        new = gradients(params, micro_batch, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, new), None

    micro_batches = jax.tree.map(split, batch)
    first = jax.tree.map(lambda rows: rows[0], micro_batches)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradients, params, first, key)
    )
    return jax.lax.scan(body, zeros, (micro_batches, jnp.arange(parts)))[0]


def _choose(condition: Bool[Array, ""], new, old):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
