"""From weights between pieces to links between words, worked out by hand."""

import numpy as np

from transformer_jax.alignment import Alignment, join, word_numbers

BY_PIECES = Alignment(
    ["▁a", "▁gr", "een", "▁tree"],
    ["▁gr", "ün", "er", "▁Baum"],
    np.array(
        [
            [0.4, 0.3, 0.2, 0.1],
            [0.4, 0.25, 0.25, 0.1],
            [0.1, 0.5, 0.2, 0.0],
            [0.0, 0.3, 0.3, 0.35],
        ],
        np.float32,
    ),
)


def test_each_target_piece_is_linked_to_its_strongest_source_piece():
    assert BY_PIECES.pharaoh() == "0-0 0-1 1-2 3-3"


def test_words_have_the_sum_over_source_and_the_mean_over_target_pieces():
    words = BY_PIECES.by_words()
    assert (words.source, words.target) == (["a", "green", "tree"], ["grüner", "Baum"])
    np.testing.assert_allclose(
        words.weights, [[0.3, 1.7 / 3, 0.2 / 3], [0.0, 0.6, 0.35]], atol=1e-6
    )
    # No piece of "green" is the strongest for "Baum", but the word is.
    assert words.links() == [(1, 0), (1, 1)]


def test_words_are_what_stands_between_spaces():
    pieces = ["▁", "8", "7", "▁", "▁", "%", "▁▁x", "<0xE2>", "▁"]
    assert word_numbers(pieces) == [-1, 0, 0, -1, -1, 1, 2, 2, -1]
    assert word_numbers(["un", "ter", "▁"]) == [0, 0, -1]
    assert word_numbers([]) == []


def test_parts_have_no_weight_between_them():
    both = join([BY_PIECES, Alignment(["▁x"], ["▁y", "z"], np.ones((2, 1), np.float32))])
    assert both.weights.shape == (6, 5)
    assert both.pharaoh() == "0-0 0-1 1-2 3-3 4-4 4-5"
    assert both.weights[:4, 4].sum() == both.weights[4:, :4].sum() == 0
    assert both.by_words().target == ["grüner", "Baum", "yz"]


def test_of_nothing_there_is_no_link():
    empty = join([])
    assert empty.pharaoh() == empty.by_words().pharaoh() == ""
    assert Alignment([], ["▁a"], np.zeros((1, 0), np.float32)).by_words().links() == []
