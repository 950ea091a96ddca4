"""Tests of DETR: published sizes, padding of images, and encodings of places."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import cases
from tfm.devices.memory import count_elements
from tfm.errors import UserError
from tfm.systems.detr.model import DETR, DETRConfig, encode_places
from tfm.testing.models import quick_jit

MODEL = cases.DETECTORS["DETR"]


@pytest.mark.parametrize(("classes", "expected"), [(91, 41_524_768), (2, 41_501_895)])
def test_detr_has_the_published_number_of_parameters(classes, expected):
    """As in transformers. The statistics and the affine part of frozen batch norms are state."""
    model = DETR(DETRConfig(classes=classes))
    init = lambda key: model.init(key, jnp.zeros((1, 64, 64, 3)), train=False)  # noqa: E731
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert count_elements(shapes["params"]) == expected
    assert count_elements(shapes["batch_stats"]) == 106_240


class Patches(nn.Module):
    """A backbone whose places do not read each other's pixels."""

    @nn.compact
    def __call__(self, images, *, train):
        return nn.Conv(6, (4, 4), 4, padding="VALID")(images)


class PatchDETR(DETR):
    def make_backbone(self):
        return Patches()


def test_padding_after_the_backbone_changes_nothing():
    model = PatchDETR(MODEL.config)
    image = np.random.default_rng(0).normal(size=(1, 8, 8, 2)).astype(np.float32)
    variables = quick_jit(lambda key: model.init(key, image, train=False))(jax.random.key(0))
    padded = np.ones((1, 16, 12, 2), np.float32)
    padded[:, :8, :8] = image
    valid = np.zeros((1, 16, 12), bool)
    valid[:, :8, :8] = True
    plain = model.apply(variables, image, train=False)
    masked = model.apply(variables, padded, valid, train=False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), masked, plain)


def test_places_are_relative_to_the_valid_part():
    valid = np.zeros((2, 4, 6), bool)
    valid[0, :2, :3], valid[1] = True, True
    places = np.asarray(encode_places(valid, 8))
    small = np.asarray(encode_places(np.ones((1, 2, 3), bool), 8))
    np.testing.assert_allclose(places[0, :2, :3], small[0], atol=1e-6)
    angle = 2 * np.pi * 3 / 4  # the third of four rows
    np.testing.assert_allclose(
        places[1, 2, 0, :4],
        [np.sin(angle), np.cos(angle), np.sin(angle / 100), np.cos(angle / 100)],
        atol=1e-5,
    )


def test_width_that_does_not_divide_into_sines_and_cosines_of_two_axes_is_an_error():
    with pytest.raises(UserError, match=r"multiple of 4.*got 6"):
        DETRConfig(d_model=6, heads=2)


def test_backbone_reads_pixels_with_the_mean_and_deviation_of_the_config():
    image = np.random.default_rng(0).uniform(-1, 1, (1, 8, 8, 2)).astype(np.float32)
    valid = np.ones((1, 8, 8), bool)
    valid[:, 6:] = False
    config = dataclasses.replace(MODEL.config, pixel_mean=(0.4, 0.6), pixel_deviation=(0.2, 0.3))
    model = PatchDETR(config)
    variables = quick_jit(lambda key: model.init(key, image, train=False))(jax.random.key(0))
    normalized = ((image + 1) / 2 - (0.4, 0.6)) / (0.2, 0.3) * valid[..., None]
    found = model.apply(variables, image, valid, train=False)
    expected = PatchDETR(MODEL.config).apply(variables, normalized.astype(np.float32), valid, train=False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pixel_mean": (0.5,), "pixel_deviation": (0.5,)}, "3 channels.*got 1 and 1"),
        ({"pixel_mean": (0.5, 0.5, 0.5)}, "pixel_deviation.*got 3 and 0"),
        ({"pixel_mean": (0.5, 0.5, 0.5), "pixel_deviation": (1.0, 0.0, 1.0)}, "above 0"),
    ],
)
def test_mean_and_deviation_have_a_value_for_each_channel(fields, message):
    with pytest.raises(UserError, match=message):
        DETRConfig(**fields)
