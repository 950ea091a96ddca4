"""Tests of stacks of layers: what the backward pass recomputes, and dtypes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.stack import Stack


class Exp(nn.Module):
    """A layer whose backward pass needs exp(x), which the forward pass keeps or the backward pass repeats."""

    @nn.compact
    def __call__(self, x, *, train):
        return jnp.exp(x * self.param("scale", nn.initializers.ones, ()))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_backward_pass_recomputes_the_layers_only_with_remat(scan, remat):
    stack = Stack(lambda index: Exp(), depth=3, remat=remat, scan=scan)
    x = jnp.ones((1, 2, 4))
    params = stack.init(jax.random.key(0), x, train=True)
    gradient = jax.grad(lambda params: stack.apply(params, x, train=True).sum())
    layers_in_program = 1 if scan else 3
    assert str(jax.make_jaxpr(gradient)(params)).count("= exp ") == layers_in_program * (2 if remat else 1)


@pytest.mark.parametrize("scan", [False, True])
def test_layers_may_return_float32_for_bfloat16(scan):
    stack = Stack(lambda index: Exp(), depth=2, scan=scan)
    x = jnp.full((1, 2, 4), 0.25, jnp.bfloat16)
    params = stack.init(jax.random.key(0), x, train=True)
    found = stack.apply(params, x, train=True)  # the parameter of each layer is float32
    np.testing.assert_allclose(np.asarray(found, np.float32), np.exp(np.exp(0.25)), rtol=0.02)
