"""Tests of sampling against the probabilities of all sequences."""

import jax
import numpy as np
import pytest

from tests.references.search_reference import greedy, sample, sequence_probability, sequences
from tests.support.automaton import Sentence, random_table

B, T = 40, 7  # most tests use these sizes so that they share compiled searches
KEY = jax.random.key(0)


@pytest.mark.long
@pytest.mark.parametrize(
    "truncation",
    [{}, {"temperature": 0.5, "top_k": 2}, {"top_p": 0.7}, {"temperature": 2.0, "top_k": 3, "top_p": 0.8}],
)
def test_frequencies_of_samples_match_their_probabilities(truncation):
    table, limit, count = random_table(12, batch=1, sharpness=1.0), 3, 20_000
    hypotheses = sample(table, KEY, samples=count, max_length=limit, **truncation)
    sampled, sentence = [words for _, _, words in sequences(hypotheses)], Sentence(table[0], limit)
    probabilities = {
        words: sequence_probability(sentence, words, **truncation) for words in sentence.outputs()
    }
    np.testing.assert_allclose(sum(probabilities.values()), 1)
    possible = {words: p for words, p in probabilities.items() if p > 0}
    assert set(sampled) <= set(possible)
    statistic = sum((sampled.count(words) - count * p) ** 2 / (count * p) for words, p in possible.items())
    freedom = len(possible) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.long
def test_sampling_at_a_very_low_temperature_equals_greedy_search():
    table = random_table(14, B)
    found, expected = sample(table, KEY, 2, T, temperature=1e-4), greedy(table, T)
    np.testing.assert_array_equal(found.tokens, np.repeat(expected.tokens, 2, axis=1))


@pytest.mark.long
def test_samples_depend_only_on_key_row_and_sample_index():
    table = np.repeat(random_table(15, batch=1, sharpness=0.5), B, axis=0)
    many, fewer = sample(table, KEY, 2, T), sample(table[:9], KEY, 1, T)
    np.testing.assert_array_equal(many.tokens[:9, :1], fewer.tokens)
    assert len({words for _, _, words in sequences(many)}) > B  # samples of equal sentences differ
    assert (many.tokens != sample(table, jax.random.key(1), 2, T).tokens).any()


@pytest.mark.long
def test_rows_with_their_own_keys_are_independent():
    table, keys = random_table(28, batch=6), jax.random.split(jax.random.key(3), 6)
    together, alone = sample(table, keys, 3, 9), sample(table[4:5], keys[4:5], 3, 9)
    np.testing.assert_array_equal(together.tokens[4:5], alone.tokens)
    assert len({words for _, _, words in sequences(together)}) > 6


NAN = float("nan")
OUT_OF_RANGE = [{"temperature": x} for x in (0.0, 1e-40, NAN, float("inf"))]
OUT_OF_RANGE += [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": NAN}]


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_sampling_options_out_of_range_are_errors(option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"{name}.* got .*{value}"):
        sample(random_table(0, batch=1), KEY, samples=1, max_length=2, **option)
