"""The tokenizer. Ids such as B01 name folders of tests/data."""

import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.config import TokenizerConfig
from transformer_jax.data.text import clean_line, read_lines
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.errors import UserError

DATA = Path(__file__).parent / "data"
# Ids 0 to 3 are special and 4 to 259 are bytes: above are the pieces of the vocabulary proper.
FIRST_PIECE = 260


def base_lines() -> list[str]:
    return [*read_lines(DATA / "base/train.en"), *read_lines(DATA / "base/train.de")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(base_lines(), TokenizerConfig(vocab_size=400)))


def round_trip(tokenizer: Tokenizer, lines: list[str]) -> list[str]:
    return tokenizer.decode(tokenizer.encode(lines))


def test_learns_pieces(tokenizer: Tokenizer) -> None:
    lines = base_lines()
    ids = tokenizer.encode(lines)
    assert round_trip(tokenizer, lines) == lines
    assert tokenizer.vocab_size == 400
    assert sum(map(len, ids)) < sum(map(len, lines)) / 2
    assert all(FIRST_PIECE <= one < 400 for sentence in ids for one in sentence)


@pytest.mark.parametrize("folder", ["B01_control_symbols", "B04_spaces", "B14_emoji", "B16_nfkc"])
def test_lines_come_back_unchanged(tokenizer: Tokenizer, folder: str) -> None:
    """B01, B04, B14, B16: but for what the reader has made of them."""
    raw = (DATA / folder / "in.txt").read_bytes().decode().split("\n")[:-1]
    expected = [unicodedata.normalize("NFC", line.replace("\t", " ")) for line in raw]
    lines = list(read_lines(DATA / folder / "in.txt"))
    assert lines == expected
    assert round_trip(tokenizer, lines) == expected


def test_a19_a21_ends_of_lines_and_byte_order_marks_are_no_text(tmp_path: Path) -> None:
    """The tokenizer and the ids are those of the text without them."""
    for folder, mark in (("A19_crlf", b"\r"), ("A21_bom", b"\xef\xbb\xbf")):
        marked = DATA / folder / "train.en"
        plain = tmp_path / f"{folder}.en"
        plain.write_bytes(marked.read_bytes().replace(mark, b""))
        assert plain.stat().st_size < marked.stat().st_size
        trained = [
            Tokenizer(train_tokenizer(read_lines(path), TokenizerConfig(vocab_size=290)))
            for path in (marked, plain)
        ]
        assert trained[0].fingerprint == trained[1].fingerprint
        pieces = [trained[0].decode([[i]]) for i in range(FIRST_PIECE, 290)]
        assert not any("\r" in text or "\ufeff" in text for piece in pieces for text in piece)
        ids = [trained[0].encode(list(read_lines(path))) for path in (marked, plain)]
        assert ids[0] == ids[1]


def test_b01_text_never_gives_special_ids(tokenizer: Tokenizer) -> None:
    lines = list(read_lines(DATA / "B01_control_symbols/in.txt"))
    assert any("</s>" in line for line in lines)
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    assert not special & {one for ids in tokenizer.encode(lines) for one in ids}


def test_b03_lower_bar_comes_back_as_a_space(tokenizer: Tokenizer) -> None:
    lines = list(read_lines(DATA / "B03_lower_bar/in.txt"))
    assert round_trip(tokenizer, lines) == [line.replace("\u2581", " ") for line in lines]


def test_b06_vocabulary_too_large_names_the_largest_size() -> None:
    lines = list(read_lines(DATA / "B06_tiny_corpus/train.txt"))
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size is 8000") as caught:
        train_tokenizer(lines, TokenizerConfig(vocab_size=8000))
    size = int(str(caught.value).split("at most ")[1].split(";")[0])
    assert "\n" not in str(caught.value)
    assert Tokenizer(train_tokenizer(lines, TokenizerConfig(vocab_size=size))).vocab_size == size
    with pytest.raises(UserError, match=f"at most {size};"):
        train_tokenizer(lines, TokenizerConfig(vocab_size=size + 1))


def test_too_many_characters_for_the_vocabulary() -> None:
    with pytest.raises(UserError, match="at least 292"):
        # 31 letters and the space mark, beside 260.
        letters = "".join(chr(ord("a") + i) for i in range(26)) + "äöüßé"
        train_tokenizer([letters], TokenizerConfig(vocab_size=261))


def test_b08_one_huge_line_is_trained_on() -> None:
    lines = list(read_lines(DATA / "B08_huge_single_line/train.txt"))
    assert len(lines) == 1
    tokenizer = Tokenizer(train_tokenizer(lines, TokenizerConfig(vocab_size=300)))
    assert round_trip(tokenizer, lines) == lines


def test_b08_letters_of_the_long_line_are_in_the_vocabulary() -> None:
    lines = list(read_lines(DATA / "B08_huge_single_line/mixed.txt"))
    tokenizer = Tokenizer(train_tokenizer(lines, TokenizerConfig(vocab_size=300)))
    assert min(tokenizer.encode(["z q"])[0]) >= FIRST_PIECE


@pytest.mark.parametrize(("filler", "size"), [("word ", 266), ("字", 263), ("😀", 263)])
def test_b08_every_character_of_a_long_line_counts(filler: str, size: int) -> None:
    line = filler * 1_000 + "ÿ" + filler * 3_000
    tokenizer = Tokenizer(train_tokenizer([line], TokenizerConfig(vocab_size=size)))
    assert min(tokenizer.encode(["ÿ"])[0]) >= FIRST_PIECE


@pytest.mark.parametrize("lines", [[], ["", " ", "\u3000"]])
def test_b08_no_usable_text_is_an_error(lines: list[str]) -> None:
    with pytest.raises(UserError, match="no text to train the tokenizer on"):
        train_tokenizer(lines, TokenizerConfig(vocab_size=300))


def test_b09_special_ids_are_set_and_read_back(tokenizer: Tokenizer) -> None:
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert ids == (0, 1, 2, 3)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    assert [processor.id_to_piece(i) for i in ids] == ["<pad>", "<s>", "</s>", "<unk>"]


@pytest.mark.parametrize(
    "ids",
    [
        {},  # SentencePiece's own defaults: unk 0, bos 1, eos 2, no pad
        {"unk_id": 0, "pad_id": 1, "eos_id": 2, "bos_id": -1},
        {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": -1},
    ],
)
def test_b09_a_foreign_model_without_a_special_id_is_refused(
    tmp_path: Path, ids: dict[str, int]
) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(base_lines()),
        model_prefix=str(tmp_path / "foreign"),
        model_type="bpe",
        vocab_size=100,
        minloglevel=2,
        **ids,
    )
    with pytest.raises(UserError, match=r"foreign\.model: pad, bos, eos and unk have the ids .*-1"):
        Tokenizer.load(tmp_path / "foreign.model")


def test_b13_rare_letters_come_back_and_are_in_the_vocabulary() -> None:
    lines = list(read_lines(DATA / "B13_rare_letters/train.txt"))
    tokenizer = Tokenizer(train_tokenizer(lines, TokenizerConfig(vocab_size=300)))
    line = "the ßake Ø ţ ŵ"
    assert round_trip(tokenizer, [line]) == [line]
    assert min(tokenizer.encode([line])[0]) >= FIRST_PIECE


def test_b14_bytes_never_show(tokenizer: Tokenizer) -> None:
    lines = list(read_lines(DATA / "B14_emoji/in.txt"))
    assert not any("<0x" in line for line in round_trip(tokenizer, lines))


@given(st.lists(st.text(st.characters(exclude_characters="\u2581", codec="utf-8"))))
def test_any_clean_text_comes_back(tokenizer: Tokenizer, texts: list[str]) -> None:
    lines = [clean_line(text) for text in texts]
    ids = tokenizer.encode(lines)
    assert tokenizer.decode(ids) == lines
    assert all(4 <= one < tokenizer.vocab_size for sentence in ids for one in sentence)


@given(st.lists(st.integers(0, 399)))
def test_any_ids_give_one_line(tokenizer: Tokenizer, ids: list[int]) -> None:
    (line,) = tokenizer.decode([ids])
    assert len(line.splitlines()) <= 1
    assert not any(unicodedata.category(c) == "Cc" for c in line)


def test_decode_drops_special_ids_and_takes_arrays(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["64 clocks"])
    marked = np.array([tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.pad_id])
    assert tokenizer.decode([marked, [tokenizer.unk_id], []]) == ["64 clocks", "", ""]
    assert tokenizer.encode(["", " "])[0] == []
    assert tokenizer.encode([]) == tokenizer.decode([]) == []


def test_a_sample_is_bounded_and_the_same_in_every_process() -> None:
    config = TokenizerConfig(vocab_size=320, max_sentences=100)
    program = (
        "import sys, hashlib\n"
        "from transformer_jax.config import TokenizerConfig\n"
        "from transformer_jax.data.text import read_lines\n"
        "from transformer_jax.data.tokenizer import train_tokenizer\n"
        "from pathlib import Path\n"
        "lines = [*read_lines(Path(sys.argv[1])), *read_lines(Path(sys.argv[2]))]\n"
        "model = train_tokenizer(lines, TokenizerConfig(vocab_size=320, max_sentences=100))\n"
        "print(hashlib.sha256(model).hexdigest())\n"
    )
    command = [sys.executable, "-c", program, DATA / "base/train.en", DATA / "base/train.de"]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert Tokenizer(train_tokenizer(base_lines(), config)).fingerprint == other
    # Taken from both halves: the first 100 lines are English alone, without an umlaut.
    tokenizer = Tokenizer(train_tokenizer(base_lines(), config))
    assert min(tokenizer.encode(["Tür clock"])[0]) >= FIRST_PIECE
    first = Tokenizer(train_tokenizer(base_lines()[:100], config))
    assert first.fingerprint != other


def test_a_sample_of_one_is_one() -> None:
    lines = [f"{letter} {letter}" for letter in "abcdefgh"]
    config = TokenizerConfig(vocab_size=262, max_sentences=1)
    tokenizer = Tokenizer(train_tokenizer(lines, config))
    known = [line for line in lines if min(tokenizer.encode([line])[0]) >= FIRST_PIECE]
    assert len(known) == 1


def test_errors_of_the_sentences_reach_the_caller() -> None:
    def broken() -> Iterator[str]:
        yield from base_lines()
        raise UserError("train.en, line 601: not valid UTF-8")

    with pytest.raises(UserError, match="line 601"):
        train_tokenizer(broken(), TokenizerConfig(vocab_size=300))


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(["a door"]) == tokenizer.encode(["a door"])


def test_broken_model_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"tokenizer\.model: cannot be read"):
        Tokenizer.load(path)
    for content in (b"", b"not a model", b"<html>404</html>\n" * 100):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: "):
            Tokenizer.load(path)
