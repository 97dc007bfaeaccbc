"""Beam search on tables of next-token probabilities, small enough for exhaustive search.

Names such as E01 are those of the public bug reports that the tests would have caught.
"""

import functools
import itertools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from transformer_jax.decode import (
    SearchResult,
    SpecialIds,
    average,
    beam_search,
    in_groups,
    length_penalty,
    top_k,
)

SPECIAL = SpecialIds(pad=0, bos=1, eos=2)
TOYS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "data" / "E_toy").glob("*.json"))
}
ALPHAS = (-0.5, 0.0, 0.6, 2.0)
VOCAB_SIZE, MAX_LENGTH = 5, 4
NUM_ROWS = sum(VOCAB_SIZE**length for length in range(MAX_LENGTH))


# --- Tables: probabilities [row of the prefix, next token] --------------------------------------


def prefix_row(prefix, vocab_size):
    """The row of a prefix in the table of all prefixes, shortest first."""
    shorter = sum(vocab_size**length for length in range(len(prefix)))
    return shorter + functools.reduce(lambda row, token: row * vocab_size + token, prefix, 0)


def toy_table(toy, vocab_size=5):
    """The dense table of a toy file, for all prefixes shorter than its limit."""
    rows = []
    for length in range(toy["max_len_with_eos"]):
        for prefix in itertools.product(range(vocab_size), repeat=length):
            entry = toy["table"].get(" ".join(map(str, prefix)), toy["table"]["*"])
            rows.append([entry.get(str(token), 0.0) for token in range(vocab_size)])
    return np.array(rows)


def table_step_fn(tables, dtype=jnp.float32):
    """Scores by the prefixes that the cache remembers, so that a cache not reordered shows.

    `tables` is [batch, row, vocab]. Next to the prefixes, the cache holds their row in the table.
    """
    logits = jnp.log(jnp.asarray(tables, jnp.float32)).astype(dtype)
    vocab_size = logits.shape[-1]

    def step(tokens, position, cache):
        prefixes = cache["prefixes"].at[:, :, position].set(tokens)
        row = jnp.where(position == 0, 0, cache["row"] * vocab_size + tokens + 1)
        # The same row, from the prefixes: the two agree where all leaves are reordered alike.
        row_again = jnp.zeros_like(row)
        for index in range(1, prefixes.shape[2]):
            row_again = jnp.where(
                index <= position, row_again * vocab_size + prefixes[:, :, index] + 1, row_again
            )
        row = jnp.where(row == row_again, row, 0)
        row = jnp.minimum(row, logits.shape[1] - 1)
        scores = jax.vmap(lambda table, rows: table[rows])(logits, row)
        return scores, {"prefixes": prefixes, "row": row}

    return step


@functools.partial(
    jax.jit,
    static_argnames=(
        "beam_size",
        "alpha",
        "max_length",
        "special",
        "dtype",
        "min_length",
        "num_certain",
    ),
)
def search_tables(
    tables,
    limits,
    beam_size,
    alpha,
    max_length,
    special=SPECIAL,
    dtype=jnp.float32,
    min_length=0,
    num_certain=None,
    forced=None,
):
    shape = (tables.shape[0], 1)
    cache = {
        "prefixes": jnp.zeros((*shape, max_length), jnp.int32),
        "row": jnp.zeros(shape, jnp.int32),
    }
    return beam_search(
        table_step_fn(tables, dtype),
        cache,
        limits,
        beam_size=beam_size,
        alpha=alpha,
        max_length=max_length,
        special=special,
        min_length=min_length,
        num_certain=num_certain,
        forced=forced,
    )


def search(tables, limits, beam_size, alpha, max_length=None, **options):
    result = search_tables(
        np.asarray(tables),
        np.asarray(limits, np.int32),
        beam_size,
        alpha,
        max_length or max(limits),
        **options,
    )
    check_well_formed(result, limits)
    return result


def search_toy(name, beam_size, alpha=None, vocab_size=5):
    toy = TOYS[name]
    alpha = toy["alpha"] if alpha is None else alpha
    return search([toy_table(toy, vocab_size)], [toy["max_len_with_eos"]], beam_size, alpha)


def as_list(result, sentence=0):
    """[(score, tokens without padding, finished)] of the hypotheses that exist."""
    scores, tokens, finished = (
        np.asarray(leaf[sentence]) for leaf in (result.scores, result.tokens, result.finished)
    )
    return [
        (float(score), [int(token) for token in row if token != SPECIAL.pad], bool(end))
        for score, row, end in zip(scores, tokens, finished, strict=True)
        if score > -np.inf
    ]


def token_lists(result, sentence=0):
    return [tokens for _, tokens, _ in as_list(result, sentence)]


def check_well_formed(result, limits):
    """What holds of every result, E19 (no duplicates) included."""
    assert not any(np.isnan(np.asarray(leaf)).any() for leaf in result)
    tokens, scores, log_probs, finished, _ = map(np.asarray, result)
    assert (tokens.dtype, scores.dtype, log_probs.dtype) == (np.int32, np.float32, np.float32)
    for sentence, limit in enumerate(limits):
        exists = scores[sentence] > -np.inf
        assert (tokens[sentence][~exists] == SPECIAL.pad).all()
        assert not finished[sentence][~exists].any()
        assert (log_probs[sentence][~exists] == -np.inf).all()
        assert (np.diff(finished[sentence][exists].astype(int)) <= 0).all()
        for end in (True, False):
            group = scores[sentence][exists & (finished[sentence] == end)]
            assert (group[:-1] >= group[1:]).all()
        distinct = {tuple(row) for row in tokens[sentence][exists]}
        assert len(distinct) == exists.sum()
        for row, end in zip(tokens[sentence][exists], finished[sentence][exists], strict=True):
            length = int((row != SPECIAL.pad).sum())
            assert length <= limit and (end or length == limit)
            assert (row[length:] == SPECIAL.pad).all()
            assert not np.isin(row[:length], [SPECIAL.pad, SPECIAL.bos]).any()
            assert list(np.flatnonzero(row == SPECIAL.eos)) == ([length - 1] if end else [])


# --- Plain Python to compare with ---------------------------------------------------------------


def enumerate_table(table, limit, alpha):
    """All hypotheses (score, tokens, finished), best first, those that end before the others."""
    vocab_size = table.shape[1]
    regular = [token for token in range(vocab_size) if token not in SPECIAL]
    found = []
    for length in range(limit + 1):
        for prefix in itertools.product(regular, repeat=length):
            log_prob = sum(
                log(table[prefix_row(prefix[:index], vocab_size)][token])
                for index, token in enumerate(prefix)
            )
            if length == limit:
                found.append((log_prob / penalty(length, alpha), list(prefix), False))
            else:
                log_prob += log(table[prefix_row(prefix, vocab_size)][SPECIAL.eos])
                score = log_prob / penalty(length + 1, alpha)
                found.append((score, [*prefix, SPECIAL.eos], True))
    found = [entry for entry in found if entry[0] > -math.inf]
    return sorted(found, key=lambda entry: (not entry[2], -entry[0]))


def greedy_table(table, limit):
    """The likeliest token at every step; of equals, the lower id."""
    tokens = []
    while len(tokens) < limit and tokens[-1:] != [SPECIAL.eos]:
        row = np.array(table[prefix_row(tokens, table.shape[1])])
        row[[SPECIAL.pad, SPECIAL.bos]] = -1
        tokens.append(int(row.argmax()))
    return tokens


def log(probability):
    return math.log(probability) if probability > 0 else -math.inf


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def assert_same_ranking(found, expected):
    """Equal lists, except that hypotheses of equal score may swap places, and the last fall out."""
    found_scores = [score for score, *_ in found]
    expected_scores = [score for score, *_ in expected[: len(found)]]
    np.testing.assert_allclose(found_scores, expected_scores, rtol=1e-5, atol=1e-5)
    by_tokens = {tuple(tokens): (score, finished) for score, tokens, finished in expected}
    for score, tokens, finished in found:
        expected_score, expected_finished = by_tokens[tuple(tokens)]
        assert finished == expected_finished
        assert score == pytest.approx(expected_score, rel=1e-5, abs=1e-5)


# --- The toy files ------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", TOYS)
def test_toys_equal_exhaustive_search_for_every_sign_of_the_penalty_e03(name, alpha):
    toy = TOYS[name]
    expected = enumerate_table(toy_table(toy), toy["max_len_with_eos"], alpha)
    # With this many beams nothing is pruned: at most 2^6 prefixes live.
    found = as_list(search_toy(name, 64, alpha))
    assert len(found) == min(64, len(expected))
    assert_same_ranking(found, expected)


@pytest.mark.parametrize("name", [name for name in TOYS if TOYS[name]["best"]])
def test_toys_equal_the_optimum_and_the_five_best_of_their_file(name):
    toy = TOYS[name]
    found = as_list(search_toy(name, 32))
    assert found[0][1] == toy["best"]
    assert found[0][0] == pytest.approx(toy["best_score_eos_counted"], abs=1e-5)
    expected = [(score, tokens, True) for score, tokens in toy["top5"]]
    ended = [entry for entry in found if entry[2]]
    np.testing.assert_allclose(
        [score for score, *_ in ended[: len(expected)]],
        [score for score, *_ in expected],
        atol=1e-5,
    )
    # Equal scores at the end of the list make a set of more than five.
    ties = [tokens for score, tokens, _ in ended if score >= expected[-1][0] - 1e-5]
    assert all(tokens in ties for _, tokens, _ in expected)


@pytest.mark.parametrize("beam_size", [2, 4, 8])
def test_search_waits_for_a_late_winner_e01(beam_size):
    assert token_lists(search_toy("late_winner", beam_size))[0] == [4, 4, 4, 2]


@pytest.mark.parametrize("name", ["late_winner", "greedy_trap"])
def test_n_best_is_a_prefix_of_the_list_of_the_beam_e04(name):
    # There is no n to ask for: the caller takes the first n, so this can only break by a wrong stop
    # at the lower places. A wider beam, exact here, gives the same head of the list.
    head = as_list(search_toy(name, 8))[:5]
    assert_same_ranking(head, as_list(search_toy(name, 32)))


@pytest.mark.parametrize("beam_size", [2, 4, 8])
def test_the_end_mark_first_wins_only_where_it_scores_best_e06(beam_size):
    assert token_lists(search_toy("eos_first", beam_size))[0] == [3, 2]
    assert token_lists(search_toy("eos_first_alpha0", beam_size))[0] == [2]


@pytest.mark.parametrize("beam_size", [1, 8])
def test_a_hypothesis_may_be_asked_to_have_tokens_before_its_end_mark_e06(beam_size):
    toy, limit = toy_table(TOYS["eos_first_alpha0"]), TOYS["eos_first_alpha0"]["max_len_with_eos"]
    for min_length in range(limit + 2):
        found = as_list(search([toy], [limit], beam_size, 0.0, min_length=min_length))
        assert found
        assert all(len(tokens) > min_length or not ended for _, tokens, ended in found)
        if beam_size == 8:
            everything = enumerate_table(toy, limit, 0.0)
            allowed = [entry for entry in everything if len(entry[1]) > min_length or not entry[2]]
            assert_same_ranking(found[:1], allowed[:1])
    assert token_lists(search([toy], [limit], beam_size, 0.0, min_length=1))[0] == [3, 2]


@pytest.mark.parametrize("vocab_size", [4, 5])
@pytest.mark.parametrize("beam_size", [1, 4, 8, 50])
def test_the_beam_may_exceed_the_vocabulary_e07(beam_size, vocab_size):
    result = search_toy("tiny_vocab", beam_size, vocab_size=vocab_size)
    assert result.tokens.shape == (1, beam_size, 4)
    ended = [tokens for _, tokens, finished in as_list(result) if finished]
    assert ended[0] == [3, 2]
    assert len(ended) == min(beam_size, 4)


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
def test_a_hypothesis_that_never_ends_is_returned_and_flagged_e17(beam_size):
    found = as_list(search_toy("never_ends", beam_size))
    assert len(found) == beam_size
    score, tokens, finished = found[0]
    assert (tokens, finished) == ([3] * 6, False)
    assert score == pytest.approx(6 * math.log(0.7) / penalty(6, 0.6), rel=1e-5)
    assert all(math.isfinite(score) and not finished for score, _, finished in found)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("end_probability", [1e-6, 0.9])
def test_a_limit_that_cuts_off_a_better_hypothesis_is_told_e17(beam_size, end_probability):
    """One that ends against all odds is still found with a wide beam, but is no proper ending."""
    row = [0, 0, end_probability, 0.7 * (1 - end_probability), 0.3 * (1 - end_probability)]
    table = [np.tile(row, (NUM_ROWS, 1))]
    result = search(table, [MAX_LENGTH], beam_size, 0.6)
    assert bool(result.cut[0]) == (end_probability < 0.5)
    if beam_size > 1:
        assert result.finished[0, 0]


@pytest.mark.parametrize("name", sorted(TOYS))
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_winner_is_the_same_when_it_alone_must_be_certain(name, alpha):
    toy = TOYS[name]
    tables, limits = [toy_table(toy)], [toy["max_len_with_eos"]]
    all_certain = as_list(search(tables, limits, 8, alpha))[0]
    one_certain = as_list(search(tables, limits, 8, alpha, num_certain=1))[0]
    assert one_certain == all_certain


def test_n_best_lists_hold_no_duplicates_e19():
    found = as_list(search_toy("greedy_trap", 8))[:5]
    assert len({tuple(tokens) for _, tokens, _ in found}) == 5
    assert sorted(tokens for _, tokens, _ in found[:4]) == sorted(
        tokens for _, tokens in TOYS["greedy_trap"]["top5"][:4]
    )
    assert found[4][0] == pytest.approx(TOYS["greedy_trap"]["top5"][4][0], abs=1e-5)


# --- Random tables ------------------------------------------------------------------------------


@st.composite
def tables(draw):
    """A table with some impossible tokens, among them at times the end mark."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.5, 2.0, 6.0]))
    table = np.exp(sharpness * random.standard_normal((NUM_ROWS, VOCAB_SIZE)))
    table *= random.random(table.shape) >= draw(st.sampled_from([0.0, 0.3]))
    table[:, 0] += 1e-3  # a row needs some mass; padding has a share, and is never chosen
    return table / table.sum(axis=1, keepdims=True)


@settings(max_examples=25, deadline=None)
@given(tables(), st.integers(1, MAX_LENGTH), st.sampled_from(ALPHAS))
def test_a_wide_beam_equals_exhaustive_search(table, limit, alpha):
    found = as_list(search([table], [limit], 31, alpha, MAX_LENGTH))  # 15 end, 16 are cut
    expected = enumerate_table(table, limit, alpha)
    assert len(found) == len(expected)
    assert_same_ranking(found, expected)


@settings(max_examples=25, deadline=None)
@given(
    tables(),
    tables(),
    st.tuples(st.integers(0, MAX_LENGTH), st.integers(0, MAX_LENGTH)),
    st.sampled_from([1, 2, 3]),
)
def test_a_batch_equals_its_sentences_alone(first, second, limits, beam_size):
    both = search([first, second], limits, beam_size, 0.6, MAX_LENGTH)
    for sentence, table in enumerate((first, second)):
        # Bit for bit beside a filler row; up to rounding in a batch of another size, as the
        # compiler may order sums differently there.
        own_limit = [limit if index == sentence else 0 for index, limit in enumerate(limits)]
        beside_filler = search([first, second], own_limit, beam_size, 0.6, MAX_LENGTH)
        alone = search([table], [limits[sentence]], beam_size, 0.6, MAX_LENGTH)
        for together, filler, single in zip(both, beside_filler, alone, strict=True):
            np.testing.assert_array_equal(together[sentence], filler[sentence])
            np.testing.assert_allclose(together[sentence], single[0], rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(tables(), st.integers(1, MAX_LENGTH), st.sampled_from([0.0, 0.6]))
def test_a_beam_of_one_is_greedy_search_e13(table, limit, alpha):
    expected = greedy_table(table, limit)
    rows = [table[prefix_row(expected[:i], VOCAB_SIZE)] for i in range(len(expected))]
    assume(all(row[token] > 0 for row, token in zip(rows, expected, strict=True)))
    assert token_lists(search([table], [limit], 1, alpha, MAX_LENGTH)) == [expected]


def beam_table(table, limit, alpha, beam_size):
    """Beam search that keeps all hypotheses that end, and runs to the limit whatever it has."""
    vocab_size = table.shape[1]
    regular = [token for token in range(vocab_size) if token not in SPECIAL]
    live, ended = [(0.0, [])], []
    for length in range(1, limit + 1):
        rows = [table[prefix_row(prefix, vocab_size)] for _, prefix in live]
        for (log_prob, prefix), row in zip(live, rows, strict=True):
            score = (log_prob + log(row[SPECIAL.eos])) / penalty(length, alpha)
            ended.append((score, [*prefix, SPECIAL.eos], True))
        grown = [
            (log_prob + log(row[token]), [*prefix, token])
            for (log_prob, prefix), row in zip(live, rows, strict=True)
            for token in regular
        ]
        live = sorted(grown, key=lambda entry: -entry[0])[:beam_size]
        live = [entry for entry in live if entry[0] > -math.inf]
    cut = [(log_prob / penalty(limit, alpha), prefix, False) for log_prob, prefix in live]
    ended = [entry for entry in sorted(ended, key=lambda entry: -entry[0]) if entry[0] > -math.inf]
    return [*ended, *cut][:beam_size]


@settings(max_examples=30, deadline=None)
@given(
    tables(),
    st.integers(1, MAX_LENGTH),
    st.sampled_from(ALPHAS),
    st.sampled_from([2, 3]),
    st.booleans(),
)
def test_the_search_never_stops_before_the_winner_is_certain(
    table, limit, alpha, beam_size, winner_alone
):
    """E01, E03: the beam is narrow, so it prunes; that it stops early must change nothing."""
    expected = beam_table(table, limit, alpha, beam_size)
    num_certain = 1 if winner_alone else None
    found = as_list(search([table], [limit], beam_size, alpha, MAX_LENGTH, num_certain=num_certain))
    if winner_alone:
        found, expected = found[:1], expected[:1]
    assert_same_ranking(found, expected)


# --- Corner cases -------------------------------------------------------------------------------


def uniform_table(limit, vocab_size=5):
    rows = sum(vocab_size**length for length in range(limit))
    return np.full((rows, vocab_size), 1 / vocab_size)


def test_equal_scores_rank_the_same_every_time():
    result = search([uniform_table(3)], [3], 4, 0.0)
    assert token_lists(result) == [[2], [3, 2], [4, 2], [3, 3, 2]]
    again = search([uniform_table(3)] * 2, [3, 3], 4, 0.0)
    assert token_lists(again, 1) == token_lists(result)


def test_a_limit_of_zero_gives_an_empty_unfinished_hypothesis():
    result = search([uniform_table(2)] * 2, [0, 2], 3, 0.6)
    assert as_list(result, 0) == [(0.0, [], False)]
    assert not search([uniform_table(2)], [0], 3, 0.6, max_length=2).tokens.any()


def test_a_sentence_stops_at_its_own_limit():
    result = search([toy_table(TOYS["never_ends"])] * 2, [2, 6], 2, 0.6)
    assert token_lists(result, 0) == [[3, 3], [3, 4]]
    assert token_lists(result, 1)[0] == [3] * 6


def test_of_equal_scores_the_hypothesis_that_ended_earlier_ranks_first():
    entries = {"": {"2": 0.5, "3": 0.5}, "*": {"2": 1.0}}
    table = toy_table({"table": entries, "max_len_with_eos": 3})
    found = as_list(search([table], [3], 2, 0.0))
    assert found[0][0] == found[1][0]
    assert [tokens for _, tokens, _ in found] == [[2], [3, 2]]


def test_the_bound_of_a_negative_penalty_is_that_of_the_shortest_hypothesis_e03():
    # After two steps both finished places are taken; [3, 3] would be given up at the penalty of the
    # limit, yet ends next and wins. Padding, never chosen, keeps the rest of the mass.
    entries = {"": {"0": 0.71, "2": 0.04, "3": 0.25}, "3": {"2": 0.2, "3": 0.8}, "*": {"2": 1.0}}
    table = toy_table({"table": entries, "max_len_with_eos": 6})
    assert token_lists(search([table], [6], 2, -2.0)) == [[3, 3, 2], [2]]


@pytest.mark.parametrize(
    ("beam_size", "alpha", "num_steps"), [(1, 0.6, 1), (2, 0.0, 2), (2, 0.6, 6)]
)
def test_the_search_ends_when_no_live_hypothesis_can_win(beam_size, alpha, num_steps):
    # Every token but the end mark costs 9 nats, and the limit is a hundred steps away. Second place
    # goes to [3, 2], with -9 / penalty(2) = -8.2 at alpha 0.6; a live prefix of n tokens is bounded
    # by -9 n / penalty(100) = -1.6 n, which is worse from n = 6 on.
    steps = []

    def step_fn(tokens, position, cache):
        logits = jnp.broadcast_to(jnp.array([0, 0, 9.0, 0]), (*tokens.shape, 4))
        jax.debug.callback(lambda position: steps.append(int(position)), position)
        return logits, cache

    result = beam_search(
        step_fn,
        {},
        jnp.array([100]),
        beam_size=beam_size,
        alpha=alpha,
        max_length=100,
        special=SPECIAL,
    )
    jax.block_until_ready(result)
    jax.effects_barrier()
    assert steps == list(range(num_steps))
    assert token_lists(result)[0] == [2]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_logits_of_low_precision_are_normalised_in_float32(dtype):
    table = toy_table(TOYS["late_winner"])
    result = search([table], [6], 4, 1.0, dtype=dtype)
    tokens = token_lists(result)[0]
    assert tokens == [4, 4, 4, 2]
    rounded = np.asarray(jnp.log(jnp.asarray(table, jnp.float32)).astype(dtype), np.float64)
    rows = [rounded[prefix_row(tokens[:index], 5)] for index in range(len(tokens))]
    expected = sum(
        row[token] - np.log(np.exp(row).sum()) for row, token in zip(rows, tokens, strict=True)
    )
    np.testing.assert_allclose(result.log_probs[0, 0], expected, rtol=1e-6)


def test_special_ids_may_stand_anywhere():
    special = SpecialIds(pad=0, bos=4, eos=3)
    table = np.tile([0.1, 0.3, 0.1, 0.1, 0.4], (31, 1))  # likeliest: the start mark
    result = search_tables(table[None], np.array([3]), 4, 0.0, 3, special)
    assert not np.isin(np.asarray(result.tokens), special.bos).any()
    assert np.asarray(result.tokens)[0, :2].tolist() == [[3, 0, 0], [1, 3, 0]]


def test_the_length_penalty_is_that_of_the_paper():
    assert float(length_penalty(1, 0.6)) == 1.0
    np.testing.assert_allclose(length_penalty(jnp.array([7, 19]), 1.0), [2.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(length_penalty(jnp.array([7, 19]), 0.0), [1.0, 1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0"),
        ({"max_length": 0}, "max_length is 0"),
        ({"cache": {"keys": jnp.zeros((3, 2))}}, r"\['keys'\] has shape \(3, 2\)"),
        ({"special": SpecialIds(0, 1, 9)}, "eos=9"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    arguments = {"cache": {}, "beam_size": 2, "alpha": 0.6, "max_length": 2, "special": SPECIAL}
    with pytest.raises(ValueError, match=message):
        beam_search(
            lambda tokens, position, cache: (jnp.zeros((*tokens.shape, 5)), cache),
            limits=jnp.array([2]),
            **(arguments | change),
        )


def test_the_result_is_a_tuple_of_named_arrays():
    assert isinstance(search([uniform_table(2)], [2], 2, 0.6), SearchResult)


# --- Forced prefixes and ensembles ---------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    tables(),
    st.integers(1, MAX_LENGTH),
    st.sampled_from([[], [3], [4, 3], [3, 3, 4]]),
    st.sampled_from([0.0, 0.6]),
)
def test_a_forced_prefix_leaves_the_hypotheses_that_begin_with_it(table, limit, prefix, alpha):
    """Against all hypotheses there are; the prefix counts in their scores."""
    forced = np.zeros((1, 3), np.int32)
    forced[0, : len(prefix)] = prefix
    found = as_list(search([table], [limit], 31, alpha, MAX_LENGTH, forced=forced))
    expected = [
        entry
        for entry in enumerate_table(table, limit, alpha)
        if entry[1][: len(prefix)] == prefix[: len(entry[1])]
    ]
    assert len(found) == len(expected)
    assert_same_ranking(found, expected)


@functools.partial(jax.jit, static_argnames="beam_size")
def search_ensemble(first, second, beam_size):
    shape = (1, 1)
    cache = {
        "prefixes": jnp.zeros((*shape, MAX_LENGTH), jnp.int32),
        "row": jnp.zeros(shape, jnp.int32),
    }
    return beam_search(
        average([table_step_fn(first[None]), table_step_fn(second[None])]),
        (cache, cache),
        jnp.array([MAX_LENGTH]),
        beam_size=beam_size,
        alpha=0.6,
        max_length=MAX_LENGTH,
        special=SPECIAL,
    )


@settings(max_examples=15, deadline=None)
@given(tables(), tables(), st.sampled_from([1, 3]))
def test_an_ensemble_searches_the_mean_of_the_probabilities(first, second, beam_size):
    # A constant in all logits of a token changes no probability.
    together = search_ensemble(first, np.exp(1.5) * second, beam_size)
    mean = search([(first + second) / 2], [MAX_LENGTH], beam_size, 0.6)
    assert_same_ranking(as_list(together), as_list(mean))


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("length", [30, 2_048, 2_049, 5_000])
@pytest.mark.parametrize("without", [(), (0, 3, 64, 1_999)])
def test_the_greatest_are_those_of_a_stable_sort(k, length, without):
    """With few distinct values, so that equals are many, and -inf beside them."""
    x = np.random.default_rng(length).integers(0, 40, (3, 2, length)).astype(np.float32)
    x[x < 30] = -np.inf
    x[0, 0] = -np.inf
    x[0, 1, 3:] = -np.inf
    without = [place for place in without if place < length]
    x[..., without] = 99
    values, places = jax.jit(lambda x: top_k(in_groups(x, k), k, without))(x)
    x[..., without] = -np.inf
    expected = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))
