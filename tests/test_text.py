"""The reader and the writer of sentence files. Ids such as A01 name folders of tests/data."""

import gzip
import io
import lzma
import os
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.data.text import (
    atomic_writer,
    clean_line,
    find_file,
    read_lines,
    read_pairs,
    read_stream,
    scan,
    scan_pairs,
    write_lines,
    write_stream,
)
from transformer_jax.errors import UserError

DATA = Path(__file__).parent / "data"


def expected_lines(data: bytes) -> list[str]:
    """The documented rule, spelled out on bytes and Unicode categories."""
    raw = data.split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    return [expected_line(one.decode("utf-8")) for one in raw]


def expected_line(line: str) -> str:
    while line.startswith("\N{ZERO WIDTH NO-BREAK SPACE}"):
        line = line[1:]
    if line.endswith("\r"):
        line = line[:-1]
    spaced = [" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in line]
    return unicodedata.normalize("NFC", "".join(spaced))


def pairs_of(folder: str, name: str = "train") -> list[tuple[str, str]]:
    return list(read_pairs(DATA / folder / f"{name}.en", DATA / folder / f"{name}.de"))


@pytest.mark.parametrize(
    ("folder", "count"),
    [
        ("A01_bare_cr", 6),
        ("A03_unicode_breaks", 10),
        ("A04_nul", 5),
        ("A06_one_sided_blank", 8),
        ("A19_crlf", None),
        ("A21_bom", None),
        ("A25_one_huge_line", None),
    ],
)
def test_pair_i_is_line_i_of_both_files(folder: str, count: int | None) -> None:
    """A01, A03, A04, A06, A19, A21, A25: whatever else a reader takes for the end of a line."""
    expected = [
        expected_lines((DATA / folder / f"train.{side}").read_bytes()) for side in ("en", "de")
    ]
    pairs = pairs_of(folder)
    assert pairs == list(zip(*expected, strict=True))
    assert count is None or len(pairs) == count


def test_a01_lone_carriage_return_is_a_space() -> None:
    raw = (DATA / "A01_bare_cr/train.en").read_bytes()
    assert b"\r" in raw
    assert [source for source, _ in pairs_of("A01_bare_cr")] == raw.decode().replace(
        "\r", " "
    ).split("\n")[:-1]


def broken(line: bytes) -> bool:
    """Whether it holds a control character or a separator that does not end it; tabs are free."""
    inner = line.removesuffix(b"\r").decode()
    unlike = {"\t", *map(chr, range(0x80, 0xA0))} - {"\x85"}
    return any(unicodedata.category(c) in ("Cc", "Zl", "Zp") and c not in unlike for c in inner)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("A01_bare_cr", (1, 0)),
        ("A03_unicode_breaks", (4, 4)),
        ("A04_nul", (2, 0)),
        ("A19_crlf", (0, 0)),
        ("base", (0, 0)),
    ],
)
def test_lines_that_others_would_break_are_counted(folder: str, expected: tuple) -> None:
    """A01, A03, A04, A19."""
    paths = [DATA / folder / f"train.{language}" for language in ("en", "de")]
    assert tuple(scan(path).broken for path in paths) == expected
    for path, count in zip(paths, expected, strict=True):
        assert sum(map(broken, path.read_bytes().split(b"\n"))) == count
    assert scan_pairs(*paths).broken == sum(expected)


def test_a04_text_after_nul_survives_and_a_nul_line_is_blank() -> None:
    sources = [source for source, _ in pairs_of("A04_nul")]
    assert sources[1] == "64 c locks and 65 lamps"
    assert sources[3] == " "


def test_a07_blank_lines_are_lines() -> None:
    lines = list(read_lines(DATA / "A07_translate_blank/in.en"))
    assert [bool(line.strip()) for line in lines] == [True, False, True, False, False, True, False]


def test_a10_unequal_counts_are_an_error_before_the_first_pair() -> None:
    paths = DATA / "A10_unequal/train.en", DATA / "A10_unequal/train.de"
    with pytest.raises(UserError) as caught:
        read_pairs(*paths)
    for part in ("20", "17", *map(str, paths)):
        assert part in str(caught.value)


@pytest.mark.parametrize("language", ["en", "de"])
def test_a14_gzip_reads_as_the_plain_file(language: str) -> None:
    packed, plain = DATA / f"A14_gz/train.{language}.gz", DATA / f"base/train.{language}"
    assert list(read_lines(packed)) == expected_lines(plain.read_bytes())
    assert scan(packed).lines == 300


def test_xz_and_packed_files_without_the_ending(tmp_path: Path) -> None:
    for name, packed in (("a.xz", lzma.compress(b"x\ny")), ("a.en", gzip.compress(b"x\ny"))):
        (tmp_path / name).write_bytes(packed)
        assert list(read_lines(tmp_path / name)) == ["x", "y"]
        assert scan(tmp_path / name).lines == 2


def test_a15_truncated_gzip_is_an_error_naming_the_file() -> None:
    path = DATA / "A15_truncated_gz/train.en.gz"
    for read in (scan, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match=r"A15_truncated_gz/train\.en\.gz: a broken or cut"):
            read(path)


@pytest.mark.parametrize(("name", "pack"), [("a.en.gz", gzip.compress), ("a.en.xz", lzma.compress)])
def test_a15_damaged_archives_never_end_normally(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(b"".join(b"line %d\n" % i for i in range(1000)))
    path = tmp_path / name
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    for damaged in (flipped, *(whole[:size] for size in range(0, len(whole), 29))):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=name):
            scan(path)


def test_a19_no_carriage_return_stays() -> None:
    assert b"\r\n" in (DATA / "A19_crlf/train.en").read_bytes()
    assert not any("\r" in side for pair in pairs_of("A19_crlf") for side in pair)


def test_a21_byte_order_marks_are_dropped_in_mid_file_too() -> None:
    sources = [source for source, _ in pairs_of("A21_bom")]
    raw = (DATA / "A21_bom/train.en").read_bytes()
    assert raw.count(b"\xef\xbb\xbf") == 2
    assert sources == raw.replace(b"\xef\xbb\xbf", b"").decode().split("\n")[:-1]


def test_a22_a_file_named_gz_that_is_not_gzip() -> None:
    path = DATA / "A15_truncated_gz/fake.en.gz"
    with pytest.raises(UserError) as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)
    assert "not a gzip file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a23_invalid_utf8_names_file_line_and_byte() -> None:
    path = DATA / "A23_bad_utf8/train.de"
    lines = read_lines(path)
    assert [next(lines) for _ in range(3)] == expected_lines(
        b"\n".join(path.read_bytes().split(b"\n")[:3])
    )
    with pytest.raises(UserError) as caught:
        next(lines)
    assert f"{path}, line 4: not valid UTF-8 (byte 0xfc)" in str(caught.value)


@pytest.mark.parametrize("read", [scan, lambda path: list(read_lines(path))])
def test_files_that_cannot_be_read(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "a.zst").write_bytes(b"x")
    for path in (tmp_path / "missing.en", tmp_path, tmp_path / "a.zst", tmp_path / "a.zst/b"):
        with pytest.raises(UserError, match=path.name):
            read(path)


def test_a_pipe_is_not_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe"):
        scan(tmp_path / "pipe")


def test_read_stream_names_the_stream() -> None:
    assert list(read_stream(io.BytesIO(b"a\r\nb\x0bc\n"), "standard input")) == ["a", "b c"]
    with pytest.raises(UserError, match="standard input, line 2"):
        list(read_stream(io.BytesIO(b"a\n\xff\n"), "standard input"))


def test_find_file_prefers_plain_then_gz_then_xz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for suffix in (".xz", ".gz", ""):
        (tmp_path / f"train.en{suffix}").write_bytes(b"")
        assert find_file("~", "train", "en") == tmp_path / f"train.en{suffix}"
    with pytest.raises(UserError, match=r"train\.de"):
        find_file(str(tmp_path), "train", "de")


def test_clean_line_of_text_from_elsewhere() -> None:
    assert clean_line("c\nd") == "c d"
    assert clean_line("c\r\n") == "c"
    assert clean_line("\ufeffa\ufeffb") == "a\ufeffb"
    assert clean_line("e\u0301 \u212b \ufb01") == "\xe9 \xc5 \ufb01"
    assert clean_line("\t\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029x\r\r") == " " * 10 + "x "
    assert clean_line("a\ud800b") == "a\ufffdb"


BREAKS = "\x00\t\r\n\x0b\x0c\x1c\x1d\x1e\x7f\x85\u2028\u2029\ufeff \u0301e"
texts = st.text(st.one_of(st.sampled_from(BREAKS), st.characters(codec="utf-8")))


@given(texts)
def test_clean_line_is_one_line_and_stable(text: str) -> None:
    line = clean_line(text)
    assert clean_line(line) == line
    assert len(line.splitlines()) <= 1
    assert not any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in line)
    assert unicodedata.is_normalized("NFC", line)


@given(texts)
def test_lines_in_are_lines_out(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "a.en"
    path.write_bytes(text.encode("utf-8"))
    lines = list(read_lines(path))
    assert lines == expected_lines(path.read_bytes())
    raw = path.read_bytes().split(b"\n")
    assert scan(path)[::2] == (len(lines), sum(map(broken, raw)))
    assert write_lines(path, lines) == len(lines)
    assert path.read_bytes() == b"".join(line.encode("utf-8") + b"\n" for line in lines)
    assert list(read_lines(path)) == lines


def test_count_lines_beyond_one_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.en"
    path.write_bytes(b"ab\n" * 700_000 + b"end")
    assert scan(path).lines == 700_001


def test_write_lines_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.de"
    write_lines(path, ["old"])

    def broken() -> Iterator[str]:
        yield "new"
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_lines(path, broken())
    with pytest.raises(ValueError, match="line 2"):
        write_lines(path, ["new", "a\nb"])
    assert path.read_bytes() == b"old\n"
    assert os.listdir(tmp_path) == ["out.de"]


def test_a_stream_gets_a_block_or_nothing_of_it() -> None:
    stream = io.BytesIO()
    write_stream(stream, ["grün", ""])
    assert stream.getvalue() == "grün\n\n".encode()
    with pytest.raises(ValueError, match="line 2"):
        write_stream(stream, ["new", "a\nb"])
    assert stream.getvalue() == "grün\n\n".encode()


def test_write_lines_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file/out", tmp_path / "missing/out", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            write_lines(path, ["a"])


def test_write_lines_keeps_links_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_lines(tmp_path / "link", ["a"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"a\n"

    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_lines(tmp_path / "pipe", ["b"])
        assert os.read(reader, 10) == b"b\n"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_atomic_writer_follows_the_umask(tmp_path: Path) -> None:
    with atomic_writer(tmp_path / "atomic") as file:
        file.write(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
