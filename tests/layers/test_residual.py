"""Tests of the residual connection against NumPy in float64."""

import jax
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.layer_cases import B, D, L, noisy, random
from tfm import layers


@pytest.mark.parametrize("alpha", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("order", layers.NORM_ORDERS)
def test_every_norm_order_adds_the_scaled_input_to_the_sublayer(order, alpha):
    x = random(B, L, D)
    module = layers.Residual(order, input_scale=alpha)
    params = noisy(module.init(jax.random.key(0), x, lambda x: x, train=False))
    found = module.apply({"params": params}, x, lambda x: x**2, train=False)

    norm = numpy64.layer_norm
    expected = {
        "post": lambda: norm(params["norm"], alpha * x + x**2),
        "pre": lambda: alpha * x + norm(params["norm"], x) ** 2,
        "norm_then_add": lambda: alpha * x + norm(params["norm"], x**2),
    }[order]()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_unknown_norm_orders_are_errors():
    with pytest.raises(ValueError, match="order to be one of"):
        layers.Residual("sandwich").init(jax.random.key(0), random(1, D), lambda x: x, train=False)
