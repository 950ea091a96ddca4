"""Tests of the layers and the path lengths of the benchmark of Table 1."""

import jax
import numpy as np
import pytest

from benchmarks.layer_costs import FEATURES, KERNEL, KINDS, RANGE, RestrictedAttention, measure_path
from tfm.layers import MultiHeadAttention
from tfm.masks import causal_mask, local_mask

X = np.random.default_rng(0).normal(size=(1, 4 * RANGE, FEATURES)).astype(np.float32)


@pytest.mark.long
def test_path_lengths_are_those_of_table_1():
    length = 4 * RANGE
    expected = [1, length - 1, (length - 1) // (KERNEL - 1) + 1, (length - 1) // (RANGE - 1) + 1]
    for kind, path in zip(KINDS, expected, strict=True):
        assert measure_path(kind, kind.module.init(jax.random.key(0), X), X) == path


@pytest.mark.long
def test_restricted_attention_in_blocks_equals_a_mask():
    module = RestrictedAttention()
    variables = module.init(jax.random.key(0), X)
    index = np.arange(4 * RANGE)
    mask = causal_mask(index, index)[None] & local_mask(index, index, 2 * RANGE - 1)
    whole = MultiHeadAttention(FEATURES, 2)
    params = {"params": variables["params"]["MultiHeadAttention_0"]}
    expected = whole.apply(params, X, X, mask=mask, train=False)
    np.testing.assert_allclose(module.apply(variables, X), expected, atol=1e-5)
