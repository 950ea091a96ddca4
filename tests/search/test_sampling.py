"""Sampling against the probabilities of every sequence."""

import numpy as np
import pytest

from tests.references.search_reference import (
    every_sequence,
    greedy,
    log_probability,
    make_table,
    sample,
    sequence_probability,
    sequences,
)

TRUNCATION = {"temperature": 3.0, "top_k": 3, "top_p": 0.9}
B, T = 40, 7  # of most tests, so that they share compiled searches
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


@pytest.mark.long
@pytest.mark.parametrize(
    "truncation",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
        {"temperature": 0.5, "top_k": 2, "top_p": 1.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.7},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.8},
    ],
)
def test_sample_frequencies_equal_probabilities(truncation):
    table, limit, count = make_table(12, batch=1, sharpness=1.0), 3, 20_000
    sampled = [
        words for _, _, words in sequences(sample(table, 0, samples=count, max_length=limit, **truncation))
    ]
    probabilities = {
        words: sequence_probability(table[0], words, limit, **truncation) for words in every_sequence(limit)
    }
    np.testing.assert_allclose(sum(probabilities.values()), 1)
    possible = {words: p for words, p in probabilities.items() if p > 0}
    assert set(sampled) <= set(possible)
    statistic = sum((sampled.count(words) - count * p) ** 2 / (count * p) for words, p in possible.items())
    freedom = len(possible) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.long
def test_sample_scores_ignore_truncation():
    table = make_table(13, B)
    hypotheses = sample(table, 0, 2, T, limits=LIMITS, **TRUNCATION)
    for row, score, words in sequences(hypotheses):
        np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("truncation", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_narrowest_sampling_is_greedy_search(truncation):
    table = make_table(14, B)
    if "temperature" not in truncation:  # which breaks no ties
        table[::2] = np.abs(table[::2]).round()
    sampled, expected = sample(table, 0, 2, T, limits=LIMITS, **truncation), greedy(table, T, limits=LIMITS)
    np.testing.assert_array_equal(sampled.tokens, np.repeat(expected.tokens, 2, axis=1))
    np.testing.assert_array_equal(sampled.lengths, np.repeat(expected.lengths, 2, axis=1))


@pytest.mark.long
def test_samples_depend_on_row_and_number_alone():
    table, limits = np.repeat(make_table(15, batch=1, sharpness=0.5), B, axis=0), np.full(B, T)
    many = sample(table, 0, 2, T, limits=limits)
    fewer = sample(table[:9], 0, 1, T, limits=limits[:9])
    np.testing.assert_array_equal(many.tokens[:9, :1], fewer.tokens)
    assert len({words for _, _, words in sequences(many)}) > B  # of 2 B, for equal sentences
    assert (many.tokens != sample(table, 1, 2, T, limits=limits).tokens).any()


NAN = float("nan")
OUT_OF_RANGE = [{"temperature": x} for x in (0.0, 1e-40, NAN, float("inf"))]
OUT_OF_RANGE += [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": NAN}]


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_sampling_options_have_ranges(option):
    with pytest.raises(ValueError, match="expected temperature at least 1e-06"):
        sample(make_table(0, batch=1), 0, samples=1, max_length=2, **option)


@pytest.mark.parametrize("truncation", [{}, TRUNCATION])
def test_no_hypothesis_where_all_is_ruled_out(truncation):
    table = make_table(16, B, ruled_out=0.6)
    for hypotheses in (greedy(table, T, limits=LIMITS), sample(table, 0, 2, T, limits=LIMITS, **truncation)):
        impossible = np.isneginf(hypotheses.scores)
        assert 0 < impossible.sum() < impossible.size
        assert (hypotheses.lengths[impossible] == 0).all()
        assert (hypotheses.tokens[impossible] == 0).all()
        for row, score, words in sequences(hypotheses):
            if words:
                np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5, atol=1e-6)
            else:
                assert score == -np.inf
