"""The optimizer against the formulas of section 5.3 and of Adam."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.config import OptimizerConfig
from transformer_jax.optimizer import learning_rate, make_optimizer


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_learning_rate_is_the_formula_of_the_paper(step, scale):
    config = OptimizerConfig(learning_rate_scale=scale)
    expected = scale * 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert learning_rate(step, config, 512) == pytest.approx(expected, rel=1e-6)


def test_known_values_of_the_base_model():
    assert learning_rate(4000, OptimizerConfig(), 512) == pytest.approx(6.987712e-4, rel=1e-6)
    assert learning_rate(1, OptimizerConfig(), 512) == pytest.approx(1.746928e-7, rel=1e-6)
    assert learning_rate(100_000, OptimizerConfig(), 512) == pytest.approx(1.397542e-4, rel=1e-6)


def test_updates_are_those_of_adam_with_the_rate_of_their_step():
    """Kingma & Ba 2015, algorithm 1, in float64."""
    config = OptimizerConfig(warmup_steps=2)
    optimizer = make_optimizer(config, d_model=16)
    weights = np.array([0.5, -1.0, 2.0])
    params, mean, square = jnp.array(weights, jnp.float32), np.zeros(3), np.zeros(3)
    state = optimizer.init(params)
    for step in range(1, 6):
        gradient = np.array([1.0, -0.1, 0.01]) * step
        updates, state = optimizer.update(jnp.array(gradient, jnp.float32), state, params)
        params = optax.apply_updates(params, updates)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        rate = 16**-0.5 * min(step**-0.5, step * 2**-1.5)
        corrected = mean / (1 - 0.9**step), square / (1 - 0.98**step)
        weights = weights - rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-9)
        np.testing.assert_allclose(params, weights, rtol=1e-5, atol=1e-6)


def test_clipping_scales_gradients_down_to_the_norm_and_never_up():
    """Adam's first update divides by the gradient's size, so two gradients show the clipping."""
    config = OptimizerConfig(clip_norm=1.0)
    clipped, plain = make_optimizer(config, 16), make_optimizer(OptimizerConfig(), 16)
    params = jnp.zeros(2)
    states = [optimizer.init(params) for optimizer in (clipped, plain)]
    large, small = jnp.array([30.0, 40.0]), jnp.array([0.3, 0.4])
    for given, equal in ((large, large / 50), (small, small)):
        updates, states[0] = clipped.update(given, states[0], params)
        expected, states[1] = plain.update(equal, states[1], params)
        np.testing.assert_allclose(updates, expected, rtol=1e-5)
