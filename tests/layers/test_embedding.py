"""The tied embedding."""

import jax
import numpy as np

from tests.helpers.layer_cases import random
from tfm import layers


def test_embedding_is_scaled_tied_and_initialized():
    module, tokens = layers.Embedding(5000, 64), np.array([[3, 4999, 0]])
    variables = module.init(jax.random.key(0), tokens)
    table = np.asarray(variables["params"]["table"])
    assert abs(table.std() - 64**-0.5) < 0.01 * 64**-0.5
    np.testing.assert_allclose(module.apply(variables, tokens), table[tokens] * 8, rtol=1e-6)
    x = random(2, 3, 64)
    np.testing.assert_allclose(module.apply(variables, x, method="logits"), x @ table.T, atol=1e-5)
