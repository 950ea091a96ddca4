"""Tests of the gradients, the initial values, the patches and the defaults of the Vision Transformer."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import VIT
from tests.references.numeric_gradients import assert_gradient_close
from tests.systems.vit import numpy_vit
from tfm.errors import UserError
from tfm.systems.vit.huggingface import PREPROCESSOR_FILE, TARGETS
from tfm.systems.vit.model import VisionTransformer, ViTConfig, split_patches
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

IMAGES = np.random.default_rng(0).normal(size=(2, 6, 6, 2)).astype(np.float32)
MODEL = VisionTransformer(VIT)
FACTORS = np.random.default_rng(1).normal(size=(2, VIT.classes))


@pytest.fixture(scope="module")
def params():
    return random_parameters(MODEL, IMAGES, deviation=0.4)


@pytest.fixture(scope="module")
def computed(params):
    """Returns the gradient of a weighted sum of the logits, and the logits."""

    def loss(params):
        logits = MODEL.apply({"params": params}, IMAGES, train=False)
        return (logits * FACTORS).sum(), logits

    return quick_jit(jax.grad(loss, has_aux=True))(params)


def test_logits_equal_numpy(params, computed):
    expected = numpy_vit.logits(params, IMAGES, patch_size=VIT.patch_size)
    np.testing.assert_allclose(computed[1], expected, atol=2e-5)


def test_gradients_equal_central_differences(params, computed):
    def loss(params):
        return (numpy_vit.logits(params, IMAGES, patch_size=VIT.patch_size) * FACTORS).sum()

    assert_gradient_close(computed[0], loss, params, atol=1e-4)


def test_patches_of_images_that_are_not_square_equal_a_loop():
    images = np.random.default_rng(2).normal(size=(2, 4, 6, 3)).astype(np.float32)
    np.testing.assert_array_equal(split_patches(images, 2), numpy_vit.cut_patches(images, 2))


@pytest.mark.parametrize("shape", [(2, 5, 6, 3), (2, 4, 5, 3)])
def test_patch_size_that_does_not_divide_height_and_width_is_an_error(shape):
    with pytest.raises(ValueError, match=r"got 2"):
        split_patches(jnp.zeros(shape), 2)


@pytest.mark.parametrize("shape", [(1, 6, 5, 2), (1, 5, 6, 2), (1, 6, 6, 3)])
def test_images_of_another_shape_are_an_error(shape, params):
    with pytest.raises(ValueError, match=r"image_size"):
        jax.eval_shape(lambda: MODEL.apply({"params": params}, np.zeros(shape), train=False))


@pytest.fixture(scope="module")
def initial():
    config = ViTConfig(
        image_size=24, patch_size=4, channels=4, classes=3, encoder_layers=1, d_model=64, d_ff=32, heads=2
    )
    init = quick_jit(lambda key: VisionTransformer(config).init(key, np.zeros((1, 24, 24, 4)), train=False))
    return init(jax.random.key(0))["params"]


def test_class_token_and_head_begin_at_zero(initial):
    assert not any(x.any() for x in jax.tree.leaves((initial["class_token"], initial["head"])))


def test_initial_positions_are_normal_with_a_deviation_of_2_per_cent(initial):
    table = np.asarray(initial["positions"]["table"])
    assert table.shape == (37, 64)
    assert table.std() == pytest.approx(0.02, rel=0.08)
    assert np.abs(table).max() > 0.05


def test_initial_kernel_of_patches_is_a_cut_normal_distribution_by_its_inputs(initial):
    kernel = np.asarray(initial["embedding"]["kernel"])
    assert kernel.shape == (64, 64)
    assert kernel.std() == pytest.approx(1 / 8, rel=0.06)
    assert 2 < np.abs(kernel).max() / kernel.std() < 2.4  # lecun_normal cuts at 2 deviations before it scales
    assert not initial["embedding"]["bias"].any()


def test_default_is_the_base_model_with_patches_of_16_pixels():
    """86,567,656 parameters, as in transformers, 12 heads of 64 features, and the exact gelu."""
    config = ViTConfig()
    model = VisionTransformer(config)
    init = lambda key: model.init(key, jnp.zeros((1, 224, 224, 3)), train=False)  # noqa: E731
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 86_567_656
    assert (config.patches, config.heads, config.activation) == (196, 12, "gelu")
    assert (config.norm_order, config.layer_norm_epsilon) == ("pre", 1e-6)
    assert config.feed_forward_dropout is None  # the hidden layer has the rate of the other sublayers


@pytest.mark.parametrize("patch_size", [5, 7, 16])
def test_config_whose_patches_do_not_divide_the_image_is_an_error(patch_size):
    with pytest.raises(UserError, match=rf"image_size 24, got {patch_size}"):
        ViTConfig(image_size=24, patch_size=patch_size)


def test_exported_preprocessing_maps_bytes_to_pixels_from_minus_1_to_1():
    config = types.SimpleNamespace(model=VIT)
    files = TARGETS["vit"].files(types.SimpleNamespace(task=types.SimpleNamespace(config=config)), "")
    values = json.loads(files[PREPROCESSOR_FILE])
    assert values["size"] == {"height": 6, "width": 6}
    mean, deviation = np.array(values["image_mean"]), np.array(values["image_std"])
    assert mean.shape == deviation.shape == (2,)
    pixels = np.array([[0, 0], [255, 255]]) * values["rescale_factor"]
    np.testing.assert_allclose((pixels - mean) / deviation, [[-1, -1], [1, 1]])
