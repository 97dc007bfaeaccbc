"""What is scored has the right name, and what is not whole is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import find_corpus
from wmt14 import make_wmt14

from transformer_jax.config import DataConfig
from transformer_jax.data.text import fingerprint, read_lines, write_lines
from transformer_jax.errors import UserError
from transformer_jax.test_sets import read_files, read_own, read_sacrebleu


def filtered(lines: list[str]) -> list[str]:
    """The 2,737 lines of sacreBLEU's wmt14, in its order."""
    indices = find_corpus("en-de/dev/newstest2014.sacrebleu-wmt14-2737.idx0")
    return [lines[int(line)] for line in read_lines(indices)]


def newstest2014(folder: Path) -> tuple[Path, Path, Path, Path]:
    """Files of all its lines, English and German, and of the filtered ones, of the same name."""
    paths = []
    for part, choose in (("all", list), ("some", filtered)):
        for language in ("en", "de"):
            lines = list(read_lines(find_corpus(f"en-de/dev/newstest2014.{language}")))
            (folder / part).mkdir(exist_ok=True)
            paths.append(folder / part / f"newstest2014.{language}")
            write_lines(paths[-1], choose(lines))
    return tuple(paths)


def test_newstest2014_is_named_by_its_content(tmp_path: Path) -> None:
    """Under any file name, both ways, whatever its spaces and its order, without sources too."""
    all_en, all_de, some_en, some_de = map(str, newstest2014(tmp_path))
    for source, reference, name in (
        (all_en, all_de, "wmt14/full"),
        (all_de, all_en, "wmt14/full"),
        (some_en, some_de, "wmt14"),
        (some_de, some_en, "wmt14"),
        ("", some_de, "wmt14"),
    ):
        test_set = read_files(source, [reference])
        assert test_set.name == f"sacrebleu:{name}"
        assert test_set.doubt(("en", "de")) == ""
    spaced = tmp_path / "mine.txt"
    lines = reversed(list(read_lines(Path(all_de))))
    write_lines(spaced, [f" {line.replace(' ', '  ')}" for line in lines])
    assert read_files("", [str(spaced)]).name == "sacrebleu:wmt14/full"
    french = find_corpus("en-fr/dev/newstest2014.fr")
    assert read_files("", [str(french)]).name == "sacrebleu:wmt14/full"
    with pytest.raises(UserError, match=r"3003 lines but .* 2737"):
        read_files(all_en, [some_de])


@pytest.mark.parametrize("count", [3_003, 2_737, 8])
def test_another_text_of_that_name_is_told(tmp_path: Path, count: int) -> None:
    for language in ("en", "de"):
        write_lines(tmp_path / f"newstest2014.tok.{language}", ["ein Satz"] * count)
    paths = [str(tmp_path / f"newstest2014.tok.{language}") for language in ("en", "de")]
    test_set = read_files(paths[0], paths[1:])
    assert test_set.name == "newstest2014.tok"
    assert f"it has {count} lines" in test_set.doubt(("en", "de"))
    assert test_set.doubt(("en", "ru")) == "", "its true text is not known"


def test_tfds_s_test_split_of_wmt14_is_newstest2014(tmp_path: Path) -> None:
    pairs = [("gut", "good"), ("rot", "red")]
    make_wmt14(tmp_path, "de", train=pairs, validation=pairs, test=pairs)
    data = DataConfig(
        corpus="tfds", directory=str(tmp_path), tfds_name="wmt14_translate/de-en", test="test"
    )
    test_set = read_own(data)
    assert (test_set.name, sorted(test_set.sources)) == ("newstest2014", ["good", "red"])
    assert "it has 2 lines" in test_set.doubt(("en", "de"))


def test_files_are_read_whole_and_named(tmp_path: Path) -> None:
    texts = {"en": ["a b", "c"], "A.de": ["x", "y"], "B.de": ["z", ""]}
    for name, lines in texts.items():
        write_lines(tmp_path / f"news.v1.{name}", lines)
    source, *references = (str(tmp_path / f"news.v1.{name}") for name in texts)
    test_set = read_files(source, references)
    assert test_set.name == "news.v1" and test_set.sources == ["a b", "c"]
    assert list(test_set.references.values()) == [["x", "y"], ["z", ""]]
    assert test_set.fingerprint == fingerprint(["a b", "c", "x", "y", "z", ""])
    assert test_set.fingerprint != read_files(source, references[:1]).fingerprint
    with pytest.raises(UserError, match="twice"):
        read_files(source, [references[0], references[0]])
    write_lines(tmp_path / "long.de", ["x", "y", "z"])
    with pytest.raises(UserError, match=r"news\.v1\.en has 2 lines but .*long\.de has 3"):
        read_files(source, [references[0], str(tmp_path / "long.de")])
    (tmp_path / "none.de").write_bytes(b"")
    with pytest.raises(UserError, match="no sentences"):
        read_files("", [str(tmp_path / "none.de")])


# In a process of its own: sacreBLEU reads where its cache is when it is imported.
READ = """
from transformer_jax.errors import UserError
from transformer_jax.test_sets import read_sacrebleu
try:
    test_set = read_sacrebleu({name!r}, ("en", "de"), print)
    print(test_set.name, len(test_set.sources), list(test_set.references))
except UserError as error:
    print("UserError", error)
"""


def read_in_cache(cache: Path, name: str) -> list[str]:
    # The download goes to a port where nothing listens.
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return subprocess.run(
        [sys.executable, "-c", READ.format(name=name)],
        env=os.environ | proxies | {"SACREBLEU": str(cache)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


def test_a_set_of_sacrebleu_that_cannot_be_downloaded_is_told_with_its_place(
    tmp_path: Path,
) -> None:
    said, error = read_in_cache(tmp_path, "sacrebleu:wmt14/full")
    assert said == f"downloading sacrebleu:wmt14/full into {tmp_path}/wmt14/full"
    assert error.startswith(
        f"UserError sacrebleu:wmt14/full is not in sacreBLEU's cache {tmp_path}"
    )


@pytest.mark.parametrize(("name", "size"), [("wmt14/full", 3_003), ("wmt14", 2_737)])
def test_a_set_in_sacrebleus_cache_is_read_and_counted(
    tmp_path: Path, name: str, size: int
) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    stem = folder / f"{name.replace('/', '_')}.en-de"
    for field in ("src", "ref", "docid", "genre", "origlang"):
        write_lines(Path(f"{stem}.{field}"), ["a line"] * size)
    assert read_in_cache(tmp_path, f"sacrebleu:{name}") == [
        f"sacrebleu:{name} {size} ['{stem.name}.ref']"
    ]
    for field in ("src", "ref"):
        write_lines(Path(f"{stem}.{field}"), ["a line"] * (size - 1))
    (error,) = read_in_cache(tmp_path, f"sacrebleu:{name}")
    assert f"must have {size} lines" in error and f"has {size - 1}" in error


def test_sets_and_languages_that_sacrebleu_lacks_are_told() -> None:
    with pytest.raises(UserError, match="no such test set"):
        read_sacrebleu("sacrebleu:wmt14/half", ("en", "de"), print)
    with pytest.raises(UserError, match="no languages 'en-sv'; it has cs-en, de-en"):
        read_sacrebleu("sacrebleu:wmt14/full", ("en", "sv"), print)
