"""Tests of beam search: when it stops, its trace and coverage. test_contracts.py runs its contract."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import (
    CountingStep,
    assert_found,
    beam,
    sequences,
    steps_needed,
)
from tests.support.automaton import BOS, Sentence, next_state, random_table
from tests.support.comparison import assert_trees_equal
from tfm import search

B, T = 12, 7  # most tests use these sizes so that they share compiled searches
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


@pytest.mark.parametrize("n_best", [3, 1])
def test_beam_search_stops_as_soon_as_its_result_is_certain(n_best):
    table, step, needed = random_table(3, batch=12), CountingStep(), {}
    for alpha, row in itertools.product((0.0, 0.6, 1.5, -0.5), range(len(table))):
        beam(table[row : row + 1], alpha, 3, 20, n_best=n_best, limits=np.array([9]), step=step)
        needed[alpha, row] = steps_needed(Sentence(table[row], limit=9, alpha=alpha), 3, n_best)
        assert step.count() == needed[alpha, row]
    assert len(set(needed.values())) > 3  # so that the test covers different numbers of steps


def test_bfloat16_logits_are_scored_in_float32():
    table = random_table(8, B).astype(jnp.bfloat16)
    for row, score, words in sequences(beam(table, 0.0, 4, T, n_best=3)):
        np.testing.assert_allclose(score, Sentence(table[row].astype(np.float32)).score(words), rtol=1e-5)


@pytest.mark.parametrize(("beam_size", "n_best"), [(0, None), (2, 3), (2, 0)])
def test_invalid_beam_size_or_n_best_is_an_error(beam_size, n_best):
    with pytest.raises(ValueError, match=f"n_best {n_best or 0} and beam_size {beam_size}"):
        beam(random_table(0, batch=1), 0.6, beam_size, max_length=3, n_best=n_best)


@pytest.mark.long
def test_trace_contains_the_prefixes_after_each_step():
    table = random_table(9, B)
    hypotheses, trace = beam(table, 0.6, 3, T, limits=LIMITS, run=search.trace_beam_search)
    last = jax.tree.map(lambda x: x[-1], trace.finished)
    assert_trees_equal(last, hypotheses)
    for step, row, hypothesis in itertools.product(range(T), range(B), range(3)):
        score = trace.scores[step, row, hypothesis]
        if score > -np.inf:
            words = trace.tokens[step, row, hypothesis, : step + 1].tolist()
            np.testing.assert_allclose(score, Sentence(table[row]).score(tuple(words)), rtol=1e-4)
    ended = trace.scores.max(-1) == -np.inf  # [S, B]
    assert (np.diff(ended.astype(int), axis=0) >= 0).all()
    assert ended[-1].all()


@pytest.mark.long
def test_trace_repeats_its_last_step():
    table = random_table(9, batch=1)
    _, trace = beam(table, 0.6, 3, T, limits=np.array([2]), run=search.trace_beam_search)
    assert trace.scores[1].max() == -np.inf < trace.scores[0].max()
    for leaf in jax.tree.leaves(trace):
        np.testing.assert_array_equal(leaf[2:], np.broadcast_to(leaf[1], leaf[2:].shape))


def state_penalty(state):
    return -(state["current"] % 7) / 5


@pytest.mark.long
def test_search_with_coverage_is_exact():
    table, limit, alpha = random_table(25, batch=4), 3, 0.6

    def score(sentence, words):
        return sentence.score(words) - (functools.reduce(next_state, (BOS, *words[:-1]), 0) % 7) / 5

    hypotheses = beam(table, alpha, 31, limit, coverage=state_penalty)
    for row in range(len(table)):
        sentence = Sentence(table[row], limit, alpha=alpha)
        assert_found(hypotheses, row, [(score(sentence, words), words) for words in sentence.outputs()])
    best = beam(table, alpha, 31, limit, coverage=state_penalty, n_best=1)
    np.testing.assert_array_equal(best.tokens, hypotheses.tokens[:, :1])


@pytest.mark.long
def test_coverage_penalty_is_equation_14():
    rng = np.random.default_rng(0)
    attention, mask = rng.random((2, 3, 5)) * 1.6, np.arange(5) < [[5], [3]]
    expected = [
        [0.2 * sum(np.log(min(p, 1)) for p in row[m]) for row in rows]
        for rows, m in zip(attention, mask, strict=True)
    ]
    np.testing.assert_allclose(search.coverage_penalty(attention, mask, 0.2), expected, rtol=1e-5)
    assert np.isfinite(search.coverage_penalty(np.zeros((1, 1, 5)), mask[:1], 0.2)).all()
