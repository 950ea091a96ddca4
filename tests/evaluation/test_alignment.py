"""Tests of word alignments from attention, their format and their error rate."""

import numpy as np
import pytest

from tfm.errors import UserError
from tfm.evaluation.alignment import align_words, alignment_error_rate, from_pharaoh, to_pharaoh


def test_words_sum_the_attention_of_their_source_pieces():
    attention = np.array([[0.4, 0.3, 0.3, 0.0], [0.0, 0.1, 0.1, 0.8], [0.9, 0.0, 0.1, 0.0]])
    # Source pieces 1 and 2 form one word. The third target row and the fourth source column are EOS.
    assert align_words(attention, [0, 1, 1], [0, 1]) == {(1, 0), (1, 1)}
    assert align_words(attention, [0, 1, 2], [0, 1]) == {(0, 0), (1, 1)}
    # The target pieces of a word are averaged.
    assert align_words(np.array([[0.9, 0.1], [0.2, 0.8], [0.0, 1.0]]), [0, 1], [0, 0, 0]) == {(1, 0)}
    assert align_words(attention, [], [0]) == set()


def test_words_of_pieces_may_be_tuples():
    attention = np.array([[0.4, 0.3, 0.3], [0.0, 0.1, 0.9]])
    assert align_words(attention, (0, 1, 1), (0, 1)) == align_words(attention, [0, 1, 1], [0, 1])
    assert align_words(attention, (), (0,)) == set()


def test_pharaoh_format_is_reversible():
    pairs = {(0, 0), (10, 2), (1, 2)}
    assert to_pharaoh(pairs) == "0-0 1-2 10-2"
    assert from_pharaoh(to_pharaoh(pairs)) == pairs
    assert from_pharaoh("") == set()


@pytest.mark.parametrize("text", ["0", "0-1-2", "a-1", "0:1", "-1-2", "²-0", "0-²", f"{'9' * 5000}-0"])
def test_invalid_alignment_is_an_error(text):
    with pytest.raises(UserError, match="0-0 1-2"):
        from_pharaoh(text)


def test_alignment_error_rate_of_a_corpus_computed_by_hand():
    true = [{(0, 0), (1, 1)}, {(0, 0)}, set()]
    assert alignment_error_rate(true, true) == 0
    assert alignment_error_rate([set()] * 3, true) == 1
    found = [{(0, 0), (1, 0)}, {(0, 0), (0, 1)}, {(5, 5)}]
    assert alignment_error_rate(found, true) == pytest.approx(1 - 2 * 2 / (4 + 3))
    assert alignment_error_rate([], []) == 0
