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
    EpochPlan,
    bucket_lengths,
    num_rows,
    padded_rows,
    plan_epoch,
)

BATCHINGS = ("packed", "bucketed")

SERIES = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
SERIES += [320, 384, 448, 512, 640, 768, 896, 1024]


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


def check(plan: EpochPlan, sources, targets, config: DataConfig, row_multiple: int) -> None:
    """All that a plan promises, worked out from the lengths of the pairs."""
    rows, batches = rows_of(plan), batches_of(plan)
    assert Counter(itertools.chain(*rows)) == Counter(range(len(sources)))
    assert list(itertools.chain(*batches)) == rows, "every row is in one batch"
    assert plan.num_batches == len(batches) == len(plan.shapes)
    assert all(rows) and all(batches)
    for (all_rows, length), batch in zip(plan.shapes.tolist(), batches, strict=True):
        assert len(batch) <= all_rows
        assert all_rows % row_multiple == 0
        assert len(batch) * length <= config.tokens_per_update
        real_rows = config.tokens_per_update // length
        assert real_rows <= all_rows < real_rows + row_multiple
        for row in batch:
            assert sum(int(sources[pair]) for pair in row) <= length <= config.max_length
            assert sum(int(targets[pair]) for pair in row) <= length
    if config.batching == "packed":
        check_packed(plan, config)
    else:
        check_bucketed(plan, sources, targets, config)


def check_packed(plan: EpochPlan, config: DataConfig) -> None:
    """One shape, and a short batch at the end alone."""
    assert len(np.unique(plan.shapes, axis=0)) == 1
    assert set(plan.shapes[:, 1]) == {config.max_length}
    sizes = [len(batch) for batch in batches_of(plan)]
    assert set(sizes[:-1]) <= {config.tokens_per_update // config.max_length}


def check_bucketed(plan: EpochPlan, sources, targets, config: DataConfig) -> None:
    """One pair a row, in the smallest bucket that it fits, and one short batch a bucket."""
    buckets = [length for length in SERIES if length < config.max_length] + [config.max_length]
    short = Counter()
    for length, batch in zip(plan.shapes[:, 1].tolist(), batches_of(plan), strict=True):
        assert length in buckets
        below = max([bucket for bucket in buckets if bucket < length], default=0)
        for row in batch:
            assert len(row) == 1
            assert below < max(sources[row[0]], targets[row[0]]) <= length
        short[length] += len(batch) < config.tokens_per_update // length
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


@given(problems(), st.integers(0, 2**32 - 1), st.integers(0, 1000), st.sampled_from([1, 3, 128]))
def test_every_pair_once_in_a_row_that_holds_it(problem, seed, epoch, open_rows) -> None:
    sources, targets, settings, row_multiple = problem
    config = data_config(*settings)
    with mock.patch.object(batch_plan, "OPEN_ROWS", open_rows):
        plan = plan_epoch(sources, targets, config, seed, epoch, row_multiple)
    check(plan, sources, targets, config, row_multiple)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_corpus_of_natural_lengths(batching: str) -> None:
    sources, targets = natural_lengths(5_000, 100)
    config = data_config(batching, 100, 2_500)
    check(plan_epoch(sources, targets, config, 0, 3, 4), sources, targets, config, 4)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_plan_is_a_pure_function_of_lengths_seed_and_epoch(batching: str) -> None:
    sources, targets = natural_lengths(300, 64)
    before = sources.copy(), targets.copy()
    config = data_config(batching, 64, 640)

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
        groups = [set(map(frozenset, rows_of(one))) for one in (first, *others)]
    else:
        groups = [
            {frozenset(itertools.chain(*batch)) for batch in batches_of(one)}
            for one in (first, *others)
        ]
    for one, other in itertools.combinations(groups, 2):
        assert len(one & other) <= 0.2 * len(one)


def test_buckets_come_in_mixed_order() -> None:
    sources, targets = natural_lengths(2_000, 64)
    lengths = plan_epoch(sources, targets, data_config("bucketed", 64, 640), 0, 0, 1).shapes[:, 1]
    changes = np.count_nonzero(np.diff(lengths))
    assert changes > 0.5 * len(lengths), "batches of like length follow one another"


def test_packed_rows_come_in_mixed_order() -> None:
    """Packing closes the fullest rows first and leaves the emptiest for last; batches do not."""
    sources, targets = natural_lengths(4_000, 64)
    plan = plan_epoch(sources, targets, data_config("packed", 64, 640), 0, 0, 1)
    filled = np.add.reduceat(np.maximum(sources, targets)[plan.pairs], plan.row_starts[:-1])
    first, second = np.array_split(filled, 2)
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


@pytest.mark.parametrize("max_length", [*range(1, 140), 200, 256, 257, 1000, 1024])
def test_bucket_lengths_are_the_documented_series(max_length: int) -> None:
    expected = [length for length in SERIES if length < max_length] + [max_length]
    assert bucket_lengths(max_length) == expected
    assert expected == sorted(set(expected))


@pytest.mark.parametrize("max_length", [128, 256])
def test_packing_fills_at_least_95_percent(max_length: int) -> None:
    sources, targets = natural_lengths(20_000, max_length)
    plan = plan_epoch(sources, targets, data_config("packed", max_length, 25_000), 0, 0, 1)
    capacity = len(rows_of(plan)) * max_length
    assert max(sources.sum(), targets.sum()) / capacity >= 0.95


def pack(sources: list[int], targets: list[int], capacity: int) -> list[list[int]]:
    lengths = np.array(sources), np.array(targets)
    return sorted(batch_plan._pack(*lengths, np.arange(len(sources)), capacity))


def test_a_pair_goes_into_the_row_that_it_fills_most() -> None:
    """The rows of 5 and 6 tokens have 5 and 4 left; the pair of 4 leaves the 5 for the last."""
    assert pack([5, 6, 4, 5], [1, 1, 1, 1], 10) == [[0, 3], [1, 2]]
    assert pack([1, 1, 1, 1], [5, 6, 4, 5], 10) == [[0, 3], [1, 2]]


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
    expected = {"packed": [4, 12], "bucketed": [4, 12] if max(lengths) > 8 else [6, 8]}
    assert plan.shapes.tolist() == [expected[batching]]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_fewer_pairs_than_rows(batching: str) -> None:
    sources, targets = np.array([20, 20, 18], np.int32), np.array([17, 20, 20], np.int32)
    config = data_config(batching, 20, 160)
    plan = plan_epoch(sources, targets, config, 0, 0, 8)
    check(plan, sources, targets, config, 8)
    assert plan.shapes.tolist() == [[8, 20]]
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
