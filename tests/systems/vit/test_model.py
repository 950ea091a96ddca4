"""Tests of the Vision Transformer against the equations of its paper in NumPy float64."""

import numpy as np
import pytest
import scipy.ndimage

from tests.models.cases import CLASSIFIERS, VIT
from tests.systems.vit import numpy_vit
from tfm.systems.vit.model import VisionTransformer, resize_positions
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

IMAGES = np.random.default_rng(0).normal(size=(3, 6, 6, 2)).astype(np.float32)


@quick_jit(static_argnums=0)
def apply(model, params, images):
    return model.apply({"params": params}, images, train=False)


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
def test_vision_transformer_equals_numpy(epsilon):
    model = VisionTransformer(VIT.__class__(**vars(VIT) | {"layer_norm_epsilon": epsilon}))
    params = random_parameters(model, IMAGES, deviation=0.3)
    expected = numpy_vit.logits(params, IMAGES, patch_size=3, epsilon=epsilon)
    np.testing.assert_allclose(apply(model, params, IMAGES), expected, atol=2e-5)


def test_patches_are_read_row_by_row():
    params = random_parameters(CLASSIFIERS["ViT"], IMAGES, deviation=0.3)
    table = params["positions"]["table"]
    same = params | {"positions": {"table": np.broadcast_to(table[:1], table.shape)}}
    swapped = np.concatenate([IMAGES[:, 3:], IMAGES[:, :3]], axis=1)
    model = CLASSIFIERS["ViT"]
    assert np.abs(apply(model, params, swapped) - apply(model, params, IMAGES)).max() > 1e-3
    np.testing.assert_allclose(apply(model, same, swapped), apply(model, same, IMAGES), atol=1e-5)


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (3, 3), (4, 1), (1, 3)])
def test_positions_are_interpolated_as_by_the_authors(old, new):
    """The authors' checkpoint.py calls scipy.ndimage.zoom of order 1 on the grid of the patches."""
    table = np.random.default_rng(0).normal(size=(1 + old * old, 5)).astype(np.float32)
    grid = table[1:].reshape(old, old, 5)
    expected = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1).reshape(-1, 5)
    resized = resize_positions(table, new)
    np.testing.assert_array_equal(resized[0], table[0])
    np.testing.assert_allclose(resized[1:], expected, atol=1e-6)


def test_only_the_positions_of_a_square_grid_are_resized():
    assert resize_positions(np.zeros((7, 5)), 3) is None
    model = CLASSIFIERS["ViT"]
    assert model.resize_parameter("head/kernel", np.zeros((5, 3)), (5, 2)) is None
    assert model.resize_parameter("positions/table", np.zeros((5, 3)), (5, 2)) is None
