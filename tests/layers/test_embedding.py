"""The tied embedding."""

import jax
import numpy as np
import pytest

from tests.support.layer_cases import random
from tfm import layers


@pytest.mark.long
def test_embedding_is_scaled_tied_and_initialized():
    module, tokens = layers.Embedding(5000, 64), np.array([[3, 4999, 0]])
    variables = module.init(jax.random.key(0), tokens)
    table = np.asarray(variables["params"]["table"])
    assert abs(table.std() - 64**-0.5) < 0.01 * 64**-0.5
    np.testing.assert_allclose(module.apply(variables, tokens), table[tokens] * 8, rtol=1e-6)
    x = random(2, 3, 64)
    np.testing.assert_allclose(module.apply(variables, x, method="logits"), x @ table.T, atol=1e-5)


def test_untied_embedding_has_a_logit_matrix():
    module, tokens = layers.Embedding(20, 8, tied=False), np.array([[3, 19, 0]])
    variables = module.init(jax.random.key(0), tokens)
    table, output = variables["params"]["table"], variables["params"]["output"]
    assert table.shape == output.shape
    assert not np.allclose(table, output)
    np.testing.assert_allclose(module.apply(variables, tokens), np.asarray(table)[tokens] * 8**0.5, rtol=1e-6)
    x = random(2, 3, 8)
    np.testing.assert_allclose(module.apply(variables, x, method="logits"), x @ output.T, atol=1e-5)
