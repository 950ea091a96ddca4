"""Tests of the scores of texts under a language model."""

import math

import numpy as np
import pytest

from tfm.evaluation.language_modeling_metrics import count_words
from tfm.evaluation.language_modeling_metrics import likelihood_scores as measure


def test_likelihood_scores_equal_scores_by_hand():
    nats = np.array([3 * math.log(2), 5 * math.log(2)])
    per_byte, per_character, perplexity, per_word = measure(nats, 4, ["aä", "b"], "whole")
    np.testing.assert_allclose([per_byte.value, per_character.value, perplexity.value], [2, 8 / 3, 4])
    assert per_word.value == pytest.approx(4)  # two words and two ends of lines
    assert (per_byte.digits, per_character.digits) == (4, 4)


def test_perplexity_of_a_diverged_model_is_infinite():
    *_, perplexity, per_word = measure(np.array([1e6]), 1, ["a"], "whole")
    assert perplexity.value == per_word.value == math.inf


PENN_TREEBANK = " no it was n't black monday \n but while the <unk> did n't fall apart \n"
WIKITEXT = " \n = Robert <unk> = \n \n a well @-@ known actor . \n"


@pytest.mark.parametrize(("text", "expected"), [(PENN_TREEBANK, 6 + 8 + 2), (WIKITEXT, 4 + 6 + 4)])
def test_words_are_counted_as_by_scripts_of_the_field(text, expected):
    """The language model of PyTorch's examples reads `line.split() + ["<eos>"]` of each line of a file."""
    lines = text.splitlines(keepends=True)
    assert sum(len([*line.split(), "<eos>"]) for line in lines) == expected
    assert count_words(text) == expected
    assert sum(count_words(line.strip("\n")) for line in lines) == expected  # each line is a document
