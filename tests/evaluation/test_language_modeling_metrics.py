"""Tests of the scores of texts under a language model."""

import math

import numpy as np

from tfm.evaluation.language_modeling_metrics import likelihood_scores as measure


def test_likelihood_scores_equal_scores_by_hand():
    nats = np.array([3 * math.log(2), 5 * math.log(2)])
    per_byte, per_character, perplexity = measure(nats, 4, ["aä", "b"], "whole")
    np.testing.assert_allclose([per_byte.value, per_character.value, perplexity.value], [2, 8 / 3, 4])
    assert (per_byte.digits, per_character.digits) == (4, 4)


def test_perplexity_of_a_diverged_model_is_infinite():
    *_, perplexity = measure(np.array([1e6]), 1, ["a"], "whole")
    assert perplexity.value == math.inf
