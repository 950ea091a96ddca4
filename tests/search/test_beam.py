"""Beam search against brute force over every sequence, and against a plain NumPy beam search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import (
    EOS,
    CountingStep,
    assert_found,
    beam,
    every_sequence,
    greedy,
    log_probability,
    make_table,
    on_host,
    penalized,
    reference_beam,
    run_beam,
    sample,
    sequences,
)
from tfm import search

ALPHAS = (0.0, 0.6, 1.5, -0.5)
B, T = 40, 7  # of most tests, so that they share compiled searches
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_exhaustive_beam_finds_every_sequence(alpha):
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
def test_narrow_beam_equals_reference_beam(width, n_best, ruled_out):
    table = make_table(1, B, ruled_out=ruled_out)
    for alpha in ALPHAS:
        hypotheses = beam(table, alpha, width, T, n_best=n_best, limits=LIMITS)
        assert hypotheses.tokens.shape == (B, n_best, T)
        for row, limit in enumerate(LIMITS):
            expected, _ = reference_beam(table[row], width, n_best, alpha, limit)
            assert_found(hypotheses, row, expected)


@pytest.mark.parametrize("n_best", [3, 1])
def test_beam_stops_when_nothing_can_win(n_best):
    table, step, needed = make_table(3, batch=12), CountingStep(), {}
    for alpha, row in itertools.product(ALPHAS, range(len(table))):
        beam(table[row : row + 1], alpha, 3, 20, n_best=n_best, limits=np.array([9]), step=step)
        needed[alpha, row] = reference_beam(table[row], 3, n_best, alpha, limit=9)[1]
        assert step.count() == needed[alpha, row]
    assert len(set(needed.values())) > 3  # or little was tested


def test_hypotheses_are_finished_and_distinct():
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


def test_limits_are_capped_at_max_length():
    table = make_table(5, B)
    beyond = beam(table, 0.6, 4, T, n_best=3, limits=np.full(B, 99))
    jax.tree.map(np.testing.assert_array_equal, beyond, beam(table, 0.6, 4, T, n_best=3))


def test_rows_are_searched_independently():
    table = make_table(6, B)
    together = beam(table, 0.6, 4, T, n_best=3, limits=LIMITS)
    for row in range(B):
        one = slice(row, row + 1)
        alone = beam(table[one], 0.6, 4, T, n_best=3, limits=LIMITS[one])
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


def test_bfloat16_logits_are_scored_in_float32():
    table = make_table(8, B).astype(jnp.bfloat16)
    hypotheses = beam(table, 0.0, 4, T, n_best=3)
    for row, score, words in sequences(hypotheses):
        expected = log_probability(table[row].astype(np.float32), words)
        np.testing.assert_allclose(score, expected, rtol=1e-5)


@pytest.mark.parametrize(("beam_size", "n_best"), [(0, None), (2, 3), (2, 0)])
def test_n_best_beyond_beam_size_is_an_error(beam_size, n_best):
    with pytest.raises(ValueError, match="1 <= n_best <= beam_size"):
        beam(make_table(0, batch=1), 0.6, beam_size, max_length=3, n_best=n_best)


@pytest.mark.long
def test_a_traced_search_is_the_search():
    """The same hypotheses, and after each step the prefixes of a search that is stopped there."""
    table = make_table(9, batch=12)
    hypotheses, trace = traced_beam(table, width=3, max_length=T, limits=LIMITS[:12])
    expected = beam(table, 0.6, 3, T, limits=LIMITS[:12])
    jax.tree.map(np.testing.assert_array_equal, hypotheses, expected)
    last = jax.tree.map(lambda x: x[-1], trace.finished)
    jax.tree.map(np.testing.assert_array_equal, last, expected)
    for step, row, hypothesis in itertools.product(range(T), range(12), range(3)):
        score = trace.scores[step, row, hypothesis]
        if score > -np.inf:
            words = trace.tokens[step, row, hypothesis, : step + 1].tolist()
            np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-4)
    ended = trace.scores.max(-1) == -np.inf  # [S, B]
    assert (np.diff(ended.astype(int), axis=0) >= 0).all()
    assert ended[-1].all()


@pytest.mark.long
def test_a_trace_repeats_its_last_step():
    _, trace = traced_beam(make_table(9, batch=1), width=3, max_length=T, limits=np.array([2]))
    assert trace.scores[1].max() == -np.inf < trace.scores[0].max()
    for leaf in jax.tree.leaves(trace):
        np.testing.assert_array_equal(leaf[2:], np.broadcast_to(leaf[1], leaf[2:].shape))


def traced_beam(table, width, max_length, limits):
    """`search.trace_beam_search` over a table, as NumPy arrays."""

    def run(table, limits):
        return run_beam(table, 0.6, width, max_length, limits=limits, run=search.trace_beam_search)

    return on_host(run)(table, limits)
