"""The order of the data, checked against the lengths alone."""

import dataclasses
import itertools
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.config import DataConfig
from transformer_jax.data import batch_plan
from transformer_jax.data.batch_plan import (
    BatchShape,
    EpochPlan,
    draw_pairs,
    largest_shape,
    num_rows,
    padded_rows,
    plan_epoch,
    row_shapes,
)

BATCHINGS = ("packed", "bucketed")


def data_config(batching: str, max_length: int, tokens_per_update: int) -> DataConfig:
    return DataConfig(batching=batching, max_length=max_length, tokens_per_update=tokens_per_update)


def natural_lengths(pairs: int, max_length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of real text: log-normal, targets a little longer than sources."""
    random = np.random.default_rng(seed)
    sources = random.lognormal(np.log(24), 0.55, pairs)
    targets = sources * random.lognormal(0, 0.2, pairs)
    sources, targets = (np.clip(np.rint(x), 2, max_length) for x in (sources, targets))
    return sources.astype(np.int32), targets.astype(np.int32)


def rows_of(plan: EpochPlan) -> list[list[int]]:
    """The pairs of every row, in the order of the rows."""
    return [plan.pairs[a:b].tolist() for a, b in itertools.pairwise(plan.row_starts.tolist())]


def batches_of(plan: EpochPlan) -> list[list[list[int]]]:
    """The rows of every batch, filler rows left out."""
    rows = rows_of(plan)
    return [rows[a:b] for a, b in itertools.pairwise(plan.batch_starts.tolist())]


def same(one: EpochPlan, other: EpochPlan) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def filled(plan: EpochPlan, lengths: np.ndarray) -> list[int]:
    """The tokens in every row of one side."""
    return [int(lengths[row].sum()) for row in rows_of(plan)]


def check(plan: EpochPlan, sources, targets, config: DataConfig, row_multiple: int) -> None:
    """All that a plan promises, worked out from the lengths of the pairs."""
    rows, batches = rows_of(plan), batches_of(plan)
    assert Counter(itertools.chain(*rows)) == Counter(range(len(sources)))
    assert list(itertools.chain(*batches)) == rows, "every row is in one batch"
    assert plan.num_batches == len(batches) == len(plan.shapes)
    assert all(rows) and all(batches)
    shapes = row_shapes(sources, targets, config).tolist()
    for (all_rows, *lengths), batch in zip(plan.shapes.tolist(), batches, strict=True):
        longer = max(lengths)
        assert lengths in shapes and longer <= config.max_length
        assert len(batch) <= all_rows
        assert all_rows % row_multiple == 0
        assert len(batch) * longer <= config.tokens_per_update
        if config.batching == "packed":
            longer = max(shapes[-1])
        real_rows = config.tokens_per_update // longer
        assert real_rows <= all_rows < real_rows + row_multiple
        for row in batch:
            assert sum(int(sources[pair]) for pair in row) <= lengths[0]
            assert sum(int(targets[pair]) for pair in row) <= lengths[1]
    if config.batching == "packed":
        check_packed(plan, sources, targets, config)
    else:
        check_bucketed(plan, sources, targets, config)


def check_packed(plan: EpochPlan, sources, targets, config: DataConfig) -> None:
    """A short batch at the end alone; the larger shape only where a sentence needs it."""
    sizes = [len(batch) for batch in batches_of(plan)]
    assert set(sizes[:-1]) <= {config.tokens_per_update // config.max_length}
    usual = row_shapes(sources, targets, config)[0]
    assert config.max_length in usual
    for (_, *lengths), batch in zip(plan.shapes.tolist(), batches_of(plan), strict=True):
        pairs = list(itertools.chain(*batch))
        long = (sources[pairs] > usual[0]).any() or (targets[pairs] > usual[1]).any()
        assert lengths == ([config.max_length] * 2 if long else usual.tolist())


def check_bucketed(plan: EpochPlan, sources, targets, config: DataConfig) -> None:
    """One pair a row, in the smallest shape that it fits, and one short batch a shape."""
    shapes = row_shapes(sources, targets, config).tolist()
    assert len(shapes) <= config.max_buckets
    short = Counter()
    for (_, *lengths), batch in zip(plan.shapes.tolist(), batches_of(plan), strict=True):
        for row in batch:
            assert len(row) == 1
            source, target = sources[row[0]], targets[row[0]]
            assert sum(lengths) == min(s + t for s, t in shapes if source <= s and target <= t)
        short[tuple(lengths)] += len(batch) < config.tokens_per_update // max(lengths)
    assert max(short.values()) <= 1


@st.composite
def problems(draw):
    """Lengths of both sides, the arguments of `data_config`, and a row multiple."""
    max_length = draw(st.integers(2, 70))
    sides = st.tuples(st.integers(1, max_length), st.integers(1, max_length))
    sources, targets = np.array(draw(st.lists(sides, min_size=1, max_size=80)), np.int32).T
    tokens = draw(st.integers(max_length, 12 * max_length))
    config = draw(st.sampled_from(BATCHINGS)), max_length, tokens
    return sources, targets, config, draw(st.integers(1, 8))


@given(
    problems(),
    st.integers(0, 2**32 - 1),
    st.integers(0, 1000),
    st.sampled_from([1, 3, 128]),
    st.sampled_from([1, 5, 1000]),
)
def test_every_pair_once_in_a_row_that_holds_it(problem, seed, epoch, open_rows, group) -> None:
    sources, targets, settings, row_multiple = problem
    config = data_config(*settings)
    with mock.patch.multiple(batch_plan, OPEN_ROWS=open_rows, GROUP_PAIRS=group):
        plan = plan_epoch(sources, targets, config, seed, epoch, row_multiple)
    check(plan, sources, targets, config, row_multiple)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_corpus_of_natural_lengths(batching: str) -> None:
    sources, targets = natural_lengths(5_000, 100)
    config = data_config(batching, 100, 2_500)
    check(plan_epoch(sources, targets, config, 0, 3, 4), sources, targets, config, 4)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_plan_is_a_pure_function_of_lengths_seed_and_epoch(batching: str) -> None:
    sources, targets = natural_lengths(1_000, 64)
    before = sources.copy(), targets.copy()
    config = dataclasses.replace(data_config(batching, 64, 640), max_buckets=4)

    def plan(seed: int, epoch: int) -> EpochPlan:
        return plan_epoch(sources, targets, config, seed, epoch, 2)

    first = plan(5, 7)
    np.random.seed(0)
    plan(0, 0)
    assert same(plan(5, 7), first)
    assert np.array_equal(before, (sources, targets)), "the lengths are left as they were"
    others = [plan(5, 8), plan(6, 7), plan(7, 5), plan(0, 0)]
    assert not any(same(one, other) for one, other in itertools.combinations([first, *others], 2))
    # Not only do rows and batches come in another order: other pairs meet in them.
    if batching == "packed":
        groups = [
            {frozenset(row) for row in rows_of(one) if len(row) > 1} for one in (first, *others)
        ]
    else:
        groups = [
            {frozenset(itertools.chain(*batch)) for batch in batches_of(one)}
            for one in (first, *others)
        ]
    for one, other in itertools.combinations(groups, 2):
        assert len(one & other) <= 0.2 * len(one)


def test_buckets_come_in_mixed_order() -> None:
    sources, targets = natural_lengths(2_000, 64)
    lengths = plan_epoch(sources, targets, data_config("bucketed", 64, 640), 0, 0, 1).shapes[:, 2]
    changes = np.count_nonzero(np.diff(lengths))
    assert changes > 0.5 * len(lengths), "batches of like length follow one another"


def test_packed_rows_come_in_mixed_order() -> None:
    """Packing closes the fullest rows first and leaves the emptiest for last; batches do not."""
    sources, targets = natural_lengths(4_000, 64)
    plan = plan_epoch(sources, targets, data_config("packed", 64, 640), 0, 0, 1)
    first, second = np.array_split(np.array(filled(plan, targets)), 2)
    assert abs(first.mean() - second.mean()) < 1


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_number_of_devices_changes_nothing_but_filler_rows(batching: str) -> None:
    """A run may go on with another mesh: the cursor must mean the same pairs."""
    sources, targets = natural_lengths(500, 32)
    config = data_config(batching, 32, 32 * 10)
    plans = [plan_epoch(sources, targets, config, 1, 2, multiple) for multiple in (1, 2, 3, 16, 64)]
    for plan in plans:
        assert same(plan._replace(shapes=plans[0].shapes), plans[0])


def test_rows_of_a_batch() -> None:
    config = data_config("packed", 100, 1_050)
    assert num_rows(config, 100) == 10
    assert num_rows(config, 8) == 131
    assert [padded_rows(10, multiple) for multiple in (1, 4, 10, 16)] == [10, 12, 10, 16]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_side_with_fewer_tokens_gets_shorter_rows(swapped: bool) -> None:
    long, short = np.full(1_000, 20, np.int32), np.full(1_000, 15, np.int32)
    config = data_config("packed", 100, 1_000)

    def shapes(long: np.ndarray, short: np.ndarray) -> list[list[int]]:
        sides = (short, long) if swapped else (long, short)
        found = row_shapes(*sides, config).tolist()
        return [shape[::-1] for shape in found] if swapped else found

    assert shapes(long, short) == [[100, 80]], "three quarters of 100, in steps of 8"
    short[0] = 81
    assert shapes(long, short) == [[100, 80], [100, 100]]
    assert shapes(long, long) == [[100, 100]]


def test_buckets_are_those_that_save_most() -> None:
    """Of two lengths, one shape each; more shapes would save nothing."""
    sources = np.repeat(np.array([10, 40], np.int32), [900, 100])
    targets = np.repeat(np.array([15, 30], np.int32), [900, 100])
    config = dataclasses.replace(data_config("bucketed", 64, 640), max_buckets=3)
    assert row_shapes(sources, targets, config).tolist() == [[12, 16], [40, 32], [64, 64]]
    config = dataclasses.replace(config, max_buckets=2)
    assert row_shapes(sources, targets, config).tolist() == [[12, 16], [64, 64]]
    config = dataclasses.replace(config, max_buckets=1)
    assert row_shapes(sources, targets, config).tolist() == [[64, 64]]


@pytest.mark.parametrize("shapes", [1, 2, 3])
def test_the_first_buckets_are_chosen_as_a_search_through_all_would(shapes: int) -> None:
    sources, targets = natural_lengths(300, 24)
    config = dataclasses.replace(data_config("bucketed", 24, 240), max_buckets=shapes)

    def padded(chosen: list[tuple[int, int]]) -> int:
        return sum(
            min(s + t for s, t in chosen if source <= s and target <= t)
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
        )

    chosen = [(24, 24)]
    all_shapes = list(itertools.product(range(4, 25, 4), repeat=2))
    while len(chosen) < shapes:
        chosen.append(min(all_shapes, key=lambda shape: padded([*chosen, shape])))
    found = [tuple(shape) for shape in row_shapes(sources, targets, config).tolist()]
    assert padded(found) == padded(chosen)


def test_the_largest_batch_has_most_tokens_and_of_these_the_longest_rows() -> None:
    config = data_config("bucketed", 64, 640)
    shapes = np.array([[16, 16], [32, 32], [48, 64], [64, 64]])
    assert largest_shape(config, 1, shapes) == BatchShape(10, 64, 64)
    assert largest_shape(config, 16, shapes) == BatchShape(16, 64, 64)
    assert largest_shape(config, 1, shapes[:2]) == BatchShape(20, 32, 32)


def pack(sources: list[int], targets: list[int], capacity: int) -> list[list[int]]:
    sides, order = (np.array(sources), np.array(targets)), np.arange(len(sources))
    usual, random = np.array([capacity, capacity]), np.random.default_rng(0)
    with mock.patch.object(batch_plan, "_DISORDER", 0):
        pairs, starts = batch_plan._pack(*sides, order, usual, capacity, random)
    rows = [pairs[a:b].tolist() for a, b in itertools.pairwise(starts.tolist())]
    return sorted(sorted(row) for row in rows)


def test_the_longest_pair_comes_first_and_goes_into_the_row_that_it_fills_most() -> None:
    """Rows of 7 and 6 tokens have 3 and 4 left: the pair of 4 fills the second, the 3 the first."""
    assert pack([3, 6, 4, 7], [1, 1, 1, 1], 10) == [[0, 3], [1, 2]]
    assert pack([1, 1, 1, 1], [3, 6, 4, 7], 10) == [[0, 3], [1, 2]]


def test_both_sides_of_a_row_must_have_room() -> None:
    assert pack([9, 1, 1], [1, 9, 1], 10) == [[0, 1], [2]]
    assert pack([9, 1, 2], [1, 8, 1], 10) == [[0, 1], [2]]


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("lengths", [(1, 1), (2, 9), (12, 3), (12, 12)])
def test_one_pair(batching: str, lengths: tuple[int, int]) -> None:
    sources, targets = np.array(lengths, np.int32)[:, None]
    config = data_config(batching, 12, 48)
    plan = plan_epoch(sources, targets, config, 0, 0, 2)
    check(plan, sources, targets, config, 2)
    assert rows_of(plan) == [[0]]
    if batching == "bucketed":
        rounded = [-(-length // 4) * 4 for length in lengths]
        rows = -(-(48 // max(rounded)) // 2) * 2
        assert plan.shapes.tolist() == [[rows, *rounded]]
    else:
        short = {1: 12, 2 / 9: 8, 3 / 12: 8}[min(lengths) / max(lengths)]
        expected = [12, 12] if lengths[0] == lengths[1] else [12, short]
        assert plan.shapes.tolist() == [[4, *(expected if lengths[0] > 3 else expected[::-1])]]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_fewer_pairs_than_rows(batching: str) -> None:
    """D37: one batch, not none."""
    sources, targets = np.array([20, 20, 18], np.int32), np.array([17, 20, 20], np.int32)
    config = data_config(batching, 20, 160)
    plan = plan_epoch(sources, targets, config, 0, 0, 8)
    check(plan, sources, targets, config, 8)
    assert plan.shapes.tolist() == [[8, 20, 20]]
    assert sorted(rows_of(plan)) == [[0], [1], [2]]


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("max_length", [2, 8, 9, 64, 65])
def test_pairs_of_exactly_the_longest_length(batching: str, max_length: int) -> None:
    sources = np.array([max_length, 1, max_length], np.int32)
    config = data_config(batching, max_length, 2 * max_length)
    plan = plan_epoch(sources, sources[::-1], config, 0, 0, 1)
    check(plan, sources, sources[::-1], config, 1)
    assert set(plan.shapes[:, 1]) >= {max_length}


def test_packed_rows_hold_several_pairs_and_bucketed_rows_one() -> None:
    lengths = np.full(32, 5, np.int32)
    config = data_config("packed", 20, 40)
    assert [len(row) for row in rows_of(plan_epoch(lengths, lengths, config, 0, 0, 1))] == [4] * 8
    config = dataclasses.replace(config, batching="bucketed")
    assert [len(row) for row in rows_of(plan_epoch(lengths, lengths, config, 0, 0, 1))] == [1] * 32


# --- Weights of sources -------------------------------------------------------------------------

STARTS = np.array([0, 40, 100, 107])


def test_without_weights_every_pair_comes_once() -> None:
    assert draw_pairs(STARTS, [1, 1, 1], 3, 5).tolist() == list(range(107))


def test_a_pair_comes_as_often_as_its_source_weighs() -> None:
    for epoch in range(5):
        count = Counter(draw_pairs(STARTS, [0.25, 2, 3.5], 3, epoch).tolist())
        assert sorted(count[pair] for pair in range(40)) == [0] * 30 + [1] * 10
        assert {count[pair] for pair in range(40, 100)} == {2}
        assert sorted(count[pair] for pair in range(100, 107)) == [3] * 3 + [4] * 4


def test_a_part_of_a_source_is_another_one_in_every_epoch_until_all_were_seen() -> None:
    parts = [set(draw_pairs(STARTS, [0.25, 1, 1], 3, epoch)[:-67].tolist()) for epoch in range(4)]
    assert set.union(*parts) == set(range(40)), "four quarters are the whole"
    assert parts != [set(draw_pairs(STARTS, [0.25, 1, 1], 4, e)[:-67].tolist()) for e in range(4)]
    # 40 of weight 0.3 are 12 an epoch: after ten epochs each has come three times.
    drawn = [draw_pairs(STARTS, [0.3, 1, 1], 3, epoch)[:-67].tolist() for epoch in range(10)]
    assert Counter(itertools.chain(*drawn)) == Counter(list(range(40)) * 3)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_plan_holds_the_pairs_that_were_drawn(batching: str) -> None:
    sources, targets = natural_lengths(107, 32)
    pairs = draw_pairs(STARTS, [0.25, 2, 3.5], 3, 1)
    plan = plan_epoch(sources, targets, data_config(batching, 32, 320), 0, 0, 1, pairs)
    assert Counter(plan.pairs.tolist()) == Counter(pairs.tolist())
    others = plan_epoch(sources, targets, data_config(batching, 32, 320), 0, 1, 1, pairs)
    assert not same(plan, others)
