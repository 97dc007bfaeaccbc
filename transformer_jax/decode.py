"""Beam search over token ids (section 6.1): pure functions that know nothing of models or text.

The caller gives a function that scores the next token, and jits the whole.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from transformer_jax.decode_loop import Cache, StepFn, check_cache, reorder_cache, repeat, take


def average(step_fns: Sequence[StepFn]) -> StepFn:
    """The step function of an ensemble: the log of the mean probability of each token.

    Its cache is the tuple of those of the members, which share a vocabulary.
    """

    def step(tokens, position, caches):
        outputs = [f(tokens, position, c) for f, c in zip(step_fns, caches, strict=True)]
        return mean_logits([logits for logits, _ in outputs]), tuple(c for _, c in outputs)

    return step


def mean_logits(logits: Sequence[Float[Array, "*rows vocab"]]) -> Float[Array, "*rows vocab"]:
    """Logits of the mean of n distributions, log((p_1 + ... + p_n) / n); of one, its own."""
    if len(logits) == 1:
        return logits[0]
    log_probs = [jax.nn.log_softmax(each.astype(jnp.float32)) for each in logits]
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - jnp.log(float(len(logits)))


class SpecialIds(NamedTuple):
    """The control ids of the vocabulary, all distinct."""

    pad: int
    bos: int
    eos: int
    unk: int | None = None
    """Never chosen, as it stands for no text; None where the vocabulary has none."""

    def checked(self, vocab_size: int) -> list[int]:
        """Those there are. Raises ValueError for one beyond the vocabulary."""
        ids = [token for token in self if token is not None]
        if not all(0 <= token < vocab_size for token in ids):
            raise ValueError(f"{self} does not fit a vocabulary of {vocab_size}")
        return ids


class Hypotheses(NamedTuple):
    """Hypotheses of each sentence, best first."""

    tokens: Int32[Array, "batch beam length"]  # without start mark, with end mark, then padding
    scores: Float32[Array, "batch beam"]  # log-probability / length penalty; -inf: no hypothesis
    log_probs: Float32[Array, "batch beam"]  # natural logarithm; -inf: no hypothesis
    finished: Bool[Array, "batch beam"]  # False: cut at the limit, without an end mark


class SearchResult(NamedTuple):
    """Hypotheses as in `Hypotheses`, those that ended before those that did not."""

    tokens: Int32[Array, "batch beam length"]
    scores: Float32[Array, "batch beam"]
    log_probs: Float32[Array, "batch beam"]
    finished: Bool[Array, "batch beam"]
    cut: Bool[Array, "batch"]  # the limit cut off a hypothesis that scored above all that ended


class BeamState(NamedTuple):
    """What the search carries from step to step."""

    index: Int32[Array, ""]  # tokens chosen so far, and the position of the newest one
    tokens: Int32[Array, "batch beam length"]  # live prefixes, padded
    log_probs: Float32[Array, "batch beam"]  # of the live prefixes, falling; -inf: empty slot
    finished: Hypotheses  # the best that ended, by score; free slots score -inf
    done: Bool[Array, "batch"]  # nothing of this sentence changes any more
    limits: Int32[Array, "batch"]  # the longest hypothesis, in tokens
    forced: Int32[Array, "batch length"]  # tokens to begin with, then padding
    cache: Cache  # of the live prefixes


def length_penalty(length: int | Int[Array, "..."], alpha: float) -> Float32[Array, "..."]:
    """The divisor of a log-probability, ((5 + length) / 6)^alpha: Wu et al. (2016), equation 14.

    `length` is in tokens and counts the end mark.
    """
    return ((5.0 + jnp.asarray(length, jnp.float32)) / 6.0) ** alpha


def beam_search(
    step_fn: StepFn,
    cache: Cache,
    limits: Int[Array, "batch"],
    *,
    beam_size: int,
    alpha: float,
    max_length: int,
    special: SpecialIds,
    min_length: int = 0,
    num_certain: int | None = None,
    forced: Int[Array, "batch prefix"] | None = None,
    num_shards: int = 1,
) -> SearchResult:
    """The best translations of a batch of sentences that beam search finds (section 6.1).

    Args:
      step_fn: scores the next token of every live hypothesis.
      cache: its state before the start mark, of one hypothesis a sentence, with room for that.
      limits: the longest hypothesis of each sentence in tokens, end mark counted. Zero is for
        filler rows: they get one empty unfinished hypothesis with score 0, and cost no step.
      beam_size: live hypotheses, and hypotheses returned, per sentence. It may exceed the
        vocabulary. One is greedy search.
      alpha: exponent of `length_penalty`; 0 ranks by log-probability alone.
      max_length: the largest of `limits`, and the length of the returned rows.
      min_length: tokens that a hypothesis must have before its end mark; those of a limit too
        short for that are cut.
      num_certain: how many of the first hypotheses must be final before the search may stop; the
        others are then the best found so far. All `beam_size` by default.
      forced: tokens that every hypothesis of a sentence begins with, then padding; their
        log-probabilities count like those of any token.
      num_shards: equal parts in which devices hold the batch.
      special: all but the end mark are never chosen; the end mark ends a hypothesis.

    Returns:
      Distinct hypotheses, best first. Those that ended come before those cut at the limit, which
      fill what places are left. Places beyond the last hypothesis hold padding and score -inf.

    Raises:
      ValueError: a size below 1, or a cache leaf or special id that does not fit.

    Every step extends the live hypotheses by every token. All those that end compete for the
    `beam_size` finished places; the best `beam_size` of the others live on. With a beam of one the
    likeliest token alone decides whether the hypothesis ends or lives on.

    A sentence is done once no live hypothesis can enter its finished places: a log-probability p
    never rises, so whatever grows out of it scores at most p / penalty(L), with L the length still
    reachable that favours it most (the limit for alpha >= 0). When the last of the `num_certain`
    first places scores as much as the best live bound, those places, the winner's included, are
    certain. A free place scores -inf, so the search goes on until they are taken, no hypothesis
    lives, or the limit is reached.

    A sentence that is done is frozen, so results do not depend on its neighbours. Equal scores
    rank by the earlier end, then the lower beam, then the lower id.
    """
    num_certain = beam_size if num_certain is None else num_certain
    _check(beam_size, max_length, num_certain)
    check_cache(cache, limits.shape[0], 1)
    limits = jnp.minimum(limits, max_length)
    forced = forced_to_length(forced, limits.shape[0], max_length, special.pad)

    def step(state: BeamState, width: int = beam_size) -> BeamState:
        live = state._replace(tokens=state.tokens[:, :width], log_probs=state.log_probs[:, :width])
        newest = live.tokens[:, :, jnp.maximum(state.index - 1, 0)]
        last = jnp.where(state.index == 0, special.bos, newest)
        logits, new_cache = step_fn(last, state.index, state.cache)
        forced_now = state.forced[:, state.index]
        free_to_end = (forced_now == special.pad) & (state.index >= min_length)
        may_end = free_to_end | (forced_now == special.eos)
        tokens, log_probs, ended_log_probs, parents = _expand(
            live, logits, forced_now, may_end, special, beam_size
        )
        index = state.index + 1
        finished = _update_finished(live, ended_log_probs, special.eos, alpha)
        tokens, log_probs, finished = _keep_where(
            state.done,
            (state.tokens, state.log_probs, state.finished),
            (tokens, log_probs, finished),
        )
        done = state.done | _is_done(
            index, log_probs, finished.scores[:, num_certain - 1], state.limits, alpha
        )
        return state._replace(
            index=index,
            tokens=tokens,
            log_probs=log_probs,
            finished=finished,
            done=done,
            cache=reorder_cache(new_cache, parents),
        )

    state = _initial_state(cache, limits, forced, beam_size, special.pad)
    state = step(state, width=1)  # what the empty prefix costs once, it need not cost every beam
    state = repeat(step, state, max_length, num_shards)
    return _ranked(state, alpha, special.pad)


def _check(beam_size: int, max_length: int, num_certain: int) -> None:
    for name, size in (("beam_size", beam_size), ("max_length", max_length)):
        if size < 1:
            raise ValueError(f"{name} is {size}: it must be 1 or more")
    if not 1 <= num_certain <= beam_size:
        raise ValueError(f"num_certain is {num_certain}: it must be from 1 to {beam_size}")


def _initial_state(
    cache: Cache,
    limits: Int[Array, "batch"],
    forced: Int32[Array, "batch length"],
    beam_size: int,
    pad: int,
) -> BeamState:
    """The empty prefix, alive once per sentence: more of it would be found as often."""
    shape = (limits.shape[0], beam_size)
    tokens = jnp.full((*shape, forced.shape[1]), pad, jnp.int32)
    nothing = jnp.full(shape, -jnp.inf, jnp.float32)
    return BeamState(
        index=jnp.int32(0),
        tokens=tokens,
        log_probs=nothing.at[:, 0].set(0.0),
        finished=Hypotheses(tokens, nothing, nothing, jnp.zeros(shape, bool)),
        done=limits <= 0,
        limits=limits.astype(jnp.int32),
        forced=forced,
        cache=cache,
    )


def _expand(
    state: BeamState,
    logits: Float[Array, "batch beam vocab"],
    forced: Int32[Array, "batch"],
    may_end: Bool[Array, "batch"],
    special: SpecialIds,
    beam_size: int,
) -> tuple[
    Int32[Array, "batch new_beam length"],
    Float32[Array, "batch new_beam"],
    Float32[Array, "batch beam"],
    Int32[Array, "batch new_beam"],
]:
    """The best extensions that live on: tokens, log-probabilities (falling) and parents' beams.

    Third of the four, the log-probability with which each of the old hypotheses ends.
    """
    batch_size, width, vocab_size = logits.shape
    logits = logits.astype(jnp.float32)
    # A hypothesis has at most beam_size children among the survivors, so the vocabulary is
    # searched once per beam; no empty slot can displace a real one, as -inf ranks last.
    num_children = min(beam_size, vocab_size)
    groups = in_groups(logits, num_children)
    # log_softmax of the chosen tokens only: the whole of it is not worth the memory traffic.
    greatest = groups.max(axis=3).max(axis=2, keepdims=True)
    sums = jnp.exp(groups - greatest[..., None]).sum(axis=3).sum(axis=2, keepdims=True)
    log_norm = greatest + jnp.log(sums)
    end_logits = jnp.where(may_end[:, None], logits[:, :, special.eos], -jnp.inf)
    ended_log_probs = state.log_probs + (end_logits - log_norm[:, :, 0])

    best = top_k(groups, num_children, without=special.checked(vocab_size))
    best_logits, children = _force(logits, best, forced, special)
    candidates = state.log_probs[:, :, None] + (best_logits - log_norm)

    num_candidates = width * num_children
    none = [(0, 0), (0, max(0, beam_size - num_candidates))]  # where there are more places
    candidates = jnp.pad(candidates.reshape(batch_size, -1), none, constant_values=-jnp.inf)
    log_probs, choice = jax.lax.top_k(candidates, beam_size)
    choice = jnp.minimum(choice, num_candidates - 1)
    parents = choice // num_children
    chosen = jnp.take_along_axis(children.reshape(batch_size, -1), choice, axis=1)
    tokens = take(state.tokens, parents).at[:, :, state.index].set(chosen)

    if beam_size == 1:  # greedy: end or live on, not both; of equals, end
        ends = (end_logits >= best_logits[:, :, 0]) & may_end[:, None]
        log_probs = jnp.where(ends, -jnp.inf, log_probs)
        ended_log_probs = jnp.where(ends, ended_log_probs, -jnp.inf)
    return tokens, log_probs, ended_log_probs, parents


def _force(
    logits: Float[Array, "batch beam vocab"],
    best: tuple[Float[Array, "batch beam k"], Int32[Array, "batch beam k"]],
    forced: Int32[Array, "batch"],
    special: SpecialIds,
) -> tuple[Float[Array, "batch beam k"], Int32[Array, "batch beam k"]]:
    """The best logits and their tokens; where a token is forced, that alone."""
    is_forced, forced = (forced != special.pad)[:, None, None], forced[:, None, None]
    goes_on = (jnp.arange(best[1].shape[2]) == 0) & (forced != special.eos)
    alone = jnp.where(goes_on, jnp.take_along_axis(logits, forced, axis=2), -jnp.inf)
    return jnp.where(is_forced, alone, best[0]), jnp.where(is_forced, forced, best[1])


def in_groups(
    x: Float[Array, "batch beam vocab"], k: int
) -> Float[Array, "batch beam groups size"]:
    """Long rows as groups of 64 neighbours, with -inf behind the last; short ones as one group."""
    vocab_size = x.shape[-1]
    size = 64 if vocab_size >= 64 * 4 * k else vocab_size
    padding = [(0, 0), (0, 0), (0, -vocab_size % size)]
    groups = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*x.shape[:-1], -1, size)
    return jax.lax.optimization_barrier(groups)  # else what they are made of is made twice


def top_k(
    groups: Float[Array, "batch beam groups size"], k: int, without: Sequence[int] = ()
) -> tuple[Float[Array, "batch beam k"], Int32[Array, "batch beam k"]]:
    """`jax.lax.top_k` of rows `in_groups`: the greatest, and where; of equals, the first.

    Those at the places `without` count as -inf. The greatest are in the k groups that have the
    greatest maxima, so what is sorted is few, and no pass writes a row: XLA's own takes a third of
    the time of the logits on a CPU.
    """
    num_groups, size = groups.shape[2:]
    excluded = np.isin(np.arange(num_groups * size), without).reshape(num_groups, size)
    maxima = groups.max(axis=-1)
    for group in np.flatnonzero(excluded.any(axis=1)):
        rest = jnp.where(excluded[group], -jnp.inf, groups[:, :, group])
        maxima = maxima.at[:, :, group].set(rest.max(axis=-1))
    best = jnp.sort(jax.lax.top_k(maxima, min(k, num_groups))[1], axis=-1)
    candidates = jnp.where(jnp.asarray(excluded)[best], -jnp.inf, jax.vmap(take)(groups, best))
    places = best[..., None] * size + jnp.arange(size)
    in_one_row = (*best.shape[:-1], -1)
    values, chosen = jax.lax.top_k(candidates.reshape(in_one_row), k)
    return values, jnp.take_along_axis(places.reshape(in_one_row), chosen, axis=-1)


def forced_to_length(
    forced: Int[Array, "batch prefix"] | None, batch: int, length: int, pad: int
) -> Int32[Array, "batch length"]:
    """Forced prefixes, none where there are none, with padding up to the longest hypothesis."""
    free = jnp.full((batch, length), pad, jnp.int32)
    return free if forced is None else free.at[:, : forced.shape[1]].set(forced[:, :length])


def _update_finished(
    state: BeamState, ended_log_probs: Float32[Array, "batch beam"], eos: int, alpha: float
) -> Hypotheses:
    """The best of the finished hypotheses and those that end now; of equals, the earlier."""
    scores = ended_log_probs / length_penalty(state.index + 1, alpha)
    ended = Hypotheses(
        tokens=state.tokens.at[:, :, state.index].set(eos),
        scores=scores,
        log_probs=ended_log_probs,
        finished=scores > -jnp.inf,
    )
    both = _join(state.finished, ended)
    _, best = jax.lax.top_k(both.scores, state.finished.scores.shape[1])
    return take(both, best)


def _is_done(
    index: Int32[Array, ""],
    log_probs: Float32[Array, "batch beam"],
    certain_score: Float32[Array, "batch"],
    limits: Int[Array, "batch"],
    alpha: float,
) -> Bool[Array, "batch"]:
    """Whether places that score `certain_score` or more are final: see `beam_search` for why."""
    most_favoured = limits if alpha >= 0 else index + 1
    bound = log_probs[:, 0] / length_penalty(most_favoured, alpha)
    return (certain_score >= bound) | (index >= limits)


def _ranked(state: BeamState, alpha: float, pad: int) -> SearchResult:
    """The finished hypotheses, then the live ones that reached the limit in the places left."""
    limits = state.limits
    bounds = state.log_probs / length_penalty(limits, alpha)[:, None]
    last = jnp.take_along_axis(state.tokens, jnp.maximum(limits - 1, 0)[:, None, None], axis=2)
    reached = (last[:, :, 0] != pad) | (limits == 0)[:, None]
    live = Hypotheses(
        tokens=state.tokens,
        scores=jnp.where(reached, bounds, -jnp.inf),
        log_probs=jnp.where(reached, state.log_probs, -jnp.inf),
        finished=jnp.zeros_like(state.finished.finished),
    )
    beam_size = state.log_probs.shape[1]
    place = jnp.arange(beam_size)
    num_finished = state.finished.finished.sum(axis=1, keepdims=True)
    source = jnp.where(place < num_finished, place, beam_size + place - num_finished)
    ranked = take(_join(state.finished, live), source)
    exists = ranked.scores > -jnp.inf
    return SearchResult(
        tokens=jnp.where(exists[:, :, None], ranked.tokens, pad),
        scores=ranked.scores,
        log_probs=ranked.log_probs,
        finished=ranked.finished,
        # Before the limit the search stops only when the finished ones reach this bound.
        cut=bounds[:, 0] > state.finished.scores[:, 0],
    )


def _join(first: Hypotheses, second: Hypotheses) -> Hypotheses:
    """Both sets along the beam."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), first, second)


def _keep_where(done: Bool[Array, "batch"], old: Any, new: Any) -> Any:
    """The old leaves of the sentences that are done, the new ones of the others."""

    def keep(old_leaf: Array, new_leaf: Array) -> Array:
        return jnp.where(done.reshape(-1, *[1] * (new_leaf.ndim - 1)), old_leaf, new_leaf)

    return jax.tree.map(keep, old, new)
