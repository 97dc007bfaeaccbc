"""Sources of pairs: what each kind reads, and what a user can get wrong. A16 is a report."""

import dataclasses
import gzip
import itertools
from pathlib import Path

import pytest
from wmt14 import make_wmt14

from transformer_jax.config import DataConfig
from transformer_jax.config_data import Source
from transformer_jax.data.sources import open_sources, read_split
from transformer_jax.errors import UserError

DATA = Path(__file__).parent / "data"

PAIRS = [("one", "eins"), ("two", "zwei")]
MORE = [("three", "drei")]


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every kind of files, with PAIRS, and MORE in a second file."""
    for number, language in enumerate(("en", "de")):
        write(tmp_path / f"news-1.{language}", *(pair[number] for pair in PAIRS))
        packed = gzip.compress("".join(f"{pair[number]}\n" for pair in MORE).encode())
        (tmp_path / f"news-2.{language}.gz").write_bytes(packed)
        write(tmp_path / f"flat/{language}.train.txt", *(pair[number] for pair in PAIRS))
    write(tmp_path / "two.tsv", *("\t".join(pair) for pair in PAIRS))
    write(tmp_path / "wide.tsv", *(f"{i}\t{de}\t{en}\tx" for i, (en, de) in enumerate(PAIRS)))
    make_wmt14(tmp_path / "tfds", "de", train=[pair[::-1] for pair in PAIRS])
    return tmp_path


def data(folder: Path, *train: str, **changes: object) -> DataConfig:
    return dataclasses.replace(DataConfig(directory=str(folder), train=train), **changes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", Source("files", "train", 1.0)),
        ("bible=0.5", Source("files", "bible", 0.5)),
        ("news#<BT>=0.5", Source("files", "news", 0.5, "<BT>")),
        ("date=2020-01=3", Source("files", "date=2020-01", 3.0)),
        ("date=2020-01", Source("files", "date=2020-01", 1.0)),
        ("tsv:a:b.tsv:2,1=2", Source("tsv", "a:b.tsv:2,1", 2.0)),
        ("C:/text/train", Source("files", "C:/text/train", 1.0)),
        (
            "tfds:wmt14_translate/de-en:train[:5%]",
            Source("tfds", "wmt14_translate/de-en:train[:5%]"),
        ),
    ],
)
def test_a_source_in_a_word(text: str, expected: Source) -> None:
    assert Source.parse(text, "files") == expected


@pytest.mark.parametrize(
    "source",
    [
        *("news-1", "files:news-1", "{0}/news-1", "tsv:{0}/two.tsv", "tsv:{0}/wide.tsv:3,2"),
        *("folder:{0}/flat:train", "given:mine"),
    ],
)
def test_every_kind_reads_the_same_pairs(folder: Path, source: str) -> None:
    config = data(folder, source.format(folder))
    (found,) = open_sources(config, "train", {"mine": PAIRS})
    assert found.count == 2
    assert list(found.read()) == list(found.read()) == PAIRS
    swapped = data(folder, source.format(folder), source_language="de", target_language="en")
    if not source.startswith(("tsv:", "given:")):  # these have no languages but an order
        assert list(read_split(swapped, "train")) == [pair[::-1] for pair in PAIRS]


def test_a_split_of_tfds_among_files(folder: Path) -> None:
    tfds = "tfds:wmt14_translate/de-en:train"
    names = tfds, f"files:{folder}/news-2", "cldr:dev"
    config = data(folder / "tfds", *names, corpus="tfds", tfds_name="wmt14_translate/de-en")
    sources = open_sources(config, "train")
    assert [(one.name, one.count) for one in sources[:2]] == [
        (tfds[5:], 2),
        (f"{folder}/news-2", 1),
    ]
    assert sorted(sources[0].read()) == sorted(PAIRS)
    assert list(itertools.islice(read_split(config, "train"), 2, 3)) == MORE


def test_a_tag_stands_before_every_source(folder: Path) -> None:
    (one,) = open_sources(data(folder, "news-1#<BT>"), "train")
    assert list(one.read()) == [(f"<BT> {source}", target) for source, target in PAIRS]
    assert one.digest != open_sources(data(folder, "news-1"), "train")[0].digest


def test_a_star_stands_for_all_files_that_match(folder: Path) -> None:
    (one,) = open_sources(data(folder, "news-*=2"), "train")
    assert (one.count, one.weight) == (3, 2.0)
    assert list(one.read()) == PAIRS + MORE


def test_a16_quotes_mean_nothing_in_a_table() -> None:
    pairs = list(read_split(data(DATA, f"tsv:{DATA}/A16_tsv_quotes/train.tsv"), "train"))
    lines = (DATA / "A16_tsv_quotes/train.tsv").read_bytes().decode().split("\n")[:-1]
    assert len(pairs) == len(lines) == 8
    assert ["\t".join(pair) for pair in pairs] == lines
    assert any(text.startswith('"') for pair in pairs for text in pair)


def digest(config: DataConfig, given=None) -> str:
    (one,) = open_sources(config, "train", given)
    return one.digest


def test_a_digest_is_that_of_the_text(folder: Path) -> None:
    first = digest(data(folder, "news-1"))
    for language in ("en", "de"):
        path = folder / f"news-1.{language}"
        (folder / f"packed.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert digest(data(folder, "packed")) == first, "however it is packed"
    assert digest(data(folder, "news-1", source_language="de", target_language="en")) != first
    write(folder / "news-1.de", "eins", "zwo")
    assert digest(data(folder, "news-1")) != first
    columns = [digest(data(folder, f"tsv:{folder}/wide.tsv:{c}")) for c in ("3,2", "2,3")]
    assert columns[0] != columns[1]
    given = [digest(data(folder, "given:x"), {"x": pairs}) for pairs in (PAIRS, MORE, PAIRS[::-1])]
    assert len(set(given)) == 3
    tfds = [
        digest(data(folder / "tfds", s, corpus="tfds", tfds_name="wmt14_translate/de-en"))
        for s in ("train", "train[:1]")
    ]
    assert tfds[0] != tfds[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("news-9", r"news-9\.en: no such file"),
        ("nothing-*", r"nothing-\*\.en: no such file"),
        ("tsv:nowhere.tsv", r"nowhere\.tsv: cannot be read"),
        ("tsv:{0}/wide.tsv", r"wide\.tsv, line 1: 4 fields .*not 2; tsv:FILE:2,1"),
        ("tsv:{0}/two.tsv:1,3", r"two\.tsv, line 1: 2 fields .*not 3 or more"),
        ("tsv:{0}/two.tsv:0,1", r"two\.tsv:0,1: give the columns"),
        ("tsv:{0}/two.tsv:1,2,3", "give the columns"),
        ("folder:{0}/flat", r"name the split"),
        ("folder:{0}/flat:test", r"flat/en\.test\.txt: no such file"),
        ("cldr:training", "the built-in corpus has train, dev, test"),
        ("given:mine", "Python must give these pairs by name; it gave other"),
        ("given:once", "can be read only once"),
        ("given:bad", "bad, pair 1: not a pair of texts: 'ab c'"),
        ("multi30k:training", "multi30k:training in 'en': known are train.en, "),
    ],
)
def test_what_a_source_may_lack(folder: Path, source: str, message: str) -> None:
    given = {"other": PAIRS, "bad": ["ab c"]}
    if "once" in source:
        given = {"once": iter(PAIRS)}
    with pytest.raises(UserError, match=message) as caught:
        list(read_split(data(folder, source.format(folder)), "train", given))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": ("a=0",)}, "data.train is .* weights above 0"),
        ({"train": ("a=-1",)}, "data.train is .* weights above 0"),
        ({"train": ("a=nan",)}, "data.train is .* weights above 0"),
        ({"train": ("=2",)}, "data.train is .* no empty name"),
        ({"train": ("tsv:",)}, "data.train is .* no empty name"),
        ({"train": ("tfds:train",)}, "data.tfds_name is ''"),
        ({"dev": "a=2"}, "data.dev is 'a=2': .* without a weight"),
        ({"test": "a=2"}, "data.test is 'a=2': .* without a weight"),
        ({"max_length": 2**14}, "data.max_length is 16384: .* from 2 to 16383"),
    ],
)
def test_what_the_configuration_refuses(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataConfig(**changes)
