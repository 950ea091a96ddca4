"""Memory layouts of kernels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import backend
from tfm.decoding.parameters import apply_model, search_parameters
from tfm.matmul import inputs_first, outputs_first

RNG = np.random.default_rng(0)


def random_params():
    shapes = {
        "query": {"kernel": (8, 2, 3), "bias": (2, 3)},
        "output": {"kernel": (2, 3, 8)},
        "embedding": {"table": (20, 8)},
        "gate": {"kernel": (), "kernels": (3, 4)},
        "kernel": (5, 7),
    }
    return jax.tree.map(lambda shape: RNG.normal(size=shape), shapes, is_leaf=lambda x: isinstance(x, tuple))


@pytest.mark.parametrize("is_cpu", [False, True])
@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_kernels_have_their_outputs_first_on_cpus_only(as_array, is_cpu, monkeypatch):
    monkeypatch.setattr(backend, "is_cpu", lambda: is_cpu)
    params = jax.tree.map(as_array, random_params())
    moved = outputs_first(params)
    expected = {"query": (1, 2, 0), "output": (2, 0, 1)} if is_cpu else {}
    for module, axes in expected.items():
        np.testing.assert_array_equal(moved[module]["kernel"], params[module]["kernel"].transpose(axes))
    assert moved["kernel"].shape == ((7, 5) if is_cpu else (5, 7))
    for name in ("embedding", "gate"):
        jax.tree.map(np.testing.assert_array_equal, moved[name], params[name])
    jax.tree.map(np.testing.assert_array_equal, inputs_first(moved), params)
    leaves = jax.tree.leaves(moved)
    assert {type(x) for x in leaves} == {type(x) for x in jax.tree.leaves(params)}
    assert as_array is not np.asarray or all(x.flags.c_contiguous for x in leaves)


class Model(nn.Module):
    """A model whose parameters are not in any submodule."""

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.normal(), (4, 3))
        return x @ kernel + self.param("shift", nn.initializers.normal(), (3,))


@pytest.mark.parametrize("dtype", ["", "int8"])
def test_a_model_may_have_parameters_at_its_top_level(dtype):
    model, x = Model(), RNG.normal(size=(2, 4)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)
    found = jax.jit(lambda params: apply_model(model, params, x))(
        search_parameters(variables["params"], dtype)
    )
    np.testing.assert_allclose(found, model.apply(variables, x), rtol=1e-6, atol=1e-6)
