"""One update, computed in several ways that must agree."""

import dataclasses

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import make_batch, mesh_of, random_pairs, small_model
from jax.sharding import PartitionSpec

from transformer_jax import sharding
from transformer_jax.config import MeshConfig, TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.optimizer import learning_rate
from transformer_jax.train_step import abstract_params, init_state, make_eval_step, make_train_step


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
    config = small_config()
    for steps in (1, 12):
        state, metrics = run(config, builders.one_device(), BATCH, steps=steps, micro_batches=2)
        assert state.step == steps
        assert metrics.learning_rate == pytest.approx(
            float(learning_rate(steps, config.optimizer, config.model.d_model))
        )


def test_an_update_that_is_not_finite_is_skipped_and_counted():
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


def test_weights_and_optimizer_are_sharded_by_the_table():
    """Real shardings, not only that it runs; the optimizer's as those of its weights."""
    config = small_config()
    mesh = mesh_of(fsdp=2, tensor=2)
    model = dataclasses.replace(small_model(config), vocab_size=24)
    state, _ = init_state(config, model, mesh)
    layer = state.params["decoder_layers_0"]
    expected = {
        ("fsdp", "tensor", None): layer["self_attention"]["query"]["kernel"],
        ("tensor", None, "fsdp"): layer["cross_attention"]["output"]["kernel"],
        ("fsdp", "tensor"): layer["feed_forward"]["inner"]["kernel"],
        ("tensor", "fsdp"): layer["feed_forward"]["outer"]["kernel"],
        ("tensor",): layer["feed_forward"]["inner"]["bias"],
    }
    for spec, array in expected.items():
        whole = jax.sharding.NamedSharding(mesh, PartitionSpec(*spec))
        assert array.sharding.is_equivalent_to(whole, array.ndim), spec
        local = array.addressable_shards[0].data
        assert local.size == array.size // (2 if len(spec) == 1 else 4)
    embedding = state.params["embedding"]["embedding"]
    assert embedding.addressable_shards[0].data.shape == (12, 8)
    moments = state.opt_state[1]
    for moment in (moments.mu, moments.nu):
        jax.tree.map(
            lambda m, p: m.sharding.is_equivalent_to(p.sharding, p.ndim) or pytest.fail(),
            moment,
            state.params,
        )
    abstract = abstract_params(model, mesh)
    jax.tree.map(lambda a, p: a.sharding == p.sharding or pytest.fail(), abstract, state.params)


def test_eval_step_is_the_loss_without_dropout():
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


def test_mesh_sizes_that_do_not_fit_the_devices_are_refused():
    count = jax.device_count()
    assert sharding.make_mesh(MeshConfig()).shape == {"data": count, "fsdp": 1, "tensor": 1}
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=-1))
    assert mesh.shape == {"data": 1, "fsdp": count, "tensor": 1}
    for wrong in (MeshConfig(data=count + 1), MeshConfig(fsdp=count * 2), MeshConfig(tensor=3)):
        with pytest.raises(UserError, match=f"{count} devices"):
            sharding.make_mesh(wrong)
