"""Segmentations drawn at random: BPE dropout, and subword regularisation of unigram models.

A model that sees a sentence in other pieces in every epoch learns more of a small corpus. What is
drawn depends on a key and on the sentence's number alone, never on the process, on the sentences
beside it, or on the parts that a corpus is worked off in. SentencePiece draws from the same
distributions, but each of its processes draws other segmentations, whatever the seed.
"""

import math
import random
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

import sentencepiece

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError

_SPACE = "\u2581"
_CACHED_WORDS = 2**17
# SentencePiece's own log-probability of an unknown character: this much below the rarest piece.
_UNKNOWN_PENALTY = 10.0


class Sampler:
    """Encodes sentences as `Tokenizer.encode` does, each time into other pieces."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        """`rate` is `tokenizer.sampling_rate`, above 0 and below 1.

        Raises UserError for a foreign model with pieces that this does not know.
        """
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
        method = {"bpe": _BpeDropout, "unigram": _UnigramSampling}.get(tokenizer.algorithm)
        if method is None:
            raise UserError(f"{tokenizer.name}: a {tokenizer.algorithm} model cannot be sampled")
        vocabulary = _Vocabulary(tokenizer)
        self._draw = method(vocabulary, rate).draw
        # No piece goes beyond a space, so words are drawn one by one, and known ones are cached.
        crossed = any(_SPACE in piece[1:] for piece in vocabulary.ids)
        self._words = re.compile(".+" if crossed else f"{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+")

    def encode(
        self, sentences: Sequence[str], key: tuple[int, ...], first: int = 0
    ) -> list[list[int]]:
        """The ids of each sentence, without an end mark.

        Those of the i-th depend on `key`, such as (seed, epoch, side), on its number `first` + i,
        and on its text.
        """
        texts = self._processor.normalize(list(sentences))
        return [
            self._draw(self._words.findall(text), random.Random(repr((*key, number))))
            for number, text in enumerate(texts, start=first)
        ]


class _Vocabulary:
    """The pieces of a model, and the bytes that other characters are spelled in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids: dict[str, int] = {}
        self.scores: dict[str, float] = {}
        self._bytes: list[int] = []
        for one, piece in enumerate(tokenizer.parse().pieces):
            if piece.type == piece.NORMAL:
                self.ids[piece.piece], self.scores[piece.piece] = one, piece.score
            elif piece.type == piece.BYTE:
                self._bytes.append(one)
            elif piece.type not in (piece.CONTROL, piece.UNKNOWN):
                kind = f"the piece {piece.piece!r} of a user's own or no use"
                raise UserError(f"{tokenizer.name}: with {kind} it cannot be sampled")
        if len(self._bytes) != 256:
            raise UserError(f"{tokenizer.name}: without pieces for bytes it cannot be sampled")

    def spell(self, symbol: str) -> tuple[int, ...]:
        """The id of a piece, or those of the bytes of a character that is none."""
        if symbol in self.ids:
            return (self.ids[symbol],)
        return tuple(self._bytes[byte] for byte in symbol.encode())


class _Coins:
    """Tosses of a coin that says "drop" at a rate, of which many can be made at once."""

    def __init__(self, rate: float, generator: random.Random) -> None:
        self._scale = 1 / math.log1p(-rate)
        self._random = generator.random
        self.kept = self._gap()
        """Tosses until the next "drop"."""

    def drop(self) -> bool:
        if self.kept:
            self.kept -= 1
            return False
        self.kept = self._gap()
        return True

    def _gap(self) -> int:
        return int(math.log(1 - self._random()) * self._scale)


_Pair = tuple[float, int, int, str]
"""The rank of a merge, the places of its two symbols, and the piece that they make."""


class _BpeDropout:
    """Each merge that could be made next is left out at a rate (Provilkov et al., 2020).

    As in SentencePiece, a merge that was left out comes up again only if a neighbour has changed.
    """

    def __init__(self, vocabulary: _Vocabulary, rate: float) -> None:
        self._vocabulary = vocabulary
        self._ranks = {piece: -score for piece, score in vocabulary.scores.items()}
        self._rate = rate
        self._first_pairs = lru_cache(_CACHED_WORDS)(self._find_pairs)
        self._whole = lru_cache(_CACHED_WORDS)(lambda word: self._merge(word, lambda: False))

    def draw(self, words: Sequence[str], generator: random.Random) -> list[int]:
        coins = _Coins(self._rate, generator)
        ids: list[int] = []
        for word in words:
            tosses, whole = self._whole(word)
            if tosses <= coins.kept:
                coins.kept -= tosses
                ids += whole
            else:
                ids += self._merge(word, coins.drop)[1]
        return ids

    def _merge(self, word: str, drop: Callable[[], bool]) -> tuple[int, list[int]]:
        """How often `drop` was asked, and the ids: of all pairs the best is merged, leftmost first.

        A symbol stands at the place of its first character; "" is where one has been merged away.
        """
        symbols = list(word)
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        pairs = self._first_pairs(word).copy()
        ranks = self._ranks
        tosses = 0
        while pairs:
            _, left, right, piece = heappop(pairs)
            parts = symbols[left], symbols[right]
            if not all(parts) or parts[0] + parts[1] != piece:
                continue  # one of them has been merged with another
            tosses += 1
            if drop():
                continue
            symbols[left], symbols[right] = piece, ""
            following = after[left] = after[right]
            if following < len(word):
                before[following] = left
                longer = piece + symbols[following]
                if longer in ranks:
                    heappush(pairs, (ranks[longer], left, following, longer))
            preceding = before[left]
            if preceding >= 0:
                longer = symbols[preceding] + piece
                if longer in ranks:
                    heappush(pairs, (ranks[longer], preceding, left, longer))
        spell = self._vocabulary.spell
        return tosses, [one for symbol in symbols if symbol for one in spell(symbol)]

    def _find_pairs(self, word: str) -> list[_Pair]:
        """The pairs of characters that are pieces, as a heap."""
        pieces = ((left, word[left : left + 2]) for left in range(len(word) - 1))
        return sorted(
            (self._ranks[piece], left, left + 1, piece)
            for left, piece in pieces
            if piece in self._ranks
        )


class _Choices(NamedTuple):
    """The pieces that can end at one place of a word."""

    bounds: list[float]
    """What a number from 0 to 1 is compared with to choose one of them."""
    pieces: list[tuple[int, tuple[int, ...]]]
    """Where each begins, and its ids."""


class _UnigramSampling:
    """A segmentation comes up as often as its probability to the power of a rate says (Kudo, 2018).

    All segmentations count, by forward filtering and backward sampling.
    """

    def __init__(self, vocabulary: _Vocabulary, rate: float) -> None:
        self._vocabulary = vocabulary
        self._weights = {piece: rate * score for piece, score in vocabulary.scores.items()}
        self._unknown = rate * (min(vocabulary.scores.values()) - _UNKNOWN_PENALTY)
        self._prefixes = {piece[:end] for piece in vocabulary.ids for end in range(1, len(piece))}
        self._choices = lru_cache(_CACHED_WORDS)(self._filter)

    def draw(self, words: Sequence[str], generator: random.Random) -> list[int]:
        ids: list[int] = []
        for word in words:
            choices = self._choices(word)
            end, drawn = len(word), []
            while end > 0:
                bounds, pieces = choices[end]
                end, spelled = pieces[bisect(bounds, generator.random()) if bounds else 0]
                drawn.append(spelled)
            ids += [one for spelled in reversed(drawn) for one in spelled]
        return ids

    def _filter(self, word: str) -> list[_Choices]:
        """The pieces that can end at every place of a word."""
        totals = [0.0]
        """The log of the sum of the weights of all segmentations up to a place."""
        ending: list[list[tuple[float, int]]] = [[] for _ in range(len(word) + 1)]
        choices = [_Choices([], [])]
        for start in range(len(word)):
            for end in range(start + 1, len(word) + 1):
                piece = word[start:end]
                weight = self._weights.get(piece)
                if weight is None and end == start + 1:
                    weight = self._unknown
                if weight is not None:
                    ending[end].append((totals[start] + weight, start))
                if piece not in self._prefixes:
                    break
            # All that ends one place further has been found now.
            total, shares = _shares([weight for weight, _ in ending[start + 1]])
            totals.append(total)
            begins = [begin for _, begin in ending[start + 1]]
            spelled = [self._vocabulary.spell(word[begin : start + 1]) for begin in begins]
            pieces = list(zip(begins, spelled, strict=True))
            choices.append(_Choices(shares[:-1], pieces))
        return choices


def _shares(weights: list[float]) -> tuple[float, list[float]]:
    """The log of a sum of exponentials, and the running sum of their shares of it."""
    top = max(weights)
    exponentials = [math.exp(weight - top) for weight in weights]
    total = sum(exponentials)
    return top + math.log(total), [share / total for share in accumulate(exponentials)]
