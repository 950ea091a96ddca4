"""Greedy search against a plain Python one."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import (
    BOS,
    CountingStep,
    assert_found,
    beam,
    greedy,
    log_probability,
    make_table,
    penalized,
    reference_greedy,
    sample,
)
from tfm import search

ALPHAS = (0.0, 0.6, 1.5, -0.5)
B, T = 40, 7  # of most tests, so that they share compiled searches
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


def test_greedy_search_takes_the_argmax():
    table = make_table(9, B)
    for alpha in ALPHAS:
        hypotheses = greedy(table, T, limits=LIMITS, alpha=alpha)
        for row, limit in enumerate(LIMITS):
            words = reference_greedy(table[row], limit)
            score = penalized(log_probability(table[row], words), len(words), alpha)
            assert_found(hypotheses, row, [(score, words)])


def test_beam_of_one_is_greedy_but_for_second_eos():
    table = make_table(10, B)
    hypotheses = beam(table, 0.0, 1, T, n_best=1, limits=LIMITS)
    greedily = greedy(table, T, limits=LIMITS)
    assert (hypotheses.scores >= greedily.scores - 1e-6).all()
    same = (hypotheses.tokens == greedily.tokens).all(-1)[:, 0]
    assert B / 2 < same.sum() < B
    assert (hypotheses.scores[~same] > greedily.scores[~same]).all()


@pytest.mark.long
def test_search_stops_when_all_rows_are_finished():
    table, step = make_table(11, batch=4), CountingStep()
    greedy(table, max_length=30, step=step)
    assert step.count() == max(len(reference_greedy(one, 30)) for one in table)
    hypotheses = sample(table, 0, samples=2, max_length=30, step=step)
    assert step.count() == hypotheses.lengths.max() < 30
    greedy(np.full_like(table, -np.inf), max_length=30, step=step)
    assert step.count() == 1


@pytest.mark.long
def test_eos_may_be_token_0():
    logits = jnp.array([[[9.0, 0, 0, 0]], [[0, 0, 9.0, 0]]])  # [B, 1, V], the same at every position
    options = {"max_length": 3, "bos_id": BOS, "eos_id": 0}
    found = search.greedy_search(lambda _, state, __: (state, state), logits, **options)
    assert found.lengths.tolist() == [[1], [3]]
