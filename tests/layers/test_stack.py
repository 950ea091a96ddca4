"""Tests of stacks of layers: what the backward pass recomputes, and dtypes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.errors import UserError
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


class Power(nn.Module):
    """A layer whose parameter has the same shape for every exponent, dropout rate and constant."""

    exponent: float = 1.0
    dropout: float = 0.0
    added: tuple = (0.0, 0.0)

    @nn.compact
    def __call__(self, x, *, train):
        x = self.param("scale", nn.initializers.ones, ()) * x**self.exponent + jnp.asarray(self.added)
        return nn.Dropout(self.dropout, deterministic=not train)(x)


def scan(fields, train=False):
    stack = Stack(lambda index: Power(**fields[index]), depth=len(fields), scan=True)
    x, keys = jnp.full((1, 1, 2), 2.0), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    return stack.apply(stack.init(keys, x, train=True), x, train=train, rngs=keys).tolist()


@pytest.mark.parametrize(
    "fields",
    [[{"exponent": 2}, {"exponent": 3}], [{"added": (0.0, 1.0)}, {"added": (1.0, 0.0)}]],
    ids=["operations", "constants"],
)
def test_scan_of_layers_that_compute_different_functions_is_an_error(fields):
    with pytest.raises(UserError, match=r"model\.scan"):
        scan(fields)


def test_scan_of_layers_with_different_dropout_is_an_error_only_in_training():
    fields = [{"dropout": 0.1}, {"dropout": 0.5}]
    assert scan(fields) == [[[2, 2]]]
    with pytest.raises(UserError, match=r"model\.scan"):
        scan(fields, train=True)


def test_scan_of_equal_layers_with_constants_applies_all_of_them():
    assert scan([{"added": (0.0, 1.0)}] * 3) == [[[2, 5]]]
