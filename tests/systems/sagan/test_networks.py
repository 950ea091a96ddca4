"""Tests of both networks of the Self-Attention GAN against their equations in NumPy float64."""

import jax
import numpy as np
import pytest

from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.sagan.numpy_sagan import Reference
from tfm.layers.batch_norm import Rows
from tfm.systems.sagan.model import SelfAttentionGAN, SelfAttentionGANConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

CONFIG = SelfAttentionGANConfig(
    image_size=8, channels=2, classes=3, noise=5, width=16, smallest_map=2, attention_map=4
)
MODEL = SelfAttentionGAN(CONFIG)
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(4, 5)).astype(np.float32)
LABELS = np.array([2, 0, 1, 1])
IMAGES = RNG.uniform(-1, 1, (4, 8, 8, 2)).astype(np.float32)
WEIGHTS = np.float32([1, 1, 1, 0])
FACTORS = RNG.normal(size=(2, 4))


@pytest.fixture(scope="module")
def variables():
    """Returns random parameters and a random state."""
    init = quick_jit(lambda key: MODEL.init(key, NOISE, LABELS, IMAGES, train=False))
    rng = np.random.default_rng(1)

    def draw(path, x):
        values = rng.normal(size=x.shape).astype(np.float32)
        return np.abs(values) + 0.5 if path[-1].key == "variance" else values

    state = jax.tree_util.tree_map_with_path(draw, jax.eval_shape(init, jax.random.key(0))["batch_stats"])
    params = random_parameters(MODEL, NOISE, LABELS, IMAGES, deviation=0.5)
    return {"params": params, "batch_stats": state}


@pytest.fixture(scope="module")
def computed(variables):
    """Returns the gradient of a weighted sum of all logits in training, the logits and the new state."""

    def loss(params):
        logits, state = MODEL.apply(
            {**variables, "params": params},
            *(NOISE, LABELS, IMAGES, Rows(WEIGHTS)),
            train=True,
            mutable=["batch_stats"],
        )
        return sum((x * factor).sum() for x, factor in zip(logits, FACTORS, strict=True)), (logits, state)

    return quick_jit(jax.grad(loss, has_aux=True))(variables["params"])


@pytest.fixture(scope="module")
def reference(variables):
    """Returns the reference in training, after its first call."""
    reference = Reference(variables["batch_stats"], WEIGHTS, CONFIG.attention_map)
    reference(variables["params"], NOISE, LABELS, IMAGES)
    return reference


@pytest.mark.long
def test_logits_in_training_equal_numpy(variables, computed, reference):
    fake, real, _ = reference(variables["params"], NOISE, LABELS, IMAGES)
    np.testing.assert_allclose(computed[1][0][0], fake, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(computed[1][0][1], real, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_gradients_through_both_networks_equal_central_differences(variables, computed, reference):
    def loss(params):
        return (np.stack(reference(params, NOISE, LABELS, IMAGES)[:2]) * FACTORS).sum()

    assert_gradient_close(computed[0], loss, variables["params"], rtol=2e-3, atol=1e-3)


@pytest.mark.long
def test_each_call_in_training_makes_one_step_of_the_power_iteration(variables, computed, reference):
    def check(path, x):
        *parents, norm, name = (key.key for key in path)
        if name.endswith("/u"):
            expected = reference.last_vector(*parents, norm.removesuffix("_norm"))
            np.testing.assert_allclose(x[0], expected, atol=1e-4, err_msg=jax.tree_util.keystr(path))
        return x

    reference(variables["params"], NOISE, LABELS, IMAGES)
    jax.tree_util.tree_map_with_path(check, computed[1][1]["batch_stats"])


def test_images_and_logits_outside_training_equal_numpy(variables):
    @quick_jit
    def run(variables):
        images = MODEL.apply(variables, NOISE, LABELS, train=False, method="generate")
        return *MODEL.apply(variables, NOISE, LABELS, IMAGES, train=False), images

    reference = Reference(variables["batch_stats"], None, CONFIG.attention_map)
    expected = reference(variables["params"], NOISE, LABELS, IMAGES)
    for actual, array in zip(run(variables), expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=1e-4, atol=1e-4)
    assert np.abs(expected[2]).max() <= 1


@pytest.mark.long
def test_kernels_begin_uniform_and_conditional_norms_and_attention_as_the_identity():
    """The scale of a kernel does not matter, because spectral norm divides by it."""
    init = quick_jit(lambda key: MODEL.init(key, NOISE, LABELS, IMAGES, train=False))
    params = init(jax.random.key(0))["params"]
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        if names[-1] in ("bias", "gamma") or "biases" in names:
            np.testing.assert_array_equal(x, 0)
        elif names[-1] == "scale" or "scales" in names:
            np.testing.assert_array_equal(x, 1)
        elif x.size >= 400:
            assert np.std(x) / np.abs(x).max() == pytest.approx(1 / np.sqrt(3), rel=0.1)
