"""Conversion to Marian and back. That the function is the same is tested in `parity/`."""

import builders
import jax
import numpy as np
import pytest

from transformer_jax.convert import from_marian, to_marian
from transformer_jax.errors import UserError


def marian_like(**changes):
    options = {"attention_bias": True, "output_bias": True, "layer_norm_epsilon": 1e-5}
    config = builders.small_config(**(options | changes))
    params = builders.small_params(config)
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(0)  # norms and biases of a new model are all alike
    leaves = [random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    return config.model, jax.tree.unflatten(tree, leaves)


@pytest.mark.parametrize("positions", ["concatenated", "interleaved"])
def test_there_and_back_nothing_is_changed(positions):
    config, params = marian_like()
    back = from_marian(to_marian(params, config, positions), config, positions)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_the_layouts_differ_in_the_order_of_the_residual_stream():
    config, params = marian_like()
    state = to_marian(params, config, "concatenated")["model.shared.weight"]
    ours = params["embedding"]["embedding"]
    np.testing.assert_array_equal(state[:, :8], ours[:, 0::2])  # sines
    np.testing.assert_array_equal(state[:, 8:], ours[:, 1::2])  # cosines
    interleaved = to_marian(params, config, "interleaved")["model.shared.weight"]
    np.testing.assert_array_equal(interleaved, ours)


def test_positions_of_another_layout_are_refused():
    config, params = marian_like()
    state = to_marian(params, config, "concatenated")
    with pytest.raises(UserError, match="no sines and cosines that are interleaved"):
        from_marian(state, config, "interleaved")


@pytest.mark.parametrize(
    ("field", "value"),
    [("norm", "pre"), ("positions", "learned"), ("output_bias", False), ("d_k", 3)],
)
def test_a_model_that_marian_cannot_be_is_refused_both_ways(field, value):
    config, params = marian_like(**{field: value, "max_positions": 300})
    like = marian_like()
    state = to_marian(like[1], like[0])
    for convert, what in ((to_marian, params), (from_marian, state)):
        with pytest.raises(UserError, match=rf"model\.{field} is {value!r}: a Marian model has"):
            convert(what, config)


def test_without_tables_of_positions_the_layout_is_taken_as_told():
    """So are files that the transformers library saves; but a layout that is none is refused."""
    config, params = marian_like(d_k=4, d_v=4)  # what d_model / num_heads is
    state = to_marian(params, config)
    state = {name: value for name, value in state.items() if "positions" not in name}
    back = from_marian(state, config)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    with pytest.raises(UserError, match="positions 'Concatenated': the layouts are"):
        from_marian(state, config, "Concatenated")


def test_two_vocabularies_are_refused():
    config, params = marian_like()
    params["embedding"]["source_embedding"] = params["embedding"]["embedding"]
    with pytest.raises(UserError, match="one vocabulary"):
        to_marian(params, config)


def test_half_precision_becomes_float32():
    config, params = marian_like()
    state = {name: value.astype(np.float16) for name, value in to_marian(params, config).items()}
    back = from_marian(state, config)
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {np.dtype("float32")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=4e-3), back, params)
