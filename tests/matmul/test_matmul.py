"""Matrix products and weight layouts for CPUs against the plain ones."""

import jax
import numpy as np
import pytest

from tfm import backend
from tfm.matmul import cpu_dot_general, dot_general, inputs_first, outputs_first

RNG = np.random.default_rng(0)
CASES = {  # name: shapes of x and weights, and the axes that are summed
    "dense": ((3, 4, 8), (8, 6), (2,), (0,)),
    "heads": ((3, 4, 8), (8, 2, 3), (2,), (0,)),
    "output": ((3, 4, 2, 3), (2, 3, 8), (2, 3), (0, 1)),
    "logits": ((3, 4, 8), (20, 8), (2,), (1,)),
}


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def arguments(name):
    x, weights, x_axes, weight_axes = CASES[name]
    return random(*x), random(*weights), ((x_axes, weight_axes), ((), ()))


@pytest.mark.parametrize("rows", [0, 11, 12])  # of x there are 12
@pytest.mark.parametrize("name", CASES)
def test_cpu_products_and_gradients_equal_plain(name, rows):
    x, weights, numbers = arguments(name)

    def loss(function, *rest):
        return lambda x, weights: (function(x, weights, numbers, *rest) ** 2).sum()

    found = cpu_dot_general(x, weights, numbers, rows)
    expected = jax.lax.dot_general(x, weights, numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    gradients = jax.grad(loss(cpu_dot_general, rows), (0, 1))(x, weights)
    expected = jax.grad(loss(jax.lax.dot_general), (0, 1))(x, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), gradients, expected)


@pytest.mark.parametrize("is_cpu", [False, True])
def test_only_cpus_have_weights_on_the_left(is_cpu, monkeypatch):
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    x, weights, numbers = arguments("dense")
    jaxpr = jax.make_jaxpr(lambda x, weights: dot_general(x, weights, numbers))(x, weights)
    (product,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    assert (product.invars[0] is jaxpr.jaxpr.invars[1]) == is_cpu


@pytest.mark.parametrize("is_cpu", [False, True])
def test_outputs_first_only_on_cpus(is_cpu, monkeypatch):
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    params = {
        "query": {"kernel": random(8, 2, 3), "bias": random(2, 3)},
        "output": {"kernel": random(2, 3, 8)},
        "embedding": {"table": random(20, 8)},
    }
    transposed = outputs_first(params)
    shapes = [transposed[name]["kernel"].shape for name in ("query", "output")]
    assert shapes == ([(2, 3, 8), (8, 2, 3)] if is_cpu else [(8, 2, 3), (2, 3, 8)])
    jax.tree.map(np.testing.assert_array_equal, inputs_first(transposed), params)
