"""The loss against a distribution written out in full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.loss import loss_sums


def by_hand(logits, targets, segments, smoothing):
    """Cross entropy with the smoothed distribution, token by token, in float64."""
    total = nll = 0.0
    vocab = logits.shape[-1]
    for row, column in zip(*np.nonzero(segments), strict=True):
        z = logits[row, column].astype(np.float64)
        log_p = z - z.max() - np.log(np.exp(z - z.max()).sum())
        wanted = np.full(vocab, smoothing / vocab)
        wanted[targets[row, column]] += 1 - smoothing
        total -= wanted @ log_p
        nll -= log_p[targets[row, column]]
    return total, nll, np.count_nonzero(segments)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_sums_are_those_of_the_definition(smoothing):
    random = np.random.default_rng(0)
    logits = (10 * random.normal(size=(3, 5, 11))).astype(np.float32)
    targets = random.integers(0, 11, (3, 5))
    segments = random.integers(0, 3, (3, 5))
    sums = loss_sums(jnp.array(logits), jnp.array(targets), jnp.array(segments), smoothing)
    np.testing.assert_allclose(sums, by_hand(logits, targets, segments, smoothing), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equal_logits_cost_the_log_of_the_vocabulary(smoothing):
    """C08."""
    sums = loss_sums(jnp.ones((1, 4, 9)), jnp.zeros((1, 4), int), jnp.ones((1, 4), int), smoothing)
    assert sums.loss == pytest.approx(4 * np.log(9), rel=1e-6)
    assert sums.nll == pytest.approx(4 * np.log(9), rel=1e-6)


def test_padding_weighs_nothing_even_where_its_logits_are_not_finite():
    """C07."""
    logits = np.zeros((1, 3, 5), np.float32)
    logits[0, 2] = [np.inf, np.nan, 0, -np.inf, 1]
    targets, segments = jnp.array([[2, 1, 0]]), jnp.array([[1, 1, 0]])
    sums = loss_sums(jnp.array(logits), targets, segments, 0.4)
    assert (sums.loss, sums.tokens) == (pytest.approx(2 * np.log(5)), 2)
    nothing = loss_sums(jnp.array(logits), targets, jnp.zeros((1, 3), int), 0.4)
    assert tuple(nothing) == (0, 0, 0)


def test_gradient_is_softmax_minus_the_wanted_distribution():
    random = np.random.default_rng(1)
    logits = jnp.array(random.normal(size=(1, 2, 7)), jnp.float32)
    targets, segments = jnp.array([[3, 6]]), jnp.array([[1, 0]])
    gradient = jax.grad(lambda z: loss_sums(z, targets, segments, 0.2).loss)(logits)
    wanted = np.full(7, 0.2 / 7)
    wanted[3] += 0.8
    np.testing.assert_allclose(gradient[0, 0], jax.nn.softmax(logits[0, 0]) - wanted, atol=1e-6)
    np.testing.assert_array_equal(gradient[0, 1], 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_of_both_sums_are_those_that_jax_derives(smoothing):
    """Rows beyond the vocabulary are -inf, as the model gives them; both sums go into the loss."""
    random = np.random.default_rng(2)
    logits = jnp.array(random.normal(size=(2, 3, 9)), jnp.float32).at[..., 7:].set(-jnp.inf)
    targets = jnp.array(random.integers(0, 7, (2, 3)))
    segments = jnp.array([[1, 1, 0], [1, 2, 2]])

    def ours(z):
        sums = loss_sums(z, targets, segments, smoothing, vocab_size=7)
        return 2 * sums.loss - 3 * sums.nll

    def plain(z):
        log_p = jax.nn.log_softmax(z[..., :7])
        nll = -jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
        loss = (1 - smoothing) * nll - smoothing * log_p.mean(axis=-1)
        return jnp.sum((2 * loss - 3 * nll) * (segments != 0))

    expected = jax.grad(plain)(logits)
    np.testing.assert_allclose(ours(logits), plain(logits), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(ours)(logits)[..., :7], expected[..., :7], atol=1e-6)
    np.testing.assert_array_equal(jax.grad(ours)(logits)[..., 7:], 0)
