"""Where arrays live: real shardings, and sizes that do not fit."""

import dataclasses
import re

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import mesh_of, small_config, small_model
from jax.sharding import PartitionSpec

from transformer_jax import sharding
from transformer_jax.config import MeshConfig
from transformer_jax.data.loader import Shard
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.train_step import abstract_params, init_state


def test_weights_and_optimizer_are_sharded_by_the_table():
    """Real shardings, not only that it runs; the optimizer's as those of its weights."""
    config = small_config(num_layers=1)
    mesh = mesh_of(fsdp=2, tensor=2)
    model = dataclasses.replace(small_model(config), vocab_size=24, shared=False)
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
    for embedding in ("embedding", "source_embedding"):
        local = state.params["embedding"][embedding].addressable_shards[0].data
        assert local.shape == (12, 8)
    moments = state.opt_state[1]
    for moment in (moments.mu, moments.nu):
        jax.tree.map(
            lambda m, p: m.sharding.is_equivalent_to(p.sharding, p.ndim) or pytest.fail(),
            moment,
            state.params,
        )
    abstract = abstract_params(model, mesh)
    jax.tree.map(lambda a, p: a.sharding == p.sharding or pytest.fail(), abstract, state.params)


@pytest.mark.parametrize(
    ("model", "mesh", "message"),
    [
        (
            {"d_ff": 30},
            {"tensor": 4},
            "model.d_ff 30 cannot be split over mesh.tensor 4: give a "
            "multiple of 4, or a mesh.tensor of 1, 2, 3, 5, 6",
        ),
        ({"num_heads": 2}, {"tensor": 4}, "model.num_heads 2 cannot be split over mesh.tensor 4"),
        ({"d_model": 20}, {"fsdp": 8}, "model.d_model 20 cannot be split over mesh.fsdp 8"),
        (
            {"vocab_multiple": 1, "num_heads": 8},
            {"tensor": 8},
            "the vocabulary, a multiple of "
            "model.vocab_multiple, 25 cannot be split over mesh.tensor 8",
        ),
    ],
)
def test_a_size_that_the_mesh_does_not_divide_is_named(model, mesh, message):
    config = small_config(num_layers=1, **model)
    network = Transformer(config.model, 25 if "vocab_multiple" in model else 24, builders.BOS)
    for make in (
        lambda: init_state(config, network, mesh_of(**mesh)),
        lambda: abstract_params(network, mesh_of(**mesh)),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            make()


def test_a_padded_vocabulary_divides_and_its_rows_are_never_chosen():
    config = small_config(num_layers=1, num_heads=8, vocab_multiple=16)
    network = Transformer(config.model, 25, builders.BOS)
    state, _ = init_state(config, network, mesh_of(tensor=8))
    assert state.params["embedding"]["embedding"].shape == (32, 16)
    batch = builders.make_batch([[([4, 5], [6, 7])]], 2, 2)
    params = jax.tree.map(np.array, state.params)
    params["embedding"]["embedding"][25:] = 100  # were they seen, they would win
    params = jax.tree.map(jnp.asarray, params)
    logits = network.apply({"params": params}, batch)
    assert logits.shape == (1, 2, 32)
    assert (logits[:, :, 25:] < -1e29).all()
    np.testing.assert_allclose(jax.nn.softmax(logits)[:, :, :25].sum(axis=-1), 1, rtol=1e-6)


def test_no_device_ever_holds_a_whole_weight_while_they_are_made():
    """With weights split over eight devices each makes its eighth, and little besides."""
    config = small_config(num_layers=2, d_model=256, d_ff=512)
    network = Transformer(config.model, 2_048, builders.BOS)
    mesh = mesh_of(fsdp=8)
    state, shardings = init_state(config, network, mesh)
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    for leaf in jax.tree.leaves(state.params):
        if leaf.size > 1_000:
            assert leaf.addressable_shards[0].data.size == leaf.size // 8

    def init():
        return sharding.unbox(network.init(jax.random.key(0), one_pair()))["params"]

    compiled = jax.jit(init, out_shardings=shardings.params).lower().compile()
    memory = compiled.memory_analysis()
    assert memory.output_size_in_bytes < 1.2 * whole / 8
    assert memory.temp_size_in_bytes < whole / 4


def one_pair():
    return builders.make_batch([[([4], [4])]], 1, 1)


@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8)])
def test_rows_reach_the_devices_that_the_table_gives_them(shape):
    mesh = mesh_of(*shape)
    assert sharding.process_shard(mesh) == Shard(0, 1)  # of one process
    rows = np.arange(24, dtype=np.int32).reshape(8, 3)
    for array in (
        sharding.to_global({"inputs": rows}, mesh)["inputs"],
        sharding.spread(rows, mesh),
    ):
        np.testing.assert_array_equal(array, rows)
        local = array.addressable_shards[0].data
        assert local.shape == (8 // (shape[0] * shape[1]), 3)


def test_activations_are_laid_out_by_the_table_where_a_mesh_is_set():
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    x = jnp.zeros((4, 3, 16))
    constrain = jax.jit(lambda x: sharding.constrain(x, "batch", None, "model") + 0)
    with jax.set_mesh(mesh):
        laid_out = constrain(x)
        # fsdp has the rows, so the width is whole.
        assert laid_out.sharding.spec == PartitionSpec(("data", "fsdp"))
        heads = jax.jit(lambda x: sharding.constrain(x, "batch", None, "ff") + 0)(x)
        assert heads.sharding.spec == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert sharding.constrain(x, "batch", None, "model") is x


def test_mesh_sizes_that_do_not_fit_the_devices_are_refused():
    count = jax.device_count()
    assert sharding.make_mesh(MeshConfig()).shape == {"data": count, "fsdp": 1, "tensor": 1}
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=-1))
    assert mesh.shape == {"data": 1, "fsdp": count, "tensor": 1}
    for wrong in (MeshConfig(data=count + 1), MeshConfig(fsdp=count * 2), MeshConfig(tensor=3)):
        with pytest.raises(UserError, match=f"{count} devices"):
            sharding.make_mesh(wrong)
