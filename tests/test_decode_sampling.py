"""Sampling from tables of next-token probabilities, whose distributions are known exactly."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_decode import SPECIAL, VOCAB_SIZE, greedy_table, prefix_row, table_step_fn, token_lists

from transformer_jax.config import SamplingConfig
from transformer_jax.decode_sampling import restrict, sample
from transformer_jax.errors import UserError

LENGTH = 3
NUM_ROWS = sum(VOCAB_SIZE**length for length in range(LENGTH))


def random_table(seed):
    table = np.exp(np.random.default_rng(seed).standard_normal((NUM_ROWS, VOCAB_SIZE)))
    return table / table.sum(axis=1, keepdims=True)


def draw(tables, count, seeds=None, forced=None, min_length=0, **config):
    return draw_from_tables(
        np.asarray(tables),
        np.array(seeds or range(len(tables))),
        None if forced is None else np.asarray(forced, np.int32),
        count=count,
        min_length=min_length,
        config=SamplingConfig(**({"temperature": 1.0} | config)),
    )


@functools.partial(jax.jit, static_argnames=("count", "min_length", "config"))
def draw_from_tables(tables, seeds, forced, count, min_length, config):
    shape = (len(tables), count)
    cache = {
        "prefixes": jnp.zeros((*shape, LENGTH), jnp.int32),
        "row": jnp.zeros(shape, jnp.int32),
    }
    return sample(
        table_step_fn(tables),
        cache,
        jnp.full(len(tables), LENGTH),
        jax.vmap(jax.random.key)(seeds),
        config,
        num_samples=count,
        alpha=0.6,
        max_length=LENGTH,
        special=SPECIAL,
        min_length=min_length,
        forced=forced,
    )


def distribution(table, temperature, keep):
    """The probability of every sequence; `keep` gives the tokens that may be drawn, from p."""
    found = {}
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product((2, 3, 4), repeat=length):
            if 2 in tokens[:-1] or (tokens[-1] != 2 and length < LENGTH):
                continue
            probability = 1.0
            for index, token in enumerate(tokens):
                row = table[prefix_row(tokens[:index], VOCAB_SIZE)][2:] ** (1 / temperature)
                row = row / row.sum()
                row = row * keep(row)
                probability *= row[token - 2] / row.sum()
            found[tokens] = probability
    assert sum(found.values()) == pytest.approx(1)
    return found


def two_best(row):
    return row >= np.sort(row)[-2]


def most_mass(row):
    kept = np.zeros(3)
    for token in np.argsort(-row):
        if (row * kept).sum() < 0.7:
            kept[token] = 1
    return kept


@pytest.mark.parametrize(
    ("options", "keep"),
    [
        ({}, np.ones_like),
        ({"temperature": 0.5}, np.ones_like),
        ({"top_k": 2}, two_best),
        ({"top_p": 0.7, "temperature": 1.5}, most_mass),
    ],
)
def test_sequences_come_as_often_as_they_are_probable(options, keep):
    count, table = 4_000, random_table(1)
    expected = distribution(table, options.get("temperature", 1.0), keep)
    found = token_lists(draw([table], count, **options))
    assert len(found) == count
    drawn = {tokens: found.count(list(tokens)) for tokens in expected}
    assert sum(drawn.values()) == count  # nothing else is drawn: no control id, nothing too long
    for tokens, probability in expected.items():
        deviation = math.sqrt(count * probability * (1 - probability))
        assert abs(drawn[tokens] - count * probability) <= 4.5 * deviation + 1e-6


def test_a_sample_does_not_depend_on_its_neighbours_nor_on_how_many_are_drawn():
    tables = [random_table(seed) for seed in range(3)]
    together = draw(tables, 5, seeds=[7, 8, 9])
    for sentence, table in enumerate(tables):
        alone = draw([table], 2, seeds=[7 + sentence])
        assert token_lists(alone) == token_lists(together, sentence)[:2]
    assert token_lists(draw(tables[:1], 5, seeds=[8])) != token_lists(together)


def test_scores_are_those_of_the_model_whatever_is_done_to_its_distribution():
    table = random_table(2)
    result = draw([table], 50, temperature=2.0, top_k=2)
    for place, tokens in enumerate(token_lists(result)):
        rows = [table[prefix_row(tokens[:index], VOCAB_SIZE)] for index in range(len(tokens))]
        log_prob = sum(math.log(row[token]) for row, token in zip(rows, tokens, strict=True))
        assert result.log_probs[0, place] == pytest.approx(log_prob, abs=1e-5)
        penalty = ((5 + len(tokens)) / 6) ** 0.6
        assert result.scores[0, place] == pytest.approx(log_prob / penalty, abs=1e-5)
        assert result.finished[0, place] == (tokens[-1] == SPECIAL.eos)
    assert bool(result.cut[0]) != bool(result.finished[0, 0])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
@example(18)  # two tokens whose probabilities differ by 0.006 %
def test_the_likeliest_token_alone_is_greedy_search(seed):
    table = random_table(seed)
    expected = [greedy_table(table, LENGTH)] * 3
    assert token_lists(draw([table], 3, top_k=1)) == expected
    assert token_lists(draw([table], 3, top_p=1e-6)) == expected
    # At a temperature of 0.001 a token that is 0.1 % less likely is drawn once in four times.
    first = table[:, 2:].argmax(axis=1) + 2
    table[np.arange(NUM_ROWS), first] *= 1.1
    table /= table.sum(axis=1, keepdims=True)
    assert token_lists(draw([table], 3, temperature=1e-3)) == expected


def test_prefixes_and_lengths_are_kept_to():
    forced = np.array([[4, 0], [3, 4]])
    result = draw([random_table(3)] * 2, 20, forced=forced)
    assert {tokens[0] for tokens in token_lists(result, 0)} == {4}
    assert {tuple(tokens[:2]) for tokens in token_lists(result, 1)} == {(3, 4)}
    ended = token_lists(draw([random_table(3)], 50, min_length=2))
    assert all(2 not in tokens[:2] for tokens in ended)


def test_equal_tokens_are_kept_together():
    logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.1, 0.1]))
    kept = jnp.isfinite(restrict(logits, 2, 1.0))
    assert kept.tolist() == [True, True, True, False, False]
    assert jnp.isfinite(restrict(logits, 99, 0.39)).tolist() == [True] + [False] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": 1e-9},
        {"top_k": 3},
        {"top_p": 0.5},
        {"seed": 3},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_k": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match=r"sampling\."):
        SamplingConfig(**options)
