"""From files to the token store. Ids such as A06 name folders of tests/data."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import both

from transformer_jax.config import DataConfig, TokenizerConfig
from transformer_jax.data import corpus
from transformer_jax.data.corpus import build_store, load_or_build
from transformer_jax.data.sources import Pair, Pairs, read_split
from transformer_jax.data.token_store import FilterReport, TokenStore
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from transformer_jax.errors import UserError

DATA = Path(__file__).parent / "data"


class WordTokenizer(Tokenizer):
    """One id a word, so that lengths can be told from the text alone."""

    pad_id, bos_id, eos_id, unk_id = range(4)
    fingerprint = "words"

    def __init__(self, vocab_size: int = 10_000) -> None:
        self.vocab_size = vocab_size
        self.words: dict[str, int] = {}

    def encode(self, sentences: list[str]) -> list[list[int]]:
        return [
            [self.words.setdefault(w, self.vocab_size - 1 - len(self.words)) for w in s.split()]
            for s in sentences
        ]


def word_tokenizers() -> Tokenizers:
    return both(WordTokenizer())


def files(folder: str, **changes: object) -> DataConfig:
    return dataclasses.replace(DataConfig(directory=str(DATA / folder)), **changes)


def build(directory: Path, folder: str, **changes: object) -> TokenStore:
    config = files(folder, **changes)
    return store_of(directory, read_split(config, "train"), config)


_names = itertools.count()


def store_of(
    directory: Path, pairs: Iterable[Pair], config: DataConfig | None = None, tokenizer=None
) -> TokenStore:
    """A store of one source in a new folder of `directory`."""
    where = directory / str(next(_names))
    named = [("all", pairs)]
    return build_store(where, named, both(tokenizer or WordTokenizer()), config or DataConfig())


def raw_lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


def test_read_split_joins_the_training_files_in_order() -> None:
    config = files("base", train=("train", "valid"), dev="valid", test="test")

    def pairs(*names: str) -> list[tuple[str, str]]:
        sides = [
            [line for name in names for line in raw_lines(DATA / f"base/{name}.{language}")]
            for language in ("en", "de")
        ]
        return list(zip(*sides, strict=True))

    assert list(read_split(config, "train")) == pairs("train", "valid")
    assert list(read_split(config, "dev")) == pairs("valid")
    assert list(read_split(config, "test")) == pairs("test")


def test_read_split_of_the_built_in_corpus() -> None:
    pairs = list(read_split(DataConfig(corpus="cldr"), "dev"))
    assert len(pairs) > 100
    assert all(source and target for source, target in pairs)
    assert pairs != list(read_split(DataConfig(corpus="cldr"), "test"))


def test_read_split_without_a_directory() -> None:
    with pytest.raises(UserError, match=r"--data\.directory"):
        read_split(DataConfig(), "train")


def test_a10_all_counts_are_compared_before_any_pair(tmp_path: Path) -> None:
    for name in ("good.en", "good.de"):
        (tmp_path / name).write_bytes(b"a\n" * 5)
    (tmp_path / "bad.en").write_bytes((DATA / "A10_unequal/train.en").read_bytes())
    (tmp_path / "bad.de").write_bytes((DATA / "A10_unequal/train.de").read_bytes())
    with pytest.raises(UserError, match=r"20 lines .*17"):
        read_split(DataConfig(directory=str(tmp_path), train=("good", "bad")), "train")


def test_store_holds_every_sentence_with_its_end_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_CHUNK_PAIRS", 7)
    config = files("base")
    sides = [raw_lines(DATA / f"base/train.{language}") for language in ("en", "de")]
    tokenizer = Tokenizer(train_tokenizer(sides[0] + sides[1], TokenizerConfig(vocab_size=400)))
    store = build_store(
        tmp_path / "store", [("all", read_split(config, "train"))], both(tokenizer), config
    )

    sources, targets = ([[*ids, 2] for ids in tokenizer.encode(side)] for side in sides)
    assert len(store) == 300
    assert [store.source(i).tolist() for i in range(300)] == sources
    assert [store.target(i).tolist() for i in range(300)] == targets
    assert store.source_lengths.tolist() == [len(ids) for ids in sources]
    assert store.target_lengths.tolist() == [len(ids) for ids in targets]
    assert store.source_tokens.tolist() == [one for ids in sources for one in ids]
    assert store.target_offsets.tolist() == np.cumsum([0, *map(len, targets)]).tolist()
    assert store.source_tokens.dtype == store.target_tokens.dtype == np.uint16
    assert store.source_offsets.dtype == store.target_offsets.dtype == np.int64
    assert store.source_lengths.dtype == store.target_lengths.dtype == np.int32
    assert isinstance(store.source_tokens, np.memmap)
    assert tokenizer.decode([store.source(299)]) == [sides[0][299]]
    for index in (-1, 300):
        with pytest.raises(IndexError):
            store.source(index)


def test_a_large_vocabulary_takes_wider_ids(tmp_path: Path) -> None:
    for size, dtype in ((65_536, np.uint16), (65_537, np.uint32)):
        tokenizer = WordTokenizer(size)
        store = store_of(tmp_path, [("a", "b")], tokenizer=tokenizer)
        assert store.source_tokens.dtype == dtype
        assert store.source(0).tolist() == [size - 1, 2]


def test_a06_pairs_with_a_blank_side_are_dropped(tmp_path: Path) -> None:
    store = build(tmp_path / "store", "A06_one_sided_blank")
    assert store.report == FilterReport(8, 5, counts(empty=3))
    sides = (raw_lines(DATA / f"A06_one_sided_blank/train.{side}") for side in ("en", "de"))
    pairs = list(zip(*sides, strict=True))
    kept = store_of(tmp_path / "kept", [pairs[i] for i in (0, 1, 3, 4, 7)], files("base"))
    assert store.fingerprint == kept.fingerprint
    assert store.target_lengths.tolist() == [len(pairs[i][1].split()) + 1 for i in (0, 1, 3, 4, 7)]


def test_a04_a_line_of_nul_is_blank(tmp_path: Path) -> None:
    store = build(tmp_path / "store", "A04_nul")
    assert store.report == FilterReport(5, 4, counts(empty=1))
    assert store.source_lengths.tolist()[1] == len("64 c locks and 65 lamps".split()) + 1


def counts(empty: int = 0, source: int = 0, target: int = 0, ratio: int = 0) -> dict[str, int]:
    return {
        "empty side": empty,
        "source too long": source,
        "target too long": target,
        "length ratio": ratio,
    }


# A24 holds pairs of 5, 5, 10, 20, 200 and 2000 words on each side; the end mark is one more.
@pytest.mark.parametrize(
    ("max_length", "dropped"), [(64, 2), (200, 2), (201, 1), (2000, 1), (2001, 0), (10, 4)]
)
def test_a24_the_limit_counts_the_end_mark(tmp_path: Path, max_length: int, dropped: int) -> None:
    store = build(tmp_path / "store", "A24_lengths", max_length=max_length)
    assert store.report == FilterReport(6, 6 - dropped, counts(source=dropped))
    assert store.source_lengths.max() <= max_length


def test_a12_a_report_says_what_was_dropped_and_why(tmp_path: Path) -> None:
    lines = build(tmp_path / "store", "A24_lengths", max_length=64).report.lines()
    assert lines[:2] == ["read 6 pairs", "kept 4 (66.7 %)"]
    assert "dropped 2 (33.3 %): source too long" in lines
    assert lines[-1].startswith("WARNING: 2 (33.3 %)")
    assert not any("WARNING" in line for line in FilterReport(100, 95, counts(empty=5)).lines())
    assert FilterReport(0, 0, {}).lines()[0] == "read 0 pairs"


def test_a12_nothing_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 6 pairs .*6 source too long"):
        build(tmp_path, "A24_lengths", max_length=2)
    assert os.listdir(tmp_path) == []


def test_an_empty_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the corpus is empty"):
        build_store(tmp_path / "store", [("all", [])], word_tokenizers(), DataConfig())
    assert os.listdir(tmp_path) == []


def test_a25_one_huge_line_is_dropped(tmp_path: Path) -> None:
    store = build(tmp_path / "store", "A25_one_huge_line")
    lines = raw_lines(DATA / "A25_one_huge_line/train.en")
    expected = [len(line.split()) + 1 for i, line in enumerate(lines) if i != 39]
    assert store.source_lengths.tolist() == expected
    assert store.report.dropped == counts(source=1)


def test_each_reason_at_its_edge(tmp_path: Path) -> None:
    def words(count: int) -> str:
        return " ".join("w" * count)

    pairs = [
        (words(1), words(5)),  # 2 against 6 tokens: three times, kept
        (words(5), words(1)),
        (words(1), words(6)),  # 2 against 7
        (words(6), words(1)),
        (words(9), words(9)),  # 10 tokens, kept
        (words(9), words(10)),
        (words(10), words(10)),
        ("", ""),
        ("a", "\u3000"),
    ]
    config = DataConfig(max_length=10, max_length_ratio=3.0)
    store = build_store(tmp_path / "store", [("all", pairs)], word_tokenizers(), config)
    assert store.report == FilterReport(9, 3, counts(empty=2, source=1, target=1, ratio=2))
    assert list(zip(store.source_lengths, store.target_lengths, strict=True)) == [
        (2, 6),
        (6, 2),
        (10, 10),
    ]


def test_fingerprint_tells_content_filter_and_tokenizer(tmp_path: Path) -> None:
    pairs = [("a b", "c"), ("d", "e")]
    config = DataConfig()
    other_tokenizer = WordTokenizer()
    other_tokenizer.fingerprint = "others"

    def fingerprint(pairs=pairs, tokenizer=None, config=config) -> str:
        return store_of(tmp_path, pairs, config, tokenizer).fingerprint

    same = fingerprint()
    assert same == fingerprint(iter(pairs))
    assert same == fingerprint([*pairs, ("", "dropped")])
    different = [
        fingerprint(pairs[::-1]),
        fingerprint([("a", " bc"), ("d", "e")]),
        fingerprint([("c", "a b"), ("e", "d")]),
        fingerprint(pairs[:1]),
        fingerprint(tokenizer=other_tokenizer),
        fingerprint(config=dataclasses.replace(config, max_length=100)),
        fingerprint(config=dataclasses.replace(config, max_length_ratio=5.0)),
    ]
    assert len({same, *different}) == 1 + len(different)


def test_a_store_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_CHUNK_PAIRS", 1)

    def broken() -> Iterator[tuple[str, str]]:
        yield "x", "y"
        raise UserError("train.en, line 2: not valid UTF-8")

    with pytest.raises(UserError, match="line 2"):
        build_store(tmp_path / "store", [("all", broken())], word_tokenizers(), DataConfig())
    assert os.listdir(tmp_path) == []


def test_the_store_of_a_faster_process_stays(tmp_path: Path) -> None:
    directory = tmp_path / "store"

    def slow() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        build_store(directory, [("faster", [("a", "b")])], word_tokenizers(), DataConfig())

    store = build_store(directory, [("slow", slow())], word_tokenizers(), DataConfig())
    assert [name for name, _ in store.reports] == ["faster"]
    assert os.listdir(tmp_path) == ["store"]


def test_a_directory_that_is_no_store_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"precious")
    with pytest.raises(UserError, match="not a token store"):
        build_store(tmp_path, [("all", [("a", "b")])], word_tokenizers(), DataConfig())
    assert (tmp_path / "mine.txt").read_bytes() == b"precious"


def found(pairs: list[Pair], digest: str, count: list[int], name: str = "mine") -> Pairs:
    """A source that counts in `count[0]` how often it is read."""

    def read() -> Iterator[Pair]:
        count[0] += 1
        return iter(pairs)

    return Pairs(name, 1.0, len(pairs), digest, read)


def test_a_store_is_made_once_and_shared(tmp_path: Path) -> None:
    reads = [0]
    pairs = found([("a b", "c"), ("d", "e")], "1", reads)

    def load(*sources: Pairs, tokenizer=None, **changes: object) -> TokenStore:
        config = dataclasses.replace(DataConfig(), **changes)
        return load_or_build(tmp_path, sources, both(tokenizer or WordTokenizer()), config)

    first = load(pairs)
    assert load(pairs, tokens_per_update=500).directory == first.directory
    assert load(pairs._replace(name="moved", weight=2.0)).directory == first.directory
    assert reads == [1], "it was read once"
    other_tokenizer = WordTokenizer()
    other_tokenizer.fingerprint = "others"
    others = [
        load(pairs._replace(digest="2")),
        load(pairs, pairs),
        load(pairs, max_length=100),
        load(pairs, max_length_ratio=5.0),
        load(pairs, tokenizer=other_tokenizer),
    ]
    assert len({store.directory for store in (first, *others)}) == 6
    assert reads == [7]


def test_every_source_has_its_pairs_and_its_report(tmp_path: Path) -> None:
    sources = [("one", [("a", "b"), ("", "c")]), ("two", [("d", "e"), ("f", "g"), ("h", "i")])]
    store = build_store(tmp_path / "s", sources, word_tokenizers(), DataConfig())
    assert store.starts.tolist() == [0, 1, 4]
    assert store.reports == [
        ("one", FilterReport(2, 1, counts(empty=1))),
        ("two", FilterReport(3, 3, counts())),
    ]
    assert store.report == FilterReport(5, 4, counts(empty=1))
    for pairs in ([], [("", "a")]):
        with pytest.raises(UserError, match="from two"):
            build_store(
                tmp_path / "t", [sources[0], ("two", pairs)], word_tokenizers(), DataConfig()
            )


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        build_store(
            tmp_path / "file/store", [("all", [("a", "b")])], word_tokenizers(), DataConfig()
        )


@pytest.mark.parametrize("name", ["meta.json", "source_tokens", "target_offsets"])
def test_a_damaged_store_is_an_error(tmp_path: Path, name: str) -> None:
    build_store(tmp_path / "store", [("all", [("a", "b")])], word_tokenizers(), DataConfig())
    path = tmp_path / "store" / name
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="broken token store"):
            TokenStore(tmp_path / "store")
    path.unlink()
    with pytest.raises(UserError, match="token store"):
        TokenStore(tmp_path / "store")
