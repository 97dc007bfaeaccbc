"""Batches against a slow reading of their plan, and against the pairs themselves."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders import both

from transformer_jax.array_types import Batch
from transformer_jax.config import DataConfig, TokenizerConfig
from transformer_jax.data.batch_plan import EpochPlan, plan_epoch
from transformer_jax.data.corpus import build_store
from transformer_jax.data.loader import Cursor, Shard, collate, dev_batches, train_batches
from transformer_jax.data.sources import read_split
from transformer_jax.data.token_store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

DATA = Path(__file__).parent / "data"
BATCHINGS = ("packed", "bucketed")
WHOLE = Shard(0, 1)
EOS = 2

Sentences = tuple[tuple[int, ...], tuple[int, ...]]


class NumberTokenizer(Tokenizer):
    """Sentences are numbers between spaces, and so are their ids."""

    pad_id, bos_id, eos_id, unk_id = 0, 1, EOS, 3

    def __init__(self) -> None:
        self.vocab_size, self.fingerprint = 1000, "numbers"

    def encode(self, sentences: list[str]) -> list[list[int]]:
        return [[int(word) for word in sentence.split()] for sentence in sentences]


class Corpus(NamedTuple):
    """A token store, and the ids that it must hold, end marks included."""

    store: TokenStore
    pairs: list[Sentences]


def make_corpus(directory: Path, num_pairs: int) -> Corpus:
    random = np.random.default_rng(0)

    def sentence() -> list[int]:
        # 0 is an id as good as any: padding is told by the segments alone.
        return random.choice([0, *range(3, 1000)], random.integers(1, 20)).tolist()

    sides = [(sentence(), sentence()) for _ in range(num_pairs)]
    text = [tuple(" ".join(map(str, ids)) for ids in pair) for pair in sides]
    config = DataConfig(max_length=20, max_length_ratio=20.0)
    store = build_store(directory, [("all", text)], both(NumberTokenizer()), config)
    assert len(store) == num_pairs
    return Corpus(store, [((*source, EOS), (*target, EOS)) for source, target in sides])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "store", 101)


def data_config(batching: str, tokens_per_update: int = 200) -> DataConfig:
    return DataConfig(
        batching=batching,
        max_length=20,
        tokens_per_update=tokens_per_update,
        prefetch_batches=2,
    )


def plan_of(store: TokenStore, config: DataConfig, row_multiple: int = 4) -> EpochPlan:
    return plan_epoch(store.source_lengths, store.target_lengths, config, 11, 0, row_multiple)


def expected_batch(pairs: list[Sentences], plan: EpochPlan, batch: int) -> dict[str, list]:
    """The rows of a batch, written token by token."""
    num_rows, *lengths = plan.shapes[batch].tolist()
    expected = {name: [] for name in Batch.__annotations__}
    for row in range(num_rows):
        r = int(plan.batch_starts[batch]) + row
        filler = r >= plan.batch_starts[batch + 1]
        members = [] if filler else plan.pairs[plan.row_starts[r] : plan.row_starts[r + 1]]
        for i, side in enumerate(("inputs", "targets")):
            tokens, positions, segments = [], [], []
            for segment, pair in enumerate(members, start=1):
                for position, token in enumerate(pairs[pair][i]):
                    tokens.append(token)
                    positions.append(position)
                    segments.append(segment)
            padding = [0] * (lengths[i] - len(tokens))
            expected[side].append(tokens + padding)
            expected[f"{side}_positions"].append(positions + padding)
            expected[f"{side}_segments"].append(segments + padding)
    return expected


def sentences_of(tokens, positions, segments) -> list[tuple[int, ...]]:
    """The sentences of one side of a row, which must look as `Batch` says."""
    length = int(np.count_nonzero(segments))
    assert (
        not tokens[length:].any() and not positions[length:].any() and not segments[length:].any()
    )
    sentences = []
    while sum(map(len, sentences)) < length:
        start = sum(map(len, sentences))
        end = start + int(np.count_nonzero(segments == len(sentences) + 1))
        assert start < end and set(segments[start:end]) == {len(sentences) + 1}
        assert positions[start:end].tolist() == list(range(end - start))
        sentences.append(tuple(tokens[start:end].tolist()))
    return sentences


def pairs_in(batches: Iterable[dict[str, np.ndarray]]) -> list[Sentences]:
    """The pairs of whole batches, told from their arrays alone."""
    pairs = []
    for batch in batches:
        assert set(batch) == set(Batch.__annotations__)
        assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
        shapes = {name: array.shape for name, array in batch.items()}
        for side in ("inputs", "targets"):
            parts = {shapes[name] for name in shapes if name.startswith(side)}
            assert len(parts) == 1
        assert shapes["inputs"][0] == shapes["targets"][0]
        for row in range(len(batch["inputs"])):
            sources, targets = (
                sentences_of(
                    *(batch[side + suffix][row] for suffix in ("", "_positions", "_segments"))
                )
                for side in ("inputs", "targets")
            )
            pairs += zip(sources, targets, strict=True)
    return pairs


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)


def stack(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("batching", BATCHINGS)
def test_collate_agrees_with_a_slow_reading_of_the_plan(corpus: Corpus, batching: str) -> None:
    plan = plan_of(corpus.store, data_config(batching))
    assert plan.num_batches > 5
    for batch in range(plan.num_batches):
        arrays = collate(corpus.store, plan, batch, WHOLE)
        assert {name: array.tolist() for name, array in arrays.items()} == expected_batch(
            corpus.pairs, plan, batch
        )


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_arrays_tell_every_pair_once(corpus: Corpus, batching: str) -> None:
    plan = plan_of(corpus.store, data_config(batching))
    batches = [collate(corpus.store, plan, i, WHOLE) for i in range(plan.num_batches)]
    shapes = [[*batch["inputs"].shape, batch["targets"].shape[1]] for batch in batches]
    assert shapes == plan.shapes.tolist()
    assert Counter(pairs_in(batches)) == Counter(corpus.pairs)
    most = max(batch["targets_segments"].max() for batch in batches)
    assert most >= 2 if batching == "packed" else most == 1


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("count", [2, 4])
def test_shards_are_the_rows_of_the_whole_batch(tmp_path: Path, batching: str, count: int) -> None:
    """In the last batch too, and where a batch has fewer rows than there are shards."""
    num_filler_rows, num_real_rows = set(), set()
    for num_pairs in (1, 2, 3, 5, 10, 101):
        store, _ = make_corpus(tmp_path / str(num_pairs), num_pairs)
        plan = plan_of(store, data_config(batching))
        num_real_rows |= set(np.diff(plan.batch_starts).tolist())
        num_filler_rows |= set((plan.shapes[:, 0] - np.diff(plan.batch_starts)).tolist())
        for batch in range(plan.num_batches):
            whole = collate(store, plan, batch, WHOLE)
            parts = [collate(store, plan, batch, Shard(i, count)) for i in range(count)]
            assert {len(part["inputs"]) for part in parts} == {plan.shapes[batch, 0] // count}
            assert_same(stack(parts), whole)
    assert min(num_real_rows) < count
    assert len(num_filler_rows) > 3


def test_one_pair_for_four_shards(tmp_path: Path) -> None:
    store, pairs = make_corpus(tmp_path / "store", 1)
    plan = plan_of(store, data_config("packed", 80))
    first, *others = (collate(store, plan, 0, Shard(i, 4)) for i in range(4))
    assert pairs_in([first]) == pairs
    for part in others:
        assert part["inputs"].shape == (1, 20)
        assert pairs_in([part]) == []


def stream(
    corpus: Corpus, config: DataConfig, cursor: Cursor, length: int, shard: Shard = WHOLE
) -> list[tuple[Cursor, dict[str, np.ndarray]]]:
    """The next batches after a cursor, with the cursors after them."""
    batches = train_batches(lambda epoch: corpus.store, config, 3, 4, cursor, shard)
    try:
        return list(itertools.islice(batches, length))
    finally:
        batches.close()


def epoch_sizes(corpus: Corpus, config: DataConfig, epochs: int) -> list[int]:
    lengths = corpus.store.source_lengths, corpus.store.target_lengths
    return [plan_epoch(*lengths, config, 3, epoch, 4).num_batches for epoch in range(epochs)]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_each_epoch_delivers_every_pair_once_in_an_order_of_its_own(
    corpus: Corpus, batching: str
) -> None:
    """D08, D10, D13."""
    config = data_config(batching)
    sizes = epoch_sizes(corpus, config, 3)
    batches = [batch for _, batch in stream(corpus, config, Cursor(0, 0), sum(sizes))]
    ends = np.cumsum([0, *sizes])
    orders = [pairs_in(batches[a:b]) for a, b in itertools.pairwise(ends)]
    for order in orders:
        assert Counter(order) == Counter(corpus.pairs)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_stream_goes_on_from_every_cursor(corpus: Corpus, batching: str) -> None:
    """D08, D10, D13: in every epoch, by the cursor alone."""
    config = data_config(batching)
    sizes = epoch_sizes(corpus, config, 4)
    places = [Cursor(epoch, batch) for epoch in range(4) for batch in range(sizes[epoch])]
    unbroken = stream(corpus, config, Cursor(0, 0), len(places) - 1)
    assert [cursor for cursor, _ in unbroken] == places[1:]
    last_of_first = sizes[0] - 1
    for start in (1, last_of_first, sizes[0], sizes[0] + 2, sizes[0] + sizes[1] + 3):
        rest = unbroken[start:]
        # The cursor that came with the batch before is all that is needed.
        went_on = stream(corpus, config, unbroken[start - 1][0], len(rest))
        assert [cursor for cursor, _ in went_on] == [cursor for cursor, _ in rest]
        for (_, one), (_, other) in zip(went_on, rest, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_processes_see_their_rows_of_one_stream(corpus: Corpus, batching: str) -> None:
    """D14, D15."""
    config = data_config(batching)
    start, length = Cursor(1, 2), sum(epoch_sizes(corpus, config, 3)[1:])
    whole = stream(corpus, config, start, length)
    parts = [stream(corpus, config, start, length, Shard(i, 2)) for i in range(2)]
    for (cursor, batch), *shards in zip(whole, *parts, strict=True):
        assert [shard_cursor for shard_cursor, _ in shards] == [cursor, cursor]
        assert_same(stack([rows for _, rows in shards]), batch)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_d14_another_number_of_processes_goes_on(corpus: Corpus, batching: str) -> None:
    """Four processes for ten steps and two for ten more see the batches of one for twenty."""
    config = data_config(batching)
    whole = stream(corpus, config, Cursor(0, 0), 20)
    cursor, found = Cursor(0, 0), []
    for count in (4, 2):
        parts = [stream(corpus, config, cursor, 10, Shard(i, count)) for i in range(count)]
        found += [stack([rows for _, rows in step]) for step in zip(*parts, strict=True)]
        cursor = parts[0][-1][0]
    for batch, (_, expected) in zip(found, whole, strict=True):
        assert_same(batch, expected)


def test_d15_no_process_has_more_batches_than_another(tmp_path: Path) -> None:
    """301 pairs, which neither rows nor processes divide."""
    corpus = make_corpus(tmp_path / "store", 301)
    config = data_config("bucketed")
    length = sum(epoch_sizes(corpus, config, 2))
    for i in range(4):
        cursors = [
            cursor for cursor, _ in stream(corpus, config, Cursor(0, 0), length, Shard(i, 4))
        ]
        assert cursors[-1] == Cursor(2, 0)


def epoch_hash(directory: Path, folder: Path) -> str:
    """SHA-256 of all arrays of the first epoch of a folder's `train` files."""
    config = DataConfig(directory=str(folder), max_length=64, tokens_per_update=256)
    sentences = chain.from_iterable(read_split(config, "train"))
    tokenizer = Tokenizer(train_tokenizer(sentences, TokenizerConfig(vocab_size=320)))
    pairs = read_split(config, "train")
    store = build_store(directory, [("train", pairs)], both(tokenizer), config)
    plan, content = plan_of(store, config), hashlib.sha256()
    for batch in range(plan.num_batches):
        for name, array in sorted(collate(store, plan, batch, WHOLE).items()):
            content.update(f"{name} {array.shape}".encode() + array.tobytes())
    assert plan.num_batches > 10
    return content.hexdigest()


def test_a14_packed_files_give_the_batches_of_the_plain_ones(tmp_path: Path) -> None:
    hashes = [epoch_hash(tmp_path / name, DATA / name) for name in ("A14_gz", "base")]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_seed_changes_the_stream(corpus: Corpus, batching: str) -> None:
    streams = []
    for seed in (3, 4):
        batches = train_batches(
            lambda epoch: corpus.store, data_config(batching), seed, 4, Cursor(0, 0), WHOLE
        )
        streams.append(pairs_in(batch for _, batch in itertools.islice(batches, 3)))
        batches.close()
    assert streams[0] != streams[1]


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("count", [1, 2])
def test_dev_batches_deliver_every_pair_once(corpus: Corpus, batching: str, count: int) -> None:
    """D15, D17: as many batches in every process."""
    config = data_config(batching)
    shards = [list(dev_batches(corpus.store, config, 4, Shard(i, count))) for i in range(count)]
    assert len({len(batches) for batches in shards}) == 1
    assert Counter(pairs_in(itertools.chain(*shards))) == Counter(corpus.pairs)
    again = list(dev_batches(corpus.store, config, 4, Shard(0, count)))
    for one, other in zip(shards[0], again, strict=True):
        assert_same(one, other)
