"""Tests of Muon, the optimizer of configs/lm_pydoc.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import DictKey

from tfm.configs.lm_pydoc import Muon, orthogonalize

RATE = 0.02


def random_kernel(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def orthogonalize_named(name, kernel):
    return orthogonalize((DictKey(name), DictKey("kernel")), kernel)


@pytest.mark.parametrize("shape", [(24, 6), (6, 24)])
def test_singular_vectors_stay_and_singular_values_become_about_1(shape):
    kernel = random_kernel(*shape)
    left, _, right = np.linalg.svd(kernel, full_matrices=False)
    scale = max(1, shape[1] / shape[0]) ** 0.5
    values = left.T @ np.asarray(orthogonalize_named("hidden", kernel)) @ right.T / scale
    np.testing.assert_allclose(np.diag(values), 1, atol=0.35)
    np.testing.assert_allclose(values - np.diag(np.diag(values)), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "matrix"), [("query", (8, 2, 3), (8, 6)), ("output", (2, 3, 8), (6, 8))]
)
def test_kernels_of_attention_are_matrices(name, shape, matrix):
    kernel = random_kernel(*shape)
    expected = orthogonalize_named(name, kernel.reshape(matrix)).reshape(shape)
    np.testing.assert_allclose(orthogonalize_named(name, kernel), expected, rtol=1e-6)


def test_kernels_move_by_muon_and_other_parameters_by_adam():
    params = {"hidden": {"kernel": random_kernel(4, 4), "bias": jnp.ones(4)}, "table": random_kernel(5, 4)}
    optimizer = Muon(weight_decay=0.5).make(optax.constant_schedule(RATE))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    kernel = params["hidden"]["kernel"]
    moved = -RATE * (orthogonalize_named("hidden", kernel) + 0.5 * kernel)
    np.testing.assert_allclose(updates["hidden"]["kernel"], moved, rtol=1e-4, atol=1e-6)
    signs = jax.tree.map(jnp.sign, {"bias": params["hidden"]["bias"], "table": params["table"]})
    np.testing.assert_allclose(updates["hidden"]["bias"], -0.15 * RATE * signs["bias"], rtol=1e-4)
    np.testing.assert_allclose(updates["table"], -0.15 * RATE * signs["table"], rtol=1e-4)
