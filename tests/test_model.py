"""The Transformer against formulas, and against itself computed another way."""

import math
from functools import partial

import builders
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import (
    BOS,
    EOS,
    VOCAB_SIZE,
    make_batch,
    random_pairs,
    small_config,
    small_model,
    small_params,
)

from transformer_jax.config import ModelConfig
from transformer_jax.loss import loss_sums
from transformer_jax.model.layers import (
    Dropout,
    Embedding,
    output_product,
    product,
    random_bits,
    relu,
    sinusoid,
)
from transformer_jax.model.transformer import empty_cache
from transformer_jax.train_step import init_state

NORMS = ("post", "pre")


def logits_of(config, params, batch):
    apply = jax.jit(small_model(config).apply)
    return np.asarray(apply({"params": params}, batch))


@pytest.mark.parametrize("position", [0, 1, 7, 513, 100_000])
def test_positions_are_those_of_the_paper(position):
    """Section 3.5, computed in Python's own floats; no position is out of range (C05)."""
    encoding = sinusoid(jnp.array([position]), 8)[0]
    for i in range(4):
        angle = position / 10_000 ** (2 * i / 8)
        # float32 angles near 1e5 are exact to 2^-8 only.
        tolerance = max(1e-6, position * 2e-7)
        assert encoding[2 * i] == pytest.approx(math.sin(angle), abs=tolerance)
        assert encoding[2 * i + 1] == pytest.approx(math.cos(angle), abs=tolerance)


@pytest.mark.parametrize("norm", NORMS)
def test_packed_sentences_have_the_logits_of_sentences_alone(norm):
    """C13: in the encoder, in the decoder and between them."""
    config = small_config(norm=norm)
    params = builders.small_params(config)
    pairs = random_pairs(seed=1, count=6)
    packed = make_batch([pairs[:3], pairs[3:]], 40, 33)
    together = logits_of(config, params, packed)
    for number, (source, target) in enumerate(pairs):
        alone = make_batch([[(source, target)]], len(source), len(target))
        row, segment = number // 3, number % 3 + 1
        mine = np.asarray(packed["targets_segments"])[row] == segment
        np.testing.assert_allclose(
            together[row, mine], logits_of(config, params, alone)[0], atol=1e-5, rtol=1e-5
        )


def test_packed_and_unpacked_have_the_same_loss_and_gradients():
    config = small_config()
    params = builders.small_params(config)
    pairs = random_pairs(seed=2, count=6)
    batches = [
        make_batch([pairs[:3], pairs[3:]], 40, 40),
        make_batch([[pair] for pair in pairs], 12, 15),
    ]

    def loss(params, batch):
        logits = small_model(config).apply({"params": params}, batch)
        sums = loss_sums(logits, batch["targets"], batch["targets_segments"], 0.1)
        return sums.loss, sums

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    packed, unpacked = (jax.device_get(gradient(params, batch)) for batch in batches)
    assert packed[0][0] == pytest.approx(unpacked[0][0], rel=1e-6)
    assert packed[0][1].tokens == unpacked[0][1].tokens == sum(len(t) for _, t in pairs)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), packed[1], unpacked[1]
    )


@pytest.mark.parametrize("norm", NORMS)
def test_padding_and_neighbours_change_no_logit(norm):
    """C03, C12: unequal lengths of source and target, so that no swapped axis can pass."""
    config = small_config(norm=norm)
    params = builders.small_params(config)
    (source, target), *others = random_pairs(seed=3, count=4)
    alone = make_batch([[(source, target)]], len(source), len(target))
    crowd = make_batch([*([other] for other in others), [(source, target)], []], 31, 17)
    for side in ("inputs", "targets"):  # rubbish in the padding must not be seen either
        rubbish = jax.random.randint(jax.random.key(0), crowd[side].shape, 0, VOCAB_SIZE)
        crowd[side] = jnp.where(crowd[f"{side}_segments"] == 0, rubbish, crowd[side])
    np.testing.assert_allclose(
        logits_of(config, params, crowd)[3, : len(target)],
        logits_of(config, params, alone)[0],
        atol=1e-5,
        rtol=1e-5,
    )


def test_the_id_zero_is_a_token_like_any_other():
    """B10: what is padding, the segments say."""
    config = small_config()
    params = builders.small_params(config)
    batch = make_batch([[([0, 5, EOS], [6, 0, EOS])], [([7, 5, EOS], [6, 0, EOS])]], 3, 3)
    first, second = logits_of(config, params, batch)
    assert np.abs(first - second).max() > 1e-3
    sums = loss_sums(jnp.zeros((2, 3, 9)), batch["targets"], batch["targets_segments"], 0.1)
    assert sums.tokens == 6


def test_a_row_of_padding_stays_finite_and_weighs_nothing():
    """C02: filler rows."""
    config = small_config()
    params = builders.small_params(config)
    pairs = random_pairs(seed=4, count=2)

    def gradients(rows):
        batch = make_batch(rows, 12, 12)

        def loss(params):
            logits = small_model(config).apply({"params": params}, batch)
            return loss_sums(logits, batch["targets"], batch["targets_segments"], 0.1).loss

        return jax.jit(jax.value_and_grad(loss))(params)

    filled = jax.device_get(gradients([[pairs[0]], [], [pairs[1]], []]))
    full = jax.device_get(gradients([[pairs[0]], [pairs[1]]]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(filled))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), filled, full)


@pytest.mark.parametrize("norm", NORMS)
def test_cached_decoding_equals_the_full_pass_at_every_position(norm):
    """Two beams with different prefixes, sources of different lengths, one of them padded."""
    config = small_config(norm=norm)
    params = builders.small_params(config)
    model = small_model(config)
    (source_a, _), (source_b, _) = random_pairs(seed=6, count=2)
    prefixes = np.random.default_rng(1).integers(4, VOCAB_SIZE, (2, 2, 7))
    sources = make_batch([[(source_a, [1])], [(source_b, [1])]], 14, 1)
    variables = {"params": params}
    decode_step = jax.jit(partial(model.apply, method="decode_step"))
    memory = model.apply(
        variables, sources["inputs"], sources["inputs_segments"], method="remember"
    )
    cache = empty_cache(config.model, batch=2, beam=2, length=7)
    fed = np.concatenate([np.full((2, 2, 1), BOS), prefixes[:, :, :-1]], axis=2)
    for index in range(7):
        tokens = jnp.array(fed[:, :, index], jnp.int32)
        step = jnp.int32(index)
        logits, cache = decode_step(variables, tokens, step, memory, cache)
        for row, source in enumerate((source_a, source_b)):
            for beam in range(2):
                pair = (source, prefixes[row, beam].tolist())
                full = logits_of(config, params, make_batch([[pair]], 14, 7))
                np.testing.assert_allclose(logits[row, beam], full[0, index], atol=1e-5, rtol=1e-5)


def test_hypotheses_keep_their_past_when_others_go_on_from_them():
    """Parents are drawn at every step; the full pass sees each hypothesis alone."""
    config, random = small_config(), np.random.default_rng(2)
    params, model = builders.small_params(config), small_model(config)
    (source, _), *_ = random_pairs(seed=6, count=1)
    inputs = make_batch([[(source, [1])]], 14, 1)
    variables = {"params": params}
    memory = model.apply(variables, inputs["inputs"], inputs["inputs_segments"], method="remember")
    decode_step = jax.jit(partial(model.apply, method="decode_step"))
    cache = empty_cache(config.model, batch=1, beam=3, length=8)
    prefixes = np.full((3, 1), BOS)
    for index in range(7):
        tokens = jnp.array(prefixes[None, :, -1], jnp.int32)
        logits, cache = decode_step(variables, tokens, jnp.int32(index), memory, cache)
        chosen = random.integers(4, VOCAB_SIZE, (3, 1))
        for beam in range(3):
            pair = (source, [*prefixes[beam, 1:].tolist(), 4])
            full = logits_of(config, params, make_batch([[pair]], 14, index + 1))
            np.testing.assert_allclose(logits[0, beam], full[0, index], atol=1e-5, rtol=1e-5)
        parents = random.integers(0, 3, 3)
        cache = cache.reorder(jnp.array([parents]))
        prefixes = np.concatenate([prefixes[parents], chosen], axis=1)


def influences(config, params, batch):
    """|d logits / d embedding|, summed over vocabulary and width: of the source, of the target.

    Arrays [position of the logits, position of the embedding], for a batch of one row.
    """
    width = config.model.d_model
    projection = jax.random.normal(jax.random.key(1), (VOCAB_SIZE,))

    def logits(source, target):
        additions = iter((source, target))

        def add(next_function, args, kwargs, context):
            output = next_function(*args, **kwargs)
            if isinstance(context.module, Embedding) and context.method_name == "__call__":
                output = output + next(additions)
            return output

        with nn.intercept_methods(add):
            return (small_model(config).apply({"params": params}, batch) @ projection)[0]

    zeros = (jnp.zeros((1, batch[side].shape[1], width)) for side in ("inputs", "targets"))
    jacobians = jax.jit(jax.jacrev(logits, argnums=(0, 1)))(*zeros)
    return [np.abs(np.asarray(jacobian)).sum(axis=(1, 3)) for jacobian in jacobians]


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_reach_no_later_token_no_neighbour_and_no_padding(norm):
    """Exactly zero where attention is forbidden, and not zero anywhere else."""
    config = small_config(norm=norm)
    params = builders.small_params(config)
    batch = make_batch([random_pairs(seed=9, count=3)], 24, 22)
    source, target = influences(config, params, batch)
    own = {side: np.asarray(batch[f"{side}_segments"])[0] for side in ("inputs", "targets")}
    assert max(own["inputs"]) == 3 and not own["inputs"].all() and not own["targets"].all()
    real = own["targets"] != 0  # the logits of padding mean nothing
    same = own["targets"][:, None] == own["targets"]
    earlier = np.tril(np.ones_like(same))
    np.testing.assert_array_equal((target != 0)[real], (same & earlier)[real])
    np.testing.assert_array_equal(
        (source != 0)[real], (own["targets"][:, None] == own["inputs"])[real]
    )


VARIATIONS = {
    "learned positions": {"positions": "learned", "max_positions": 40},
    "heads of other widths": {"d_k": 3, "d_v": 5},
    "biases": {"attention_bias": True, "output_bias": True, "activation": "swish"},
}


@pytest.mark.parametrize("changes", VARIATIONS.values(), ids=VARIATIONS)
def test_variations_of_the_model_are_packed_and_decoded_alike(changes):
    """Row by row, packed, and token by token: the same logits; and not those of the default."""
    config = small_config(**changes)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape),
        builders.small_params(config),
    )
    model, pairs = small_model(config), random_pairs(seed=10, count=2)
    packed = make_batch([pairs], 40, 30)
    together = logits_of(config, params, packed)[0]
    first = len(pairs[0][1])
    source, target = pairs[1]
    alone = logits_of(config, params, make_batch([[pairs[1]]], len(source), len(target)))[0]
    np.testing.assert_allclose(together[first : first + len(target)], alone, atol=1e-5, rtol=1e-5)

    variables = {"params": params}
    inputs = make_batch([[(source, [1])]], 20, 1)
    memory = model.apply(variables, inputs["inputs"], inputs["inputs_segments"], method="remember")
    cache = empty_cache(config.model, batch=1, beam=1, length=len(target))
    decode_step = jax.jit(partial(model.apply, method="decode_step"))
    for index, token in enumerate([BOS, *target[:-1]]):
        tokens = jnp.array([[token]])
        logits, cache = decode_step(variables, tokens, jnp.int32(index), memory, cache)
        np.testing.assert_allclose(logits[0, 0], alone[index], atol=1e-5, rtol=1e-5)


def test_a_position_beyond_the_table_is_not_that_of_the_last_row():
    """C05: lengths are checked on the host; should one slip through, the loss is not finite."""
    config = small_config(positions="learned", max_positions=4)
    pair = ([4, 5, 6, EOS], [4, 5, 6, 7, EOS])
    logits = logits_of(config, builders.small_params(config), make_batch([[pair]], 4, 5))[0]
    assert np.isnan(logits).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_activations_stay_finite(dtype):
    """C01: a row of padding beside a real one, and activations a hundred times as large."""
    config = small_config(dtype=dtype)
    params = jax.tree.map(lambda leaf: 100 * leaf, builders.small_params(config))
    pairs = random_pairs(seed=7, count=2)
    batch = make_batch([[pairs[0]], [], [pairs[1]]], 12, 12)

    def loss(params):
        logits = small_model(config).apply({"params": params}, batch)
        return loss_sums(logits, batch["targets"], batch["targets_segments"], 0.1).loss

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradients)))


def test_bfloat16_computes_near_float32_and_keeps_float32_parameters():
    full, half = small_config(), small_config(dtype="bfloat16")
    params = builders.small_params(half)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    batch = make_batch([[pair] for pair in random_pairs(seed=7, count=3)], 12, 12)
    logits = small_model(half).apply({"params": params}, batch)
    assert logits.dtype == jnp.float32
    real = batch["targets_segments"] != 0
    difference = np.abs(logits - logits_of(full, params, batch))[real]
    assert 0 < difference.max() < 0.1


def test_dropout_keeps_the_share_and_the_mean():
    x = jnp.ones((200, 500))
    y = Dropout(0.3).apply({}, x, False, rngs={"dropout": jax.random.key(0)})
    kept = np.asarray(y != 0)
    assert kept.mean() == pytest.approx(0.7, abs=0.005)  # 5 standard deviations
    np.testing.assert_allclose(np.asarray(y)[kept], 1 / 0.7, rtol=1e-6)
    # Neither rows, columns nor neighbours may be alike.
    for share in (kept.mean(axis=0), kept.mean(axis=1)):
        assert np.abs(share - 0.7).max() < 6 * (0.21 / min(kept.shape)) ** 0.5
    for a, b in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] == pytest.approx(0, abs=0.02)


def test_random_bits_depend_on_the_key_and_on_every_index():
    first, second = (np.asarray(random_bits(jax.random.key(i), (5, 7, 11))) for i in range(2))
    assert len(np.unique(first)) == first.size  # a collision among 385 has odds of 1 in 60,000
    assert (first != second).all()
    bits = np.unpackbits(first.view(np.uint8))
    assert bits.mean() == pytest.approx(0.5, abs=0.03)


def test_without_dropout_the_default_of_the_paper_is_deterministic():
    assert ModelConfig().dropout_rate == 0.1
    config = small_config(dropout_rate=0.5)
    params = builders.small_params(config)
    batch = make_batch([[pair] for pair in random_pairs(seed=8, count=2)], 12, 12)
    np.testing.assert_array_equal(
        logits_of(config, params, batch), logits_of(small_config(), params, batch)
    )


def test_a_matrix_for_each_side_gives_what_one_matrix_gives_where_they_are_equal():
    """Logits are the same, and gradients of the two add up to those of the one (section 3.4)."""
    config = small_config(positions="learned", max_positions=16, output_bias=True)
    shared = small_params(config)
    separate = jax.tree.map(lambda x: x, shared)
    separate["embedding"]["source_embedding"] = shared["embedding"]["embedding"]
    batch = make_batch([[pair] for pair in random_pairs(seed=5, count=3)], 9, 9)

    def run(params, is_shared):
        def loss(params):
            logits = small_model(config).clone(shared=is_shared).apply({"params": params}, batch)
            return loss_sums(logits, batch["targets"], batch["targets_segments"], 0.1).loss, logits

        (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return logits, gradients["embedding"]

    logits, gradients = run(shared, True)
    logits_separate, gradients_separate = run(separate, False)
    np.testing.assert_array_equal(logits, logits_separate)
    both = gradients_separate["embedding"] + gradients_separate["source_embedding"]
    np.testing.assert_allclose(both, gradients["embedding"], atol=1e-5)
    unread = np.setdiff1d(np.arange(VOCAB_SIZE), np.unique(batch["inputs"]))
    assert not np.any(gradients_separate["source_embedding"][unread])
    assert np.any(gradients_separate["source_embedding"])


def test_a_model_with_two_matrices_is_made_with_two_that_differ():
    config = small_config()
    model = small_model(config).clone(shared=False)
    state, _ = init_state(config, model, builders.one_device())
    table = state.params["embedding"]
    assert table.keys() == {"embedding", "source_embedding"}
    assert table["embedding"].shape == table["source_embedding"].shape
    assert np.abs(table["embedding"] - table["source_embedding"]).max() > 0.01
    assert np.std(table["source_embedding"]) == pytest.approx(config.model.d_model**-0.5, rel=0.1)


def test_gradients_of_our_own_are_those_of_jax():
    """Of the relu, also at 0, and of the product with the output's matrix."""
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])
    np.testing.assert_array_equal(relu(x), nn.relu(x))
    grad = jax.grad(lambda x: jnp.sum(relu(x) * jnp.arange(1, 6)))(x)
    np.testing.assert_array_equal(grad, [0, 0, 0, 4, 5])

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2, 3, 4), (5, 4), (2, 3, 5)
    x, matrix, of_logits = (
        jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)
    )
    logits, vjp = jax.vjp(output_product, x, matrix)
    np.testing.assert_allclose(logits, x @ matrix.T, rtol=1e-5, atol=1e-5)
    of_x, of_matrix = vjp(of_logits)
    np.testing.assert_allclose(of_x, of_logits @ matrix, rtol=1e-5, atol=1e-5)
    expected = of_logits.reshape(-1, 5).T @ x.reshape(-1, 4)
    np.testing.assert_allclose(of_matrix, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [((2, 3), (5,), (4,)), ((2, 3), (4,), (7,)), ((6,), (4, 2), (3,)), ((2, 3), (3,), (4, 2))],
)
def test_the_gradients_of_a_product_are_those_that_jax_derives(rows, inputs, outputs):
    """With a kernel of more inputs than outputs, of less, and of several dims of either."""
    random = np.random.default_rng(0)
    x, kernel, gradient = (
        jnp.array(random.normal(size=shape), jnp.float32)
        for shape in (rows + inputs, inputs + outputs, rows + outputs)
    )
    result, vjp = jax.vjp(lambda x, kernel: product(x, kernel, len(inputs)), x, kernel)
    expected, plain = jax.vjp(lambda x, kernel: jnp.tensordot(x, kernel, len(inputs)), x, kernel)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    for ours, theirs in zip(vjp(gradient), plain(gradient), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
