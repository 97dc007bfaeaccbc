"""How near two implementations must be."""

import jax
import numpy as np


def assert_close(ours, theirs, relative):
    """Equal but for a share of the largest value."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=relative * np.abs(theirs).max())


def assert_gradients_close(gradients, their_gradients):
    """Each array to 1e-4 of its largest value."""
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))

    def compare(path, ours, theirs):
        if jax.tree_util.keystr(path).endswith("['key']['bias']"):
            # It moves all scores of a query alike, so its gradient is zero but for rounding.
            assert max(np.abs(ours).max(), np.abs(theirs).max()) < 1e-6 * largest
        else:
            assert_close(ours, theirs, 1e-4)

    jax.tree_util.tree_map_with_path(compare, gradients, their_gradients)
