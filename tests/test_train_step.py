"""One update, computed in several ways that must agree."""

import dataclasses

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import make_batch, mesh_of, random_pairs, small_model

from transformer_jax import sharding
from transformer_jax.config import TrainConfig
from transformer_jax.model.transformer import stack_layers, unstack_layers
from transformer_jax.optimizer import learning_rate
from transformer_jax.train_step import batch_loss, init_state, make_eval_step, make_train_step


def small_config(**model):
    return builders.small_config(num_layers=1, **model)


def rows_of(*lengths):
    """Rows with as many pairs as given: token counts differ from row to row."""
    pairs = iter(random_pairs(seed=0, count=sum(lengths), longest=7))
    return [[next(pairs) for _ in range(length)] for length in lengths]


BATCH = make_batch(rows_of(1, 4, 0, 3, 2, 0, 0, 1), 28, 28)


def run(config, mesh, batch, steps=3, micro_batches=1, state=None):
    """The state after some updates on the same batch, and the last metrics."""
    config = dataclasses.replace(config, train=TrainConfig(num_micro_batches=micro_batches))
    new, shardings = init_state(config, small_model(config), mesh)
    state = state or new
    where = sharding.batch_sharding(mesh)
    step = jax.jit(
        make_train_step(config, small_model(config)),
        in_shardings=(shardings, where),
        out_shardings=(shardings, None),
    )
    batch = jax.device_put(batch, where)
    with jax.set_mesh(mesh):
        for _ in range(steps):
            state, metrics = step(state, batch)
    return jax.device_get(state), jax.device_get(metrics)


def assert_same(first, second, atol):
    assert first[1].sums.tokens == second[1].sums.tokens
    assert first[1].sums.loss == pytest.approx(second[1].sums.loss, rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol), first[0].params, second[0].params
    )


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_micro_batches_change_nothing(micro_batches):
    """D01: sums over parts with unequal numbers of tokens, some with none."""
    config = small_config()
    whole = run(config, builders.one_device(), BATCH)
    parts = run(config, builders.one_device(), BATCH, micro_batches=micro_batches)
    assert_same(whole, parts, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 1, 1), (8, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)])
def test_the_mesh_changes_nothing_dropout_included(shape):
    """D02, C15: one device gets filler rows alone; masks are those of the global batch."""
    config = small_config(dropout_rate=0.3, attention_dropout_rate=0.1, ff_dropout_rate=0.1)
    one = run(config, builders.one_device(), BATCH)
    many = run(config, mesh_of(*shape), BATCH)
    assert_same(one, many, atol=1e-4)


LAYOUTS = [
    ((2, 1, 1), 1),
    ((1, 4, 1), 1),
    ((2, 2, 2), 1),
    ((1, 1, 8), 1),
    ((1, 1, 1), 4),
    ((2, 2, 2), 2),
]


@pytest.fixture(scope="module")
def twenty_updates():
    """On one device, all at once."""
    return run(for_eight_devices(), builders.one_device(), BATCH, steps=20)


def for_eight_devices():
    """Sizes that eight devices divide; steps small enough that rounding does not grow."""
    config = small_config(num_heads=8)
    slow = dataclasses.replace(config.optimizer, learning_rate_scale=0.1)
    return dataclasses.replace(config, optimizer=slow)


@pytest.mark.parametrize(("shape", "micro_batches"), LAYOUTS)
def test_twenty_updates_give_the_same_weights_on_any_mesh_in_any_parts(
    twenty_updates, shape, micro_batches
):
    many = run(for_eight_devices(), mesh_of(*shape), BATCH, 20, micro_batches)
    assert_same(twenty_updates, many, atol=1e-4)


@pytest.mark.parametrize("num_chunks", [3, 28])
def test_the_loss_in_chunks_is_that_of_all_at_once(num_chunks):
    """Also where a row does not divide into them."""
    config = small_config()
    chunked = dataclasses.replace(
        config, loss=dataclasses.replace(config.loss, num_chunks=num_chunks)
    )
    state, metrics = run(config, builders.one_device(), BATCH)
    other_state, other = run(chunked, builders.one_device(), BATCH)
    np.testing.assert_allclose(tuple(other.sums), tuple(metrics.sums), rtol=1e-6)
    assert_same((state, metrics), (other_state, other), atol=1e-5)


@pytest.mark.parametrize(
    ("remat", "scan_layers"),
    [("none", True), ("full", False), ("full", True), ("dots", False), ("dots", True)],
)
def test_what_is_computed_again_and_how_layers_are_stacked_changes_nothing(remat, scan_layers):
    plain = builders.small_config(num_layers=3, norm="pre")
    changed = builders.small_config(num_layers=3, norm="pre", remat=remat, scan_layers=scan_layers)
    params = builders.small_params(plain)

    def loss(config):
        def of(params):
            return batch_loss(config, small_model(config), params, BATCH, None).loss

        return jax.jit(jax.value_and_grad(of))

    expected, gradients = loss(plain)(params)
    own = stack_layers(params) if scan_layers else params
    shapes = builders.small_params(changed)
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, shapes)
    found, own_gradients = loss(changed)(own)
    if scan_layers:
        own_gradients = unstack_layers(own_gradients)
        jax.tree.map(np.testing.assert_array_equal, unstack_layers(own), params)
    assert found == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        own_gradients,
        gradients,
    )


def peak_memory(config):
    """Bytes of temporaries of a step on long rows, by the compiler's count."""
    model, mesh = small_model(config), builders.one_device()
    state, _ = init_state(config, model, mesh)
    batch = {name: jnp.zeros((8, 256), jnp.int32) for name in BATCH}
    compiled = jax.jit(make_train_step(config, model)).lower(state, batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_is_saved_by_computing_again_and_in_parts():
    # Scanned, as the compiler for CPUs undoes the computing again of layers one by one.
    sizes = {"num_layers": 6, "d_ff": 256, "scan_layers": True}
    plain = builders.small_config(**sizes)
    again = builders.small_config(**sizes, remat="full")
    chunked = dataclasses.replace(again, loss=dataclasses.replace(again.loss, num_chunks=8))
    parts = dataclasses.replace(plain, train=TrainConfig(num_micro_batches=8))
    usage = [peak_memory(config) for config in (plain, again, parts)]
    assert usage[1] < 0.7 * usage[0]
    assert usage[2] < 0.3 * usage[0]
    wide = [
        dataclasses.replace(c, model=dataclasses.replace(c.model, vocab_multiple=4096))
        for c in (again, chunked)
    ]
    usage = [peak_memory(config) for config in wide]
    assert usage[1] < 0.5 * usage[0]


def test_the_update_is_that_of_the_mean_loss_per_token():
    """The loss and gradient of an update, from the model's own logits and a plain sum."""
    config = small_config()
    state, _ = init_state(config, small_model(config), builders.one_device())

    def mean_loss(params):
        logits = small_model(config).apply({"params": params}, BATCH)
        log_p = jax.nn.log_softmax(logits)
        wanted = 0.9 * jax.nn.one_hot(BATCH["targets"], builders.VOCAB_SIZE)
        wanted += 0.1 / builders.VOCAB_SIZE
        per_token = -jnp.sum(wanted * log_p, axis=-1)
        real = BATCH["targets_segments"] != 0
        return jnp.sum(per_token * real) / jnp.sum(real)

    loss, gradient = jax.value_and_grad(mean_loss)(state.params)
    norm = sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient)) ** 0.5
    _, metrics = run(config, builders.one_device(), BATCH, steps=1)
    assert metrics.sums.loss / metrics.sums.tokens == pytest.approx(float(loss), rel=1e-5)
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert metrics.source_tokens == int((BATCH["inputs_segments"] != 0).sum())


def test_dropout_differs_by_step_and_by_micro_batch_and_repeats_with_the_seed():
    config = small_config(dropout_rate=0.5)
    mesh = builders.one_device()
    still = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, learning_rate_scale=1e-30)
    )
    losses = [run(still, mesh, BATCH, steps=n)[1].sums.loss for n in (1, 2, 3, 1)]
    assert len({float(loss) for loss in losses[:3]}) == 3  # the weights stand still, the masks not
    assert losses[0] == losses[3]
    pair = random_pairs(seed=1, count=1)
    twice = make_batch([pair, pair], 12, 12)
    first = make_batch([pair, []], 12, 12)
    whole = run(still, mesh, twice, steps=1, micro_batches=2)[1].sums.loss
    half = run(still, mesh, first, steps=1, micro_batches=2)[1].sums.loss
    assert whole != pytest.approx(2 * half, rel=1e-4)  # as it would be with one mask for both


def test_step_and_learning_rate_count_updates():
    """D05, D07: not the parts of one."""
    config = small_config()
    for steps in (1, 12):
        state, metrics = run(config, builders.one_device(), BATCH, steps=steps, micro_batches=2)
        assert state.step == steps
        assert metrics.learning_rate == pytest.approx(
            float(learning_rate(steps, config.optimizer, config.model.d_model))
        )


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    """D33."""
    config = small_config()
    mesh = builders.one_device()
    good, _ = run(config, mesh, BATCH, steps=2)
    kernel = good.params["encoder_layers_0"]["feed_forward"]["inner"]["kernel"]
    broken = jax.tree.map(lambda x: x, good.params)
    broken["encoder_layers_0"]["feed_forward"]["inner"]["kernel"] = kernel * np.nan
    state, metrics = run(config, mesh, BATCH, steps=3, state=good._replace(params=broken))
    assert (state.step, state.skipped, state.skipped_in_a_row) == (5, 3, 3)
    assert (metrics.skipped, metrics.skipped_in_a_row) == (3, 3)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, good.opt_state)
    jax.tree.map(np.testing.assert_array_equal, state.params, broken)
    # One good update ends the row, not the count; the schedule goes on where it was.
    healed, metrics = run(config, mesh, BATCH, steps=1, state=state._replace(params=good.params))
    assert (healed.step, healed.skipped, healed.skipped_in_a_row) == (6, 3, 0)
    unbroken, _ = run(config, mesh, BATCH, steps=3)
    jax.tree.map(np.testing.assert_array_equal, healed.opt_state, unbroken.opt_state)
    assert metrics.learning_rate == pytest.approx(
        float(learning_rate(3, config.optimizer, config.model.d_model))
    )


def test_the_moving_average_is_that_of_the_weights_after_each_update():
    """Against the recursion in double precision; it changes no update, and no skipped one it."""
    config = small_config()
    averaged = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, ema_decay=0.3)
    )
    mesh = builders.one_device()
    plain = [init_state(config, small_model(config), mesh)[0]]
    expected = np.float64(jax.tree.leaves(jax.device_get(plain[0].params))[0])
    for step in range(1, 5):
        plain.append(run(config, mesh, BATCH, steps=step)[0])
        decay = min(0.3, (1 + step) / (10 + step))
        weights = np.float64(jax.tree.leaves(jax.device_get(plain[-1].params))[0])
        expected = decay * expected + (1 - decay) * weights
    assert plain[-1].ema is None and plain[-1].weights is plain[-1].params
    state, _ = run(averaged, mesh, BATCH, steps=4)
    jax.tree.map(np.testing.assert_array_equal, state.params, plain[-1].params)
    np.testing.assert_allclose(jax.tree.leaves(state.weights)[0], expected, rtol=1e-5, atol=1e-7)
    assert (jax.tree.leaves(state.ema)[0] != jax.tree.leaves(state.params)[0]).any()

    broken = state._replace(params=jax.tree.map(lambda x: x * np.nan, state.params))
    skipped, _ = run(averaged, mesh, BATCH, steps=1, state=broken)
    assert skipped.skipped == 1
    jax.tree.map(np.testing.assert_array_equal, skipped.ema, state.ema)


def test_eval_step_is_the_loss_without_dropout():
    """D18: sums over any parts are those of the whole."""
    config = small_config(dropout_rate=0.5)
    params = builders.small_params(config)
    sums = make_eval_step(config, small_model(config))(params, BATCH)
    parts = [
        make_eval_step(config, small_model(config))(
            params, {k: v[i : i + 1] for k, v in BATCH.items()}
        )
        for i in range(8)
    ]
    np.testing.assert_allclose(sums, np.sum(parts, axis=0), rtol=1e-5)
    _, metrics = run(small_config(), builders.one_device(), BATCH, steps=1)
    assert sums.loss == pytest.approx(metrics.sums.loss, rel=1e-5)
