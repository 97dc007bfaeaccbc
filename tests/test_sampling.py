"""Segmentations drawn at random, against SentencePiece's own and against closed formulas."""

import functools
import hashlib
import itertools
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.config import TokenizerConfig
from transformer_jax.data.cldr import build_corpus
from transformer_jax.data.sampling import Sampler
from transformer_jax.data.text import clean_line, read_lines
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.errors import UserError

TESTS = Path(__file__).parent
BASE = [*read_lines(TESTS / "data/base/train.en"), *read_lines(TESTS / "data/base/train.de")]
NUM_DRAWS = 20_000
# Of two samples of NUM_DRAWS from one distribution of a few dozen outcomes; far below what a
# wrong rate, or a wrong order of merges, gives.
DISTANCE = 0.04

ALGORITHMS = ["bpe", "unigram"]


def train(lines: list[str], **options: object) -> Tokenizer:
    return Tokenizer(train_tokenizer(lines, TokenizerConfig(**options)))


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {name: train(BASE, vocab_size=360, algorithm=name) for name in ALGORITHMS}


@pytest.fixture(params=ALGORITHMS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


@functools.cache
def foreign_lines() -> list[str]:
    """Names and dates in several scripts; none of their letters are in the vocabulary of BASE."""
    pairs = build_corpus("zh", "ar")["dev"][:100]
    return [*map(clean_line, itertools.chain.from_iterable(pairs)), "👩‍👩‍👧 ok", "", " ", "a  b "]


def draws(sampler: Sampler, text: str, key: int = 0) -> Counter:
    return Counter(map(tuple, sampler.encode([text] * NUM_DRAWS, (key,))))


def distance(one: Counter, other: Counter) -> float:
    """Total variation between the distributions of two samples."""
    total_one, total_other = sum(one.values()), sum(other.values())
    keys = one.keys() | other.keys()
    return sum(abs(one[key] / total_one - other[key] / total_other) for key in keys) / 2


def test_a_rate_of_nearly_zero_drops_no_merge(tokenizers: dict[str, Tokenizer]) -> None:
    lines = BASE + foreign_lines()
    assert Sampler(tokenizers["bpe"], 1e-15).encode(lines, (0,)) == tokenizers["bpe"].encode(lines)


@pytest.mark.parametrize("text", ["the clock", "über", "aaaaaaa", "ababab", "z字z", "  a "])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_segmentations_are_distributed_as_those_of_sentencepiece(
    tokenizers: dict[str, Tokenizer], text: str, rate: float
) -> None:
    """Repeated letters too, where pairs of places merge to one and the same piece."""
    for algorithm, lines in {
        "bpe": [*BASE, "a aa aaa aaaa ab abab ba bab"] * 3,
        "unigram": BASE,
    }.items():
        tokenizer = train(lines, vocab_size=360, algorithm=algorithm)
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
        theirs = Counter(
            tuple(processor.encode(text, enable_sampling=True, alpha=rate, nbest_size=-1))
            for _ in range(NUM_DRAWS)
        )
        assert distance(draws(Sampler(tokenizer, rate), text), theirs) < DISTANCE, algorithm


def test_a_unigram_model_is_sampled_by_the_formula(tokenizers: dict[str, Tokenizer]) -> None:
    """P(x)^alpha / sum of P(x')^alpha over every way to cut a word, counted one by one."""
    tokenizer, rate, text = tokenizers["unigram"], 0.4, "leuchtet"
    scores = {one.piece: (i, one.score) for i, one in enumerate(tokenizer.parse().pieces)}
    word = "\u2581" + text
    weights: dict[tuple[int, ...], float] = {}
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        ends = [i for i, cut in enumerate(cuts, start=1) if cut]
        pieces = [word[a:b] for a, b in zip([0, *ends], [*ends, len(word)], strict=True)]
        if all(piece in scores for piece in pieces):
            ids = tuple(scores[piece][0] for piece in pieces)
            weights[ids] = np.exp(rate * sum(scores[piece][1] for piece in pieces))
    assert len(weights) == 20
    expected = Counter({ids: weight / sum(weights.values()) for ids, weight in weights.items()})
    assert distance(draws(Sampler(tokenizer, rate), text), expected) < DISTANCE


def test_a_pair_is_merged_as_often_as_its_rate_says() -> None:
    """Of "ab" there is one merge; of "a" there is the one with its space."""
    tokenizer = train(["ab ab ab a b"] * 9, vocab_size=264)
    found = draws(Sampler(tokenizer, 0.3), "ab")
    whole = tuple(tokenizer.encode(["ab"])[0])
    assert len(whole) == 2  # the space, and the pair
    assert found[whole] / NUM_DRAWS == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_no_text_is_changed(tokenizer: Tokenizer, rate: float) -> None:
    lines = BASE + foreign_lines()
    drawn = Sampler(tokenizer, rate).encode(lines, (7,))
    assert tokenizer.decode(drawn) == lines
    assert drawn != tokenizer.encode(lines)
    assert all(4 <= one < tokenizer.vocab_size for ids in drawn for one in ids)


@given(
    st.lists(st.text(st.characters(exclude_characters="\u2581", codec="utf-8"))),
    st.floats(1e-3, 0.999),
    st.sampled_from(ALGORITHMS),
)
def test_any_clean_text_comes_back(
    tokenizers: dict[str, Tokenizer], texts: list[str], rate: float, algorithm: str
) -> None:
    tokenizer, lines = tokenizers[algorithm], [clean_line(text) for text in texts]
    assert tokenizer.decode(Sampler(tokenizer, rate).encode(lines, (1, 2))) == lines


def test_what_is_drawn_depends_on_key_and_number_alone(tokenizer: Tokenizer) -> None:
    """Not on chunks, neighbours, what was drawn before, or on threads; copies may be pickled."""
    rate, key = 0.2, (3, 1, 0)
    whole = Sampler(tokenizer, rate).encode(BASE, key)
    for size in (1, 7, 100):
        sampler = pickle.loads(pickle.dumps((tokenizer, rate)))
        sampler = Sampler(*sampler)
        starts = reversed(range(0, len(BASE), size))
        parts = {i: sampler.encode(BASE[i : i + size], key, first=i) for i in starts}
        assert [ids for i in sorted(parts) for ids in parts[i]] == whole
    sampler = Sampler(tokenizer, rate)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda i: sampler.encode(BASE[i : i + 10], key, i), range(0, 600, 10))
        assert [ids for part in parts for ids in part] == whole
    changed = ["another line", *BASE[1:]]
    assert sampler.encode(changed, key)[1:] == whole[1:]


def test_another_key_or_number_draws_another_segmentation(tokenizer: Tokenizer) -> None:
    sampler = Sampler(tokenizer, 0.3)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0)]
    drawn = [str(sampler.encode(BASE[:50], key)) for key in keys]
    drawn.append(str(sampler.encode(BASE[:50], keys[0], first=50)))
    assert len(set(drawn)) == len(drawn)
    # One sentence again and again is drawn independently: nearly all of 50 words differ.
    assert len(draws(sampler, " ".join(BASE[:5]))) > NUM_DRAWS / 2


def test_every_process_draws_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "t.model")
    program = (
        "import hashlib, sys\n"
        "from pathlib import Path\n"
        "from transformer_jax.data.sampling import Sampler\n"
        "from transformer_jax.data.text import read_lines\n"
        "from transformer_jax.data.tokenizer import Tokenizer\n"
        "sampler = Sampler(Tokenizer.load(Path(sys.argv[1])), 0.2)\n"
        "ids = sampler.encode(list(read_lines(Path(sys.argv[2]))), (5, 6))\n"
        "print(hashlib.sha256(repr(ids).encode()).hexdigest())\n"
    )
    text = TESTS / "data/base/train.de"
    command = [sys.executable, "-c", program, tmp_path / "t.model", text]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    here = Sampler(tokenizer, 0.2).encode(list(read_lines(text)), (5, 6))
    assert hashlib.sha256(repr(here).encode()).hexdigest() == other


def test_a_run_begun_long_ago_goes_on_with_what_it_drew() -> None:
    """Ids drawn on 2026-11-30; where they change, no cut run ends as it would have."""
    sampler = Sampler(Tokenizer.load(TESTS / "golden/run/tokenizer.model"), 0.2)
    assert sampler.encode(["Friday, 12 May", "Monday"], (0, 3, 1), first=10) == GOLDEN


GOLDEN = [[614, 658, 618, 619, 335, 622, 263, 631, 435], [390, 335]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "bpe"}, "without pieces for bytes"),
        ({"model_type": "char"}, "a char model cannot be sampled"),
        ({"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": "<x>"}, "'<x>'"),
    ],
)
def test_a_foreign_model_that_cannot_be_sampled_is_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(BASE),
        model_prefix=str(tmp_path / "foreign"),
        vocab_size=400,
        pad_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    with pytest.raises(UserError, match=words):
        Sampler(Tokenizer.load(tmp_path / "foreign.model"), 0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_foreign_model_is_sampled_by_its_own_rules(tmp_path: Path, algorithm: str) -> None:
    """Its normalisation, and pieces that go beyond a space."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(BASE),
        model_prefix=str(tmp_path / "foreign"),
        model_type=algorithm,
        vocab_size=450,
        pad_id=3,
        byte_fallback=True,
        split_by_whitespace=False,
        minloglevel=2,
    )
    tokenizer = Tokenizer.load(tmp_path / "foreign.model")
    assert any("\u2581" in one.piece[1:] for one in tokenizer.parse().pieces)
    lines = [*BASE[:100], "  ½ a  b "]
    drawn = Sampler(tokenizer, 0.1).encode(lines, (0,))
    assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(lines))
    assert drawn != tokenizer.encode(lines)
