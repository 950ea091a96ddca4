"""Tests of the embedding and of the matrix that gives the logits."""

import jax
import numpy as np
import pytest

from tests.support.layer_cases import random
from tfm import layers


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_scaled_and_logits_may_share_their_matrix(tied):
    module, tokens = layers.Embedding(5000, 16, tied=tied), np.array([[3, 4999, 0]])
    variables = module.init(jax.random.key(0), tokens)
    table = np.asarray(variables["params"]["table"])
    output = table if tied else np.asarray(variables["params"]["output"])
    assert tied or not np.allclose(table, output)
    for matrix in (table, output):
        assert abs(matrix.std() - 16**-0.5) < 0.02 * 16**-0.5
    np.testing.assert_allclose(module.apply(variables, tokens), table[tokens] * 4, rtol=1e-6)
    x = random(2, 3, 16)
    np.testing.assert_allclose(module.apply(variables, x, method="logits"), x @ output.T, atol=1e-5)
