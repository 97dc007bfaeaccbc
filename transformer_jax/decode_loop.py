"""What the loops of beam search and of sampling share: their caches, and how they go on."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Bool, Float, Int

Cache = Any
"""A pytree of arrays that lead with the dims [batch, beam], and are reordered at every step.

A node that knows better has methods: `reorder(parents)`, `parents` being [batch, beam], gives that
of the hypotheses which go on from those of the parents; `grow(length)` one that has room for
`length` positions.
"""

StepFn = Callable[
    [Int[Array, "batch beam"], Int[Array, ""], Cache],
    tuple[Float[Array, "batch beam vocab"], Cache],
]
"""(tokens, position, cache) -> (logits of the next token, new cache).

`tokens` are those just chosen, `position` is where they stand: the start mark at 0. Logits are of
any float type. What the beams of a sentence share (the keys and values of the cross-attention)
belongs in the function's closure, not in the cache.
"""

State = TypeVar("State", bound=Any)
"""A NamedTuple with the fields `index`, the tokens chosen so far, and `cache`."""


def stages(max_length: int) -> list[int]:
    """The positions that a cache has room for: 24 at first, then four times as many, at last all.

    What stands empty in a cache is read at every step.
    """
    sizes = (24 * 4**power for power in range(max_length.bit_length()))
    return [*(size for size in sizes if size < 0.75 * max_length), max_length]


def repeat(
    step: Callable[[State], State],
    goes_on: Callable[[State], Bool[Array, ""]],
    state: State,
    max_length: int,
) -> State:
    """The state after steps have been taken while it `goes_on`; its cache is gone.

    There is a loop for each of the `stages`, left out where the state does not go on.
    """

    def stage(state: State, sizes: Sequence[int]) -> State:
        size, *larger = sizes
        state = state._replace(cache=_grow(state.cache, size))
        state = jax.lax.while_loop(lambda s: goes_on(s) & (s.index < size), step, state)
        without = state._replace(cache=None)
        if not larger:
            return without
        return jax.lax.cond(goes_on(state), lambda: stage(state, larger), lambda: without)

    return stage(state, stages(max_length))


def check_cache(cache: Cache, batch_size: int, beam_size: int) -> None:
    """Raises ValueError for a leaf that neither leads with [batch, beam] nor reorders itself."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache, is_leaf=_reorders_itself):
        if not _reorders_itself(leaf) and leaf.shape[:2] != (batch_size, beam_size):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} has shape {leaf.shape}: "
                f"it must lead with batch {batch_size} and beam {beam_size}"
            )


def take(tree: Any, beams: Int[Array, "batch chosen"]) -> Any:
    """Every leaf's rows [batch, beam, ...] at each sentence's chosen beams."""

    def take_rows(leaf: Array) -> Array:
        if leaf.shape[1] == beams.shape[1] == 1:  # greedy search: there is nothing to reorder
            return leaf
        return jax.vmap(lambda rows, chosen: rows[chosen])(leaf, beams)

    return jax.tree.map(take_rows, tree)


def reorder_cache(cache: Cache, parents: Int[Array, "batch beam"]) -> Cache:
    """The cache of the hypotheses that go on from those of the beams `parents`."""

    def reorder(node: Any) -> Any:
        return node.reorder(parents) if _reorders_itself(node) else take(node, parents)

    return jax.tree.map(reorder, cache, is_leaf=_reorders_itself)


def _grow(cache: Cache, length: int) -> Cache:
    def grow(node: Any) -> Any:
        return node.grow(length) if _reorders_itself(node) else node

    return jax.tree.map(grow, cache, is_leaf=_reorders_itself)


def _reorders_itself(node: Any) -> bool:
    return hasattr(node, "reorder")
