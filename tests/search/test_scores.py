"""Scores of given sequences, and the length penalty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import (
    V,
)
from tfm import search


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, -1.0])
def test_length_penalty_is_equation_14(alpha):
    assert search.length_penalty(1, alpha) == 1.0
    penalties = search.length_penalty(np.array([7, 13, 19]), alpha)
    np.testing.assert_allclose(penalties, [2.0**alpha, 3.0**alpha, 4.0**alpha])


@pytest.mark.long
def test_token_scores_take_any_axes_and_dtype():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 3, 5, V)), jnp.bfloat16)
    targets = rng.integers(0, V, (2, 3, 5))
    scores = jax.jit(search.token_scores)(logits, targets)
    every = np.exp(np.asarray(logits, np.float64))
    chosen = np.take_along_axis(every, targets[..., None], axis=-1)[..., 0]
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, np.log(chosen / every.sum(-1)), rtol=1e-5)
