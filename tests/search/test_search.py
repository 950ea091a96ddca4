"""Search against brute force over every sequence, and against a plain NumPy beam search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.search_reference import (
    BOS,
    EOS,
    CountingStep,
    V,
    assert_found,
    beam,
    every_sequence,
    greedy,
    log_probability,
    make_table,
    penalized,
    reference_beam,
    reference_greedy,
    reference_log_probabilities,
    reference_logits,
    sample,
    sequence_probability,
    sequences,
)
from tfm import search

ALPHAS = (0.0, 0.6, 1.5, -0.5)
CUTS = {"temperature": 3.0, "top_k": 3, "top_p": 0.9}
B, T = 40, 7  # of most tests, so that they share compiled searches
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


# Beam search.


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, -1.0])
def test_length_penalty_is_equation_14(alpha):
    assert search.length_penalty(1, alpha) == 1.0
    penalties = search.length_penalty(np.array([7, 13, 19]), alpha)
    np.testing.assert_allclose(penalties, [2.0**alpha, 3.0**alpha, 4.0**alpha])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_that_holds_every_sequence_finds_and_orders_them_all(alpha):
    table, limits = make_table(0, batch=3), (4, 3, 1)
    hypotheses = beam(table, alpha, beam_size=len(every_sequence(4)), max_length=4, limits=jnp.array(limits))
    for row, limit in enumerate(limits):
        scored = [
            (penalized(log_probability(table[row], words), len(words), alpha), words)
            for words in every_sequence(limit)
        ]
        assert_found(hypotheses, row, sorted(scored, reverse=True))


@pytest.mark.parametrize(("width", "n_best"), [(1, 1), (2, 2), (3, 1), (4, 3), (6, 6)])
@pytest.mark.parametrize("ruled_out", [0.0, 0.4])
def test_a_narrow_beam_finds_what_a_plain_beam_search_without_early_stop_finds(width, n_best, ruled_out):
    table = make_table(1, B, ruled_out=ruled_out)
    for alpha in ALPHAS:
        hypotheses = beam(table, alpha, width, T, n_best=n_best, limits=LIMITS)
        assert hypotheses.tokens.shape == (B, n_best, T)
        for row, limit in enumerate(LIMITS):
            expected, _ = reference_beam(table[row], width, n_best, alpha, limit)
            assert_found(hypotheses, row, expected)


@pytest.mark.parametrize("n_best", [3, 1])
def test_the_beam_stops_exactly_when_no_live_hypothesis_can_win(n_best):
    table, step, needed = make_table(3, batch=12), CountingStep(), {}
    for alpha, row in itertools.product(ALPHAS, range(len(table))):
        beam(table[row : row + 1], alpha, 3, 20, n_best=n_best, limits=np.array([9]), step=step)
        needed[alpha, row] = reference_beam(table[row], 3, n_best, alpha, limit=9)[1]
        assert step.count() == needed[alpha, row]
    assert len(set(needed.values())) > 3  # or little was tested


def test_every_hypothesis_is_finished_distinct_and_no_better_than_the_best_sequence():
    table = make_table(4, B)
    hypotheses = beam(table, 0.6, 4, T, n_best=3, limits=LIMITS)
    best = [
        max(penalized(log_probability(one, words), len(words), 0.6) for words in every_sequence(limit))
        for one, limit in zip(table[:15], LIMITS, strict=False)
    ]
    found = [(row, score, words) for row, score, words in sequences(hypotheses) if words]
    assert len({(row, words) for row, _, words in found}) == len(found) > 2 * B
    assert (np.sort(hypotheses.scores)[:, ::-1] == hypotheses.scores).all()
    for row, score, words in found:
        assert words.index(EOS) == len(words) - 1
        if row < len(best):
            assert score <= best[row] + 1e-5


def test_zeros_follow_eos_and_limits_hold():
    table, limits = make_table(5, B, sharpness=0.1), np.maximum(LIMITS, 3)
    found = (
        beam(table, 2.0, 4, T, n_best=3, limits=limits),
        greedy(table, T, limits=limits),
        sample(table, 0, 2, T, limits=limits),
    )
    for hypotheses in found:
        tokens, scores, lengths = hypotheses
        assert (tokens.dtype, scores.dtype, lengths.dtype) == (np.int32, np.float32, np.int32)
        assert (lengths <= limits[:, None]).all()
        ended = np.take_along_axis(tokens, lengths[..., None] - 1, axis=-1)
        assert (ended == EOS).all()
        assert (tokens[np.arange(T) >= lengths[..., None]] == 0).all()


def test_a_limit_beyond_max_length_is_max_length():
    table = make_table(5, B)
    beyond = beam(table, 0.6, 4, T, n_best=3, limits=np.full(B, 99))
    jax.tree.map(np.testing.assert_array_equal, beyond, beam(table, 0.6, 4, T, n_best=3))


def test_a_sentence_is_searched_as_if_it_were_alone():
    table = make_table(6, B)
    together = beam(table, 0.6, 4, T, n_best=3, limits=LIMITS)
    for row in range(B):
        one = slice(row, row + 1)
        alone = beam(table[one], 0.6, 4, T, n_best=3, limits=LIMITS[one])
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


def test_logits_of_low_precision_are_scored_in_float32():
    table = make_table(8, B).astype(jnp.bfloat16)
    hypotheses = beam(table, 0.0, 4, T, n_best=3)
    for row, score, words in sequences(hypotheses):
        expected = log_probability(table[row].astype(np.float32), words)
        np.testing.assert_allclose(score, expected, rtol=1e-5)


@pytest.mark.parametrize(("beam_size", "n_best"), [(0, None), (2, 3), (2, 0)])
def test_more_hypotheses_than_the_beam_holds_is_an_error(beam_size, n_best):
    with pytest.raises(ValueError, match="1 <= n_best <= beam_size"):
        beam(make_table(0, batch=1), 0.6, beam_size, max_length=3, n_best=n_best)


# Greedy search.


def test_greedy_search_takes_the_most_probable_token():
    table = make_table(9, B)
    for alpha in ALPHAS:
        hypotheses = greedy(table, T, limits=LIMITS, alpha=alpha)
        for row, limit in enumerate(LIMITS):
            words = reference_greedy(table[row], limit)
            score = penalized(log_probability(table[row], words), len(words), alpha)
            assert_found(hypotheses, row, [(score, words)])


def test_a_beam_of_one_is_greedy_search_but_for_an_eos_that_comes_second():
    table = make_table(10, B)
    hypotheses = beam(table, 0.0, 1, T, n_best=1, limits=LIMITS)
    greedily = greedy(table, T, limits=LIMITS)
    assert (hypotheses.scores >= greedily.scores - 1e-6).all()
    same = (hypotheses.tokens == greedily.tokens).all(-1)[:, 0]
    assert B / 2 < same.sum() < B
    assert (hypotheses.scores[~same] > greedily.scores[~same]).all()


def test_greedy_search_and_samples_stop_when_all_rows_are_finished():
    table, step = make_table(11, batch=4), CountingStep()
    greedy(table, max_length=30, step=step)
    assert step.count() == max(len(reference_greedy(one, 30)) for one in table)
    hypotheses = sample(table, 0, samples=2, max_length=30, step=step)
    assert step.count() == hypotheses.lengths.max() < 30
    greedy(np.full_like(table, -np.inf), max_length=30, step=step)
    assert step.count() == 1


def test_eos_may_be_token_0():
    logits = jnp.array([[[9.0, 0, 0, 0]], [[0, 0, 9.0, 0]]])  # [B, 1, V], the same at every place
    options = {"max_length": 3, "bos_id": BOS, "eos_id": 0}
    found = search.greedy_search(lambda _, state, __: (state, state), logits, **options)
    assert found.lengths.tolist() == [[1], [3]]


# Sampling.


@pytest.mark.parametrize(
    "cuts",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
        {"temperature": 0.5, "top_k": 2, "top_p": 1.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.7},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.8},
    ],
)
def test_samples_are_as_frequent_as_they_are_probable(cuts):
    table, limit, count = make_table(12, batch=1, sharpness=1.0), 3, 20_000
    drawn = [words for _, _, words in sequences(sample(table, 0, samples=count, max_length=limit, **cuts))]
    probabilities = {
        words: sequence_probability(table[0], words, limit, **cuts) for words in every_sequence(limit)
    }
    np.testing.assert_allclose(sum(probabilities.values()), 1)
    possible = {words: p for words, p in probabilities.items() if p > 0}
    assert set(drawn) <= set(possible)
    statistic = sum((drawn.count(words) - count * p) ** 2 / (count * p) for words, p in possible.items())
    freedom = len(possible) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_samples_are_scored_by_the_model_before_temperature_and_cuts():
    table = make_table(13, B)
    hypotheses = sample(table, 0, 2, T, limits=LIMITS, **CUTS)
    for row, score, words in sequences(hypotheses):
        np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5)


@pytest.mark.parametrize("cuts", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_the_narrowest_sampling_is_greedy_search(cuts):
    table = make_table(14, B)
    if "temperature" not in cuts:  # which breaks no ties
        table[::2] = np.abs(table[::2]).round()
    drawn, expected = sample(table, 0, 2, T, limits=LIMITS, **cuts), greedy(table, T, limits=LIMITS)
    np.testing.assert_array_equal(drawn.tokens, np.repeat(expected.tokens, 2, axis=1))
    np.testing.assert_array_equal(drawn.lengths, np.repeat(expected.lengths, 2, axis=1))


def test_a_sample_depends_on_its_row_and_number_alone():
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
def test_an_option_of_sampling_out_of_range_is_an_error(option):
    with pytest.raises(ValueError, match="expected temperature at least 1e-06"):
        sample(make_table(0, batch=1), 0, samples=1, max_length=2, **option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos_id": 5}, "eos_id must be a token of the logits, from 0 to 4, got 5"),
        ({"eos_id": -1}, "eos_id must be a token"),
        ({"bos_id": 5}, "bos_id must be a token"),
        ({"length_penalty": NAN}, "length_penalty must leave .* a float32, got nan for up to 4 tokens"),
        ({"length_penalty": 1e308}, "length_penalty must leave"),
        ({"constraints": search.Constraints(forbidden=(-1,))}, "forbidden must be ids from 0"),
    ],
)
def test_what_no_search_can_keep_to_is_an_error(options, message):
    """JAX takes the last token for one beyond the vocabulary."""
    options = {"length_penalty": 0.6, "max_length": 4, "bos_id": 1, "eos_id": 2} | options

    def step(tokens, state, position):
        return jnp.zeros((*tokens.shape, 5)), state

    with pytest.raises(ValueError, match=message):
        search.beam_search(step, {"a": jnp.zeros((2, 3))}, beam_size=3, **options)
    with pytest.raises(ValueError, match=message):
        search.greedy_search(step, {"a": jnp.zeros((2, 1))}, **options)


@pytest.mark.parametrize("cuts", [{}, CUTS])
def test_where_everything_is_ruled_out_there_is_no_hypothesis(cuts):
    table = make_table(16, B, ruled_out=0.6)
    for hypotheses in (greedy(table, T, limits=LIMITS), sample(table, 0, 2, T, limits=LIMITS, **cuts)):
        impossible = np.isneginf(hypotheses.scores)
        assert 0 < impossible.sum() < impossible.size
        assert (hypotheses.lengths[impossible] == 0).all()
        assert (hypotheses.tokens[impossible] == 0).all()
        for row, score, words in sequences(hypotheses):
            if words:
                np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5, atol=1e-6)
            else:
                assert score == -np.inf


# Scores of given sequences.


def test_score_is_the_weighted_log_probability_of_each_target_and_their_sum():
    table, words = make_table(17, batch=1), (3, 0, 2, EOS)
    logits = np.stack([reference_logits(table[0], words[:i]) for i in range(4)] + [np.full(V, -np.inf)])
    targets, weights = np.array([[*words, 0]]), np.array([[1, 1, 0.5, 1, 0]])
    sums, tokens = jax.jit(search.score)(logits[None].astype(np.float32), targets, weights)
    expected = [reference_log_probabilities(table[0], words[:i])[word] for i, word in enumerate(words)]
    np.testing.assert_allclose(tokens, weights * [*expected, 0], rtol=1e-5)
    np.testing.assert_allclose(sums, weights[:, :4] @ expected, rtol=1e-5)


def test_token_scores_take_any_leading_axes_and_float_type():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 3, 5, V)), jnp.bfloat16)
    targets = rng.integers(0, V, (2, 3, 5))
    scores = jax.jit(search.token_scores)(logits, targets)
    every = np.exp(np.asarray(logits, np.float64))
    chosen = np.take_along_axis(every, targets[..., None], axis=-1)[..., 0]
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, np.log(chosen / every.sum(-1)), rtol=1e-5)
