"""The legend of dimensions, and the array types made of it.

| name | dimension |
|---|---|
| `batch` | rows of a batch; a packed row holds several sentences |
| `src`, `tgt` | positions of the source and of the target, in tokens |
| `beam` | hypotheses of one sentence |
| `model` | the residual stream, d_model |
| `heads`, `head_dim` | attention heads and the width of each |
| `ff` | inner width of the feed-forward networks, d_ff |
| `vocab` | pieces of the vocabulary |

The same words name the logical axes in `sharding.py`.
"""

from typing import Any, TypedDict

import jax
from jaxtyping import Array, Float, Int

Params = Any
"""A pytree of parameters, as flax makes it."""

Key = jax.Array
"""One key of jax.random."""

Sources = Int[Array, "batch src"]
Targets = Int[Array, "batch tgt"]
Logits = Float[Array, "batch tgt vocab"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]


class Batch(TypedDict):
    """Rows of tokens. Segments number the sentences of a row from 1; 0 is padding.

    Positions start at 0 in every sentence. `targets` end with the end mark and do not begin with
    the start mark.
    """

    inputs: Sources
    inputs_positions: Sources
    inputs_segments: Sources
    targets: Targets
    targets_positions: Targets
    targets_segments: Targets
