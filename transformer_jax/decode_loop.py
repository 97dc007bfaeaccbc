"""What the loops of beam search and of sampling share: their caches, and how they go on."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Cache = Any
"""A pytree of arrays that lead with the dims [batch, beam], and are reordered at every step.

A node that knows better, whose arrays lead with [batch] alone, has methods: `reorder(parents)`,
`parents` being [batch, beam], gives that of the hypotheses which go on from those of the parents;
`grow(length)` one that has room for `length` positions.
"""

StepFn = Callable[
    [Int[Array, "batch beam"], Int[Array, ""], Cache],
    tuple[Float[Array, "batch beam vocab"], Cache],
]
"""(tokens, position, cache) -> (logits of the next token, new cache).

`tokens` are those just chosen, `position` is where they stand: the start mark at 0. Logits are of
any float type. What the function knows of sentences is in the cache too, since not all sentences go
on to the end.
"""

State = TypeVar("State", bound=Any)
"""A NamedTuple whose fields lead with [batch], but `index`, the tokens chosen so far.

`cache` is one of them, and `done` [batch]: whether nothing of a sentence changes any more.
"""

FEWEST_ROWS = 16
"""Sentences of a device that are worth a loop of their own."""


def stages(max_length: int) -> list[int]:
    """The positions that a cache has room for: 24 at first, then four times as many, at last all.

    What stands empty in a cache is read at every step.
    """
    sizes = (24 * 4**power for power in range(max_length.bit_length()))
    return [*(size for size in sizes if size < 0.75 * max_length), max_length]


def repeat(
    step: Callable[[State], State], state: State, max_length: int, num_shards: int = 1
) -> State:
    """The state after steps have been taken until every sentence is done; its cache is gone.

    There is a loop for each of the `stages`, left out where it is not needed. Where a batch is
    large, the sentences that are not done go on without the others as soon as they are half as many
    or less: devices hold the batch in `num_shards` equal parts, and each goes on with its own.
    """
    sizes = stages(max_length)
    half = _half(len(state.done), num_shards)

    def goes_on(state: State) -> Bool[Array, ""]:
        return jnp.any(jnp.sum(~_by_shard(state.done, num_shards), axis=1) > half)

    def stage(state: State, sizes: Sequence[int], leave: Callable[[State], Any]) -> Any:
        size, *larger = sizes
        state = _with_room(state, size)
        state = jax.lax.while_loop(lambda s: goes_on(s) & (s.index < size), step, state)
        if not larger:
            return leave(state)
        return jax.lax.cond(
            goes_on(state), lambda: stage(state, larger, leave), lambda: leave(state)
        )

    def split(state: State) -> tuple[State, State, Int[Array, "shards half"]]:
        rows = jnp.argsort(_by_shard(state.done, num_shards), axis=1, stable=True)[:, :half]
        return _without_cache(state), _with_room(_rows_of(state, rows), sizes[-1]), rows

    if not half:
        return stage(state, sizes, _without_cache)
    state, rest, rows = stage(state, sizes, split)
    rest = jax.lax.while_loop(lambda s: ~jnp.all(s.done), step, rest)
    return _with_rows(state, rows, _without_cache(rest))


def longest_rounds(max_length: int, batch: int, num_shards: int) -> list[int]:
    """The rounds of each loop of `repeat` where all sentences take `max_length` steps.

    The first step is not in a loop, and half of such a batch never goes on alone.
    """
    rounds = [end - start for start, end in pairwise([1, *stages(max_length)])]
    return [*rounds, 0] if _half(batch, num_shards) else rounds


def _half(batch: int, num_shards: int) -> int:
    """Sentences of a shard that go on without the others; 0 where these are too few."""
    half = batch // num_shards // 2
    return half if half >= FEWEST_ROWS else 0


def _by_shard(leaf: Array, num_shards: int) -> Array:
    return leaf.reshape(num_shards, -1, *leaf.shape[1:])


def _rows_of(state: State, rows: Int[Array, "shards rows"]) -> State:
    """The state of those sentences of every shard alone."""

    def take_rows(leaf: Array) -> Array:
        chosen = jax.vmap(lambda own, places: own[places])(_by_shard(leaf, len(rows)), rows)
        return chosen.reshape(-1, *leaf.shape[1:])

    leaves = jax.tree.map(take_rows, state._replace(index=None))
    return leaves._replace(index=state.index)


def _with_rows(state: State, rows: Int[Array, "shards rows"], new: State) -> State:
    """The state with those sentences of every shard as they are in `new`, and its index."""

    def put_rows(leaf: Array, own: Array) -> Array:
        put = jax.vmap(lambda all_rows, places, few: all_rows.at[places].set(few))
        both = put(_by_shard(leaf, len(rows)), rows, _by_shard(own, len(rows)))
        return both.reshape(leaf.shape)

    leaves = jax.tree.map(put_rows, state._replace(index=None), new._replace(index=None))
    return leaves._replace(index=new.index)


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


def _with_room(state: State, length: int) -> State:
    def grow(node: Any) -> Any:
        return node.grow(length) if _reorders_itself(node) else node

    return state._replace(cache=jax.tree.map(grow, state.cache, is_leaf=_reorders_itself))


def _without_cache(state: State) -> State:
    return state._replace(cache=None)


def _reorders_itself(node: Any) -> bool:
    return hasattr(node, "reorder")
