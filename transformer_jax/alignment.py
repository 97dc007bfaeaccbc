"""Which source word a target word comes from, by the weights of the cross-attention."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

SPACE = "\u2581"
"""How a piece writes a space."""


class Alignment(NamedTuple):
    """Weights between the pieces, or the words, of a sentence and of its translation.

    End marks have no row and no column, so that rows sum to less than 1.
    """

    source: list[str]
    target: list[str]
    weights: Float[np.ndarray, "target source"]

    def links(self) -> list[tuple[int, int]]:
        """(source, target), both from 0: for every target the source of the largest weight."""
        if not self.source:
            return []
        return [(int(row.argmax()), target) for target, row in enumerate(self.weights)]

    def pharaoh(self) -> str:
        """The links as `0-0 2-1 1-2`, source first."""
        return " ".join(f"{source}-{target}" for source, target in self.links())

    def by_words(self) -> "Alignment":
        """The same between words, which are what stands between spaces.

        A source word has the sum of its pieces' weights, a target word the mean over its pieces.
        """
        sources, targets = word_numbers(self.source), word_numbers(self.target)
        gather = _indicator(sources)
        average = _indicator(targets).T
        average = average / np.maximum(average.sum(axis=1, keepdims=True), 1)
        return Alignment(
            _words(self.source, sources),
            _words(self.target, targets),
            (average @ self.weights @ gather).astype(np.float32),
        )


def word_numbers(pieces: list[str]) -> list[int]:
    """The word, from 0, that each piece belongs to; -1 for spaces alone."""
    numbers, word, inside = [], -1, False
    for piece in pieces:
        letters = piece.lstrip(SPACE)
        inside = inside and letters == piece
        word += bool(letters) and not inside
        inside = inside or bool(letters)
        numbers.append(word if letters else -1)
    return numbers


def _indicator(numbers: list[int]) -> np.ndarray:
    """[piece, word]: 1 where the piece is of the word."""
    return (np.array(numbers)[:, None] == np.arange(max(numbers, default=-1) + 1)).astype(float)


def _words(pieces: list[str], numbers: list[int]) -> list[str]:
    words = [""] * (max(numbers, default=-1) + 1)
    for piece, number in zip(pieces, numbers, strict=True):
        if number >= 0:
            words[number] += piece.lstrip(SPACE)
    return words


def join(parts: list[Alignment]) -> Alignment:
    """The alignment of a sentence from those of its parts, between which there is no weight."""
    source = [piece for part in parts for piece in part.source]
    target = [piece for part in parts for piece in part.target]
    weights = np.zeros((len(target), len(source)), np.float32)
    row = column = 0
    for part in parts:
        height, width = part.weights.shape
        weights[row : row + height, column : column + width] = part.weights
        row, column = row + height, column + width
    return Alignment(source, target, weights)
