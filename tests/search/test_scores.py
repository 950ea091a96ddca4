"""Tests of the scores of sequences, the length penalty and ensembles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import assert_found, make_limits, on_host
from tests.support.automaton import Sentence, begin, penalty, random_table, reorder, step
from tfm import losses, search


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, -1.0])
def test_length_penalty_is_equation_14(alpha):
    assert search.length_penalty(1, alpha) == 1.0
    penalties = search.length_penalty(np.array([7, 13, 19]), alpha)
    np.testing.assert_allclose(penalties, [2.0**alpha, 3.0**alpha, 4.0**alpha])


@pytest.mark.long
def test_token_scores_accept_any_axes_and_dtype():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.bfloat16)
    targets = rng.integers(0, 4, (2, 3, 5))
    scores = jax.jit(losses.token_scores)(logits, targets)
    every = np.exp(np.asarray(logits, np.float64))
    chosen = np.take_along_axis(every, targets[..., None], axis=-1)[..., 0]
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, np.log(chosen / every.sum(-1)), rtol=1e-5)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_search_over_an_ensemble_averages_probabilities(members):
    width, limit, batch = 31, 3, 4  # all outputs of at most three tokens
    alpha = 0.6
    tables = [random_table(26 + i, batch, ruled_out=0.1 * i) for i in range(members)]

    def find(tables):
        return search.beam_search(
            search.ensemble(*[step] * members),
            tuple(begin(table, width) for table in tables),
            make_limits(limit),
            batch_size=batch,
            beam_size=width,
            length_penalty=alpha,
            reorder=lambda states, parents: tuple(reorder(state, parents) for state in states),
        )

    hypotheses = on_host(find)(tables)
    for row in range(batch):
        sentences = [Sentence(table[row], limit) for table in tables]
        scored = []
        for words in sentences[0].outputs():
            log_probabilities = [sentence.token_scores(words) for sentence in sentences]
            total = np.log(np.exp(log_probabilities).mean(0)).sum()
            scored.append((total / penalty(len(words), alpha), words))
        assert_found(hypotheses, row, scored)
