"""Tests of the discrete autoencoder of DALL-E against its equations in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.dalle import numpy_dvae
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig, logit_laplace_nll
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

SIZES = {"groups": 2, "blocks": 3}
CONFIG = DVAEConfig(image_size=4, channels=2, codes=5, width=8, code_width=6, **SIZES)
MODEL = DiscreteVAE(CONFIG)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (2, 4, 4, 2)).astype(np.float32)
NOISE = RNG.gumbel(size=(2, 2, 2, 5)).astype(np.float32)
TEMPERATURE = 0.7
FACTORS = [RNG.normal(size=shape) for shape in ((2, 2, 2, 5), (2, 4, 4, 2), (2, 4, 4, 2))]


def weigh(outputs):
    """Returns a sum of all outputs that tells them apart."""
    return sum((x * factor).sum() for x, factor in zip(outputs, FACTORS, strict=True))


@pytest.fixture(scope="module")
def params():
    return random_parameters(MODEL, IMAGES, deviation=0.3)


@pytest.fixture(scope="module")
def computed(params):
    """Returns the gradient of `weigh`, and the outputs."""

    def loss(params):
        outputs = MODEL.apply({"params": params}, IMAGES, NOISE, TEMPERATURE, train=True)
        return weigh(outputs), outputs

    return quick_jit(jax.grad(loss, has_aux=True))(params)


def test_outputs_with_relaxed_codes_equal_numpy(params, computed):
    expected = numpy_dvae.reconstruct(params, IMAGES, NOISE, TEMPERATURE, **SIZES)
    for actual, array in zip(computed[1], expected, strict=True):
        np.testing.assert_allclose(actual, array, rtol=1e-5, atol=1e-5)


def test_gradients_through_relaxed_codes_equal_central_differences(params, computed):
    def loss(params):
        return weigh(numpy_dvae.reconstruct(params, IMAGES, NOISE, TEMPERATURE, **SIZES))

    assert_gradient_close(computed[0], loss, params, atol=1e-4)


def test_without_noise_the_most_probable_codes_are_decoded_and_no_gradient_reaches_the_encoder(params):
    def loss(params):
        outputs = MODEL.apply({"params": params}, IMAGES, train=False)
        return (outputs.mean + 2 * outputs.log_scale).sum(), outputs

    gradient, outputs = quick_jit(jax.grad(loss, has_aux=True))(params)
    codes = numpy_dvae.encode(params["encoder"], IMAGES, **SIZES).argmax(-1)
    mean, log_scale = numpy_dvae.decode(params["decoder"], np.eye(5)[codes], **SIZES)
    np.testing.assert_allclose(outputs.mean, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(outputs.log_scale, log_scale, rtol=1e-5, atol=1e-5)
    assert not any(x.any() for x in jax.tree.leaves(gradient["encoder"]))
    assert np.abs(gradient["decoder"]["input"]["kernel"]).max() > 0


def test_codes_are_the_most_probable_and_images_the_means_of_their_distributions(params):
    @quick_jit
    def run(params):
        codes = MODEL.apply({"params": params}, IMAGES, method="encode")
        return codes, MODEL.apply({"params": params}, codes, method="decode")

    output = params["decoder"]["output"]
    bright = {**output, "bias": output["bias"] + np.float32([3, 0, 0, 0])}  # beyond the range of pixels
    params = {**params, "decoder": {**params["decoder"], "output": bright}}
    codes, images = run(params)
    np.testing.assert_array_equal(codes, numpy_dvae.encode(params["encoder"], IMAGES, **SIZES).argmax(-1))
    expected = numpy_dvae.draw(params, np.asarray(codes), **SIZES)
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert (expected[..., 0].max(), np.abs(expected[..., 1]).max() < 1) == (1, True)


def test_density_of_pixels_is_that_of_a_logistic_function_of_a_laplace_variable():
    pixels = np.linspace(-1, 1, 9)
    mean, log_scale = RNG.normal(size=(2, 9))
    shares = 0.5 + 0.4 * pixels
    logits = np.log(shares / (1 - shares))
    density = scipy.stats.laplace.pdf(logits, mean, np.exp(log_scale)) / (shares * (1 - shares))
    actual = quick_jit(logit_laplace_nll)(*map(np.float32, (pixels, mean, log_scale)))
    np.testing.assert_allclose(actual, -np.log(density), rtol=1e-4, atol=1e-5)


def test_initial_kernels_are_normal_with_a_variance_of_1_by_the_number_of_inputs():
    model = DiscreteVAE(DVAEConfig(image_size=2, channels=3, codes=50, width=64, groups=1, blocks=1))
    image = jnp.zeros((1, 2, 2, 3))
    params = quick_jit(lambda key: model.init(key, image, train=False))(jax.random.key(0))["params"]
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key == "bias":
            np.testing.assert_array_equal(x, 0)
            continue
        scaled = np.ravel(x) * np.sqrt(np.prod(x.shape[:-1]))
        error = 6 / np.sqrt(scaled.size)  # six standard deviations of the estimates
        assert scaled.mean() == pytest.approx(0, abs=error)
        assert scaled.std() == pytest.approx(1, abs=error)
        if scaled.size > 5000:
            assert scipy.stats.kurtosis(scaled) == pytest.approx(0, abs=0.4)  # -1.2 if they were uniform


def test_codes_of_the_published_model_stand_for_8_x_8_pixels():
    assert (DVAEConfig().image_size, DVAEConfig().side) == (256, 32)
