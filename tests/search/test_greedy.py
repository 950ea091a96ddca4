"""Tests of greedy search: how it differs from a beam of one and when it stops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import CountingStep, beam, greedy, sample
from tests.support.automaton import BOS, Sentence, random_table
from tfm import search

B, T = 40, 7
LIMITS = np.random.default_rng(0).integers(1, T + 1, B)


@pytest.mark.long
def test_beam_of_one_equals_greedy_search_except_for_a_second_eos():
    table = random_table(10, B)
    hypotheses = beam(table, 0.0, 1, T, n_best=1, limits=LIMITS)
    greedily = greedy(table, T, limits=LIMITS)
    assert (hypotheses.scores >= greedily.scores - 1e-6).all()
    same = (hypotheses.tokens == greedily.tokens).all(-1)[:, 0]
    assert B / 2 < same.sum() < B
    assert (hypotheses.scores[~same] > greedily.scores[~same]).all()


@pytest.mark.long
def test_searches_stop_when_all_rows_are_finished():
    table, step = random_table(11, batch=4), CountingStep()
    greedy(table, max_length=30, step=step)
    assert step.count() == max(len(Sentence(one, limit=30).greedy()) for one in table)
    hypotheses = sample(table, jax.random.key(0), samples=2, max_length=30, step=step)
    assert step.count() == hypotheses.lengths.max() < 30
    greedy(np.full_like(table, -np.inf), max_length=30, step=step)
    assert step.count() == 1


@pytest.mark.long
def test_eos_may_be_token_0():
    logits = jnp.array([[[9.0, 0, 0, 0]], [[0, 0, 9.0, 0]]])  # [B, 1, V], the same at every position
    limits = search.Limits(max_length=3, bos_id=BOS, eos_id=0)
    found = search.greedy_search(lambda _, state, __: (state, state), logits, limits, batch_size=2)
    assert found.lengths.tolist() == [[1], [3]]


def test_outputs_that_need_no_eos_end_at_the_limits_of_their_rows():
    logits = jnp.tile(jnp.array([0.0, 0, 9, 0]), (2, 1, 1))  # [B, 1, V], never EOS
    limits = search.Limits(6, BOS, 0, search.Constraints(np.array([2, 4])), force_eos=False)
    found = search.greedy_search(lambda _, state, __: (state, state), logits, limits, batch_size=2)
    assert found.lengths.tolist() == [[2], [4]]
