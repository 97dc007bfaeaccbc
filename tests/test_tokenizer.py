"""The tokenizer. Ids such as B01 name folders of tests/data."""

import dataclasses
import functools
import io
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
from transformer_jax.data.cldr import build_corpus
from transformer_jax.data.text import clean_line, read_lines
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
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


# --- Both algorithms, two vocabularies, models of others ----------------------------------------


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_equal_input_gives_equal_bytes_in_every_process(tmp_path: Path, algorithm: str) -> None:
    program = (
        "import hashlib, sys\n"
        "from pathlib import Path\n"
        "from transformer_jax.config import TokenizerConfig\n"
        "from transformer_jax.data.text import read_lines\n"
        "from transformer_jax.data.tokenizer import train_tokenizer\n"
        "lines = [line for path in sys.argv[2:] for line in read_lines(Path(path))]\n"
        "config = TokenizerConfig(algorithm=sys.argv[1], vocab_size=350)\n"
        "print(hashlib.sha256(train_tokenizer(lines, config)).hexdigest())\n"
    )
    paths = [DATA / "base/train.en", DATA / "base/train.de"]
    command = [sys.executable, "-c", program, algorithm, *paths]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    config = TokenizerConfig(algorithm=algorithm, vocab_size=350)
    here = Tokenizer(train_tokenizer(base_lines(), config))
    assert here.fingerprint == other
    assert here.algorithm == algorithm


def test_b06_the_largest_size_of_a_unigram_model_is_named_too() -> None:
    config = TokenizerConfig(algorithm="unigram", vocab_size=30_000)
    with pytest.raises(UserError, match="at most 373;"):
        train_tokenizer(base_lines(), config)
    largest = dataclasses.replace(config, vocab_size=373)
    assert Tokenizer(train_tokenizer(base_lines(), largest)).vocab_size == 373
    with pytest.raises(UserError, match="the de side of this corpus gives at most"):
        train_tokenizer(base_lines(), config, "the de side of this corpus")


def test_two_tokenizers_must_fit_each_other(tokenizer: Tokenizer) -> None:
    other = Tokenizer(train_tokenizer(base_lines()[:300], TokenizerConfig(vocab_size=400)), "other")
    shared, separate = Tokenizers(tokenizer, tokenizer), Tokenizers(tokenizer, other)
    assert (shared.shared, separate.shared) == (True, False)
    swapped = Tokenizers(other, tokenizer)
    prints = {one.fingerprint for one in (shared, separate, swapped, Tokenizers(other, other))}
    assert len(prints) == 4 and shared.fingerprint == tokenizer.fingerprint
    small = Tokenizer(train_tokenizer(base_lines(), TokenizerConfig(vocab_size=390)), "small.model")
    with pytest.raises(UserError, match=r"400 pieces, small\.model 390"):
        Tokenizers(tokenizer, small)
    moved = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(base_lines()),
        model_writer=moved,
        model_type="bpe",
        vocab_size=400,
        pad_id=3,
        minloglevel=2,
    )
    with pytest.raises(UserError, match=r"at \(0, 1, 2, 3\).*at \(3, 1, 2, 0\)"):
        Tokenizers(tokenizer, Tokenizer(moved.getvalue()))


# --- Other scripts ------------------------------------------------------------------------------


@functools.cache
def cldr_lines(language: str) -> tuple[str, ...]:
    """Dates, amounts and names as one language writes them."""
    return tuple(clean_line(source) for source, _ in build_corpus(language, "en")["dev"])


HARD_LINES = [
    "你好，世界！「引号」……全角１２３ＡＢＣ",
    "日本語のテキスト。ｶﾀｶﾅ、ヴ、々〆ヶ",
    "مرحبا بالعالم، كَيْفَ حَالُكَ؟ ـــ ١٢٣",
    "\u202bעברית\u202c and \u2067عربي\u2069 \u200eLRM\u200f RLM \u061c",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 ❤\ufe0f 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e007f",
    "한국어 ไทย हिन्दी நமிழ் \U00020000\U0001f9ff",
    "می\u200cخواهم zero\u200bwidth soft\u00adhyphen no\u00a0break",
]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("language", ["zh", "ja", "ar"])
def test_other_scripts_come_back_without_bytes(algorithm: str, language: str) -> None:
    lines = list(cldr_lines(language)) + HARD_LINES
    config = TokenizerConfig(algorithm=algorithm, vocab_size=700)
    tokenizer = Tokenizer(train_tokenizer(lines, config))
    assert round_trip(tokenizer, lines) == lines
    ids = [one for sentence in tokenizer.encode(lines) for one in sentence]
    assert min(ids) >= FIRST_PIECE, "every character has a piece"
    assert len(ids) < sum(map(len, lines)), "and there are pieces of several"


def test_what_no_vocabulary_holds_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Marks of direction, joiners and selectors too, and the reader keeps them."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in HARD_LINES), encoding="utf-8", newline="\n")
    lines = list(read_lines(path))
    assert lines == [unicodedata.normalize("NFC", line) for line in HARD_LINES]
    assert round_trip(tokenizer, lines) == lines
    formats = "\u200b\u200c\u200d\u200e\u200f\u061c\u202b\u202c\u2067\u2069\u00ad\ufe0f"
    assert set(formats) <= set("".join(round_trip(tokenizer, lines)))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_thousands_of_characters_need_as_many_pieces_or_a_coverage(algorithm: str) -> None:
    """With a coverage the rarest are spelled in bytes: few tokens, no character lost."""
    random = np.random.default_rng(0)
    characters = [chr(0x4E00 + i) for i in range(3_000)]
    shares = np.arange(10, 3_010) ** -1.5
    words = random.choice(characters, (2_000, 20), p=shares / shares.sum())
    lines = ["".join(word) for word in words] + ["".join(characters)]
    small = TokenizerConfig(algorithm=algorithm, vocab_size=2_500)
    needed = 260 + 3_000 + 1  # the mark of a space
    with pytest.raises(UserError, match=f"at least {needed}; .*--tokenizer.character-coverage"):
        train_tokenizer(lines, small)
    enough = dataclasses.replace(small, vocab_size=needed)
    whole = Tokenizer(train_tokenizer(lines, enough))
    assert min(min(ids) for ids in whole.encode(lines)) >= FIRST_PIECE
    covered = Tokenizer(train_tokenizer(lines, dataclasses.replace(small, character_coverage=0.98)))
    assert round_trip(covered, lines) == lines
    ids = np.concatenate(covered.encode(lines))
    in_bytes = np.sum(ids < FIRST_PIECE) / 3  # of a Chinese character there are three
    assert 0.01 < in_bytes / sum(map(len, lines)) < 0.021
