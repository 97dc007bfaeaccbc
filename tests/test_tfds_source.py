"""Corpora from tfds: which pairs come out, how they are made, and what a user can get wrong."""

import http.server
import io
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.translate import wmt
from wmt14 import make_wmt14

from transformer_jax.config import DataConfig
from transformer_jax.data import tfds_source
from transformer_jax.data.sources import read_split
from transformer_jax.errors import UserError

TRAIN = [(f"Satz {i}", f"sentence {i}") for i in range(25)]
DEV = [("Ja\u0308", "yes\u2028indeed"), ("a\tb\r", "\ufeffc")]  # as no clean file has them
TEST = [("Prüfung", "test"), ("", "blank")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tfds")
    make_wmt14(directory, "de", train=TRAIN, validation=DEV, test=TEST)
    return directory


def config(directory: Path, **changes: object) -> DataConfig:
    fields = {
        "corpus": "tfds",
        "tfds_name": "wmt14_translate/de-en",
        "directory": str(directory),
        "source_language": "en",
        "target_language": "de",
    }
    return DataConfig(**(fields | changes))


def swapped(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(second, first) for first, second in pairs]


def files(directory: Path) -> Path:
    return directory / "wmt14_translate/de-en/1.0.0"


# --- What is read -------------------------------------------------------------------------------


def test_every_pair_of_a_split_comes_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfds_source, "_CHUNK_EXAMPLES", 10)
    pairs = list(read_split(config(directory), "train"))
    assert sorted(pairs) == sorted(swapped(TRAIN))
    assert pairs == list(read_split(config(directory), "train")), "the order is always the same"


def test_either_language_can_be_the_source(directory: Path) -> None:
    german = config(directory, source_language="de", target_language="en")
    assert sorted(read_split(german, "train")) == sorted(TRAIN)


def test_sentences_are_cleaned_like_those_of_files(directory: Path) -> None:
    """By default `dev` is the split `validation`, as data sets of tfds call it."""
    expected = [("yes indeed", "J\u00e4"), ("c", "a b")]
    assert sorted(read_split(config(directory), "dev")) == sorted(expected)


def test_splits_are_joined_and_cut_as_tfds_writes_it(directory: Path) -> None:
    pairs = list(read_split(config(directory, train=("train[:3]", "test")), "train"))
    everything = list(read_split(config(directory), "train"))
    assert pairs[:3] == everything[:3]
    assert sorted(pairs[3:]) == sorted(swapped(TEST))


def test_a_data_set_of_ones_own_is_read_by_its_name(tmp_path: Path) -> None:
    class OwnCorpus(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = tfds.features.Translation(languages=("nl", "sv"))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager) -> dict:
            return {"train": [(0, {"nl": "kat", "sv": "katt"})]}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    OwnCorpus(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    # Elsewhere its class is not known, and need not be.
    del tfds.core.registered._DATASET_REGISTRY["own_corpus"]
    data = config(tmp_path, tfds_name="own_corpus", source_language="nl", target_language="sv")
    assert list(read_split(data, "train")) == [("kat", "katt")]


# --- How it is made -----------------------------------------------------------------------------


def archive(path: Path, **texts: bytes) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))


@pytest.fixture
def statmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A web server of the archives that tfds makes WMT14 of, with three lines in each file."""

    def text(name: str) -> bytes:
        return b"".join(f"{name} {i}\n".encode() for i in range(3))

    def segments(name: str) -> bytes:
        return b"".join(f'<seg id="{i}">{name} {i}</seg>\n'.encode() for i in range(3))

    folder = tmp_path / "www"
    folder.mkdir()
    plain = {
        "training-parallel-europarl-v7": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl": "commoncrawl.de-en",
        "training-parallel-nc-v9": "training/news-commentary-v9.de-en",
        "dev": "dev/newstest2013",
    }
    for name, stem in plain.items():
        texts = {f"{stem}.{side}": text(f"{name} {side}") for side in ("de", "en")}
        if name == "dev":
            texts["dev/newstest2014-deen-src.de.sgm"] = segments("2014 de")
            texts["dev/newstest2014-deen-ref.en.sgm"] = segments("2014 en")
        archive(folder / f"{name}.tgz", **texts)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(folder))
    )
    for part in wmt.DATASET_MAP.values():
        here = [f"http://127.0.0.1:{server.server_port}/{url.split('/')[-1]}" for url in part._urls]
        monkeypatch.setattr(part, "_urls", here)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder
    server.shutdown()
    server.server_close()


def test_the_first_use_downloads_unpacks_and_writes_it(
    statmt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = config(tmp_path / "new")
    tensorflow = extractor.tf
    tfds_source.make("wmt14_translate/de-en", data.directory)
    assert files(tmp_path / "new").is_dir()
    expected = [
        (f"training-parallel-{name} en {i}", f"training-parallel-{name} de {i}")
        for name in ("commoncrawl", "europarl-v7", "nc-v9")
        for i in range(3)
    ]
    assert sorted(read_split(data, "train")) == expected
    assert sorted(read_split(data, "test")) == [(f"2014 en {i}", f"2014 de {i}") for i in range(3)]
    output = capsys.readouterr()
    assert output.out == "", "standard output is for results"
    assert "Generating train examples" in output.err
    assert "tensorflow" not in sys.modules
    assert extractor.tf is tensorflow

    shutil.rmtree(statmt)
    shutil.rmtree(tmp_path / "new/downloads")
    assert sorted(read_split(data, "dev")) == [(f"dev en {i}", f"dev de {i}") for i in range(3)]


def test_what_cannot_be_downloaded(statmt: Path, tmp_path: Path) -> None:
    """G05."""
    (statmt / "dev.tgz").unlink()
    with pytest.raises(UserError) as caught:
        read_split(config(tmp_path / "new"), "train")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{files(tmp_path / 'new')}: no such data set")
    assert "make it where there is internet and copy that folder" in message
    assert "dev.tgz" in message
    assert not files(tmp_path / "new").exists()


# --- What a user can get wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tfds_name": "wmt14"}, r"data\.tfds_name is 'wmt14': .*wmt14 not found"),
        ({"tfds_name": "wmt14_translate/xx-en"}, r"data\.tfds_name is .*xx-en not found"),
        ({"tfds_name": "a b"}, r"data\.tfds_name is 'a b': "),
        ({"target_language": "fr"}, r"data\.target_language is 'fr': .*de-en/1\.0\.0 has de, en;"),
        ({"source_language": "cs"}, r"data\.source_language is 'cs': .* has de, en;"),
        ({"train": ("train", "other")}, r"split 'other' of .*Unknown split 'other'"),
        ({"train": ("train[",)}, r"split 'train\[' of "),
    ],
)
def test_what_the_data_set_has_not(directory: Path, changes: dict, message: str) -> None:
    """G05: one line for an unknown name."""
    with pytest.raises(UserError, match=message) as caught:
        read_split(config(directory, **changes), "train")
    assert "\n" not in str(caught.value)


def test_tfds_needs_a_name() -> None:
    with pytest.raises(UserError, match=r"data\.tfds_name is '': .*wmt14_translate/de-en"):
        DataConfig(corpus="tfds")


def missing(folder: Path) -> None:
    next(folder.glob("*train*")).unlink()


def cut(folder: Path) -> None:
    path = next(folder.glob("*train*"))
    path.write_bytes(path.read_bytes()[:1_000])


def without_information(folder: Path) -> None:
    (folder / "dataset_info.json").unlink()


def broken_information(folder: Path) -> None:
    (folder / "dataset_info.json").write_bytes(b"{")


def of_tensorflow(folder: Path) -> None:
    path = folder / "dataset_info.json"
    path.write_bytes(path.read_bytes().replace(b"array_record", b"tfrecord"))


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    make_wmt14(tmp_path, "de", train=[("ja", "yes"), (b"gr\xfcn", "green")])
    with pytest.raises(UserError, match=r"split 'train' of .*: not valid UTF-8: b'gr\\xfcn'"):
        list(read_split(config(tmp_path), "train"))


@pytest.mark.parametrize(
    "damage", [missing, cut, without_information, broken_information, of_tensorflow]
)
def test_a_damaged_data_set(directory: Path, tmp_path: Path, damage) -> None:
    shutil.copytree(directory, tmp_path / "copy")
    damage(files(tmp_path / "copy"))
    with pytest.raises(UserError) as caught:
        list(read_split(config(tmp_path / "copy"), "train"))
    assert "\n" not in str(caught.value)
    assert "delete" in str(caught.value)
    assert str(tmp_path / "copy") in str(caught.value)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be made here"):
        read_split(config(tmp_path / "file"), "train")
