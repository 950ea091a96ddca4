"""Tests of the Self-Attention GAN: published sizes, spectral norm, and the attention as in the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import cases
from tfm.devices.memory import count_elements
from tfm.errors import UserError
from tfm.systems.sagan.model import PixelAttention, SelfAttentionGAN, SelfAttentionGANConfig
from tfm.testing.models import quick_jit

MODEL = cases.GANS["GAN"]
NOISE, LABELS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32), np.array([0, 1, 2])


@pytest.fixture(scope="module")
def variables():
    images = np.random.default_rng(1).uniform(-1, 1, (3, 8, 8, 2)).astype(np.float32)
    variables = quick_jit(lambda key: MODEL.init(key, NOISE, LABELS, images, train=False))(jax.random.key(0))
    # Steps of the power iteration bring its vectors near to the singular vectors.
    step = quick_jit(lambda v: MODEL.apply(v, NOISE, LABELS, images, train=True, mutable=["batch_stats"])[1])
    for _ in range(60):
        variables = {**variables, **step(variables)}
    return variables


def test_networks_have_the_published_number_of_parameters():
    model = SelfAttentionGAN(SelfAttentionGANConfig())
    arguments = jnp.zeros((1, 128)), jnp.zeros(1, int), jnp.zeros((1, 128, 128, 3))
    shapes = jax.eval_shape(lambda key: model.init(key, *arguments, train=False), jax.random.key(0))
    counts = {name: count_elements(tree) for name, tree in shapes["params"].items()}
    assert counts == {"generator": 42_078_852, "discriminator": 39_463_618}


@pytest.mark.long
def test_largest_singular_value_of_each_kernel_is_estimated(variables):
    state = variables["batch_stats"]["discriminator"]["block_0"]["conv_2_norm"]
    kernel = variables["params"]["discriminator"]["block_0"]["conv_2"]["kernel"]
    largest = np.linalg.norm(np.reshape(kernel, (-1, kernel.shape[-1])), 2)
    assert state["conv_2/kernel/sigma"] == pytest.approx(largest, rel=1e-3)


@pytest.mark.long
def test_output_of_the_discriminator_does_not_depend_on_the_scale_of_a_kernel(variables):
    def judge(variables):
        return MODEL.apply(variables, NOISE, LABELS, train=False)[0]

    params = variables["params"]
    block = params["discriminator"]["block_0"]
    scaled = {**block, "conv_1": {**block["conv_1"], "kernel": 3 * block["conv_1"]["kernel"]}}
    other = {**params, "discriminator": {**params["discriminator"], "block_0": scaled}}
    np.testing.assert_allclose(judge({**variables, "params": other}), judge(variables), atol=1e-5)


def test_attention_is_that_of_the_paper():
    """Against a loop over pixels, with a gamma that is not 0."""
    x = np.random.default_rng(2).normal(size=(1, 4, 4, 16)).astype(np.float32)
    attention = PixelAttention()
    variables = attention.init(jax.random.key(0), x, train=False)
    np.testing.assert_array_equal(attention.apply(variables, x, train=False), x)  # gamma is 0
    params, state = variables["params"], variables["batch_stats"]
    kernels = {}
    for name in ("query", "key", "value", "output"):
        kernel = np.asarray(params[name]["kernel"])[0, 0]
        u = np.asarray(state[f"{name}_norm"][f"{name}/kernel/u"])[0]
        v = kernel @ u / np.linalg.norm(kernel @ u)
        kernels[name] = kernel / (v @ kernel @ (kernel.T @ v / np.linalg.norm(kernel.T @ v)))
    pixels = x.reshape(16, 16)
    pooled = {
        name: np.array(
            [
                (x[0, i : i + 2, j : j + 2] @ kernels[name]).max((0, 1))
                for i in range(0, 4, 2)
                for j in range(0, 4, 2)
            ]
        )
        for name in ("key", "value")
    }
    expected = np.zeros_like(pixels)
    for index, pixel in enumerate(pixels):
        logits = pooled["key"] @ (pixel @ kernels["query"])
        weights = np.exp(logits) / np.exp(logits).sum()
        expected[index] = pixel + 0.7 * (weights @ pooled["value"]) @ kernels["output"]
    found = attention.apply({**variables, "params": {**params, "gamma": jnp.float32(0.7)}}, x, train=False)
    np.testing.assert_allclose(np.reshape(found, (16, 16)), expected, atol=1e-4)


@pytest.mark.parametrize("fields", [{"image_size": 100}, {"attention_map": 128}, {"attention_map": 5}])
def test_sizes_that_do_not_fit_are_rejected(fields):
    with pytest.raises(UserError, match=str(next(iter(fields.values())))):
        SelfAttentionGANConfig(**fields)
