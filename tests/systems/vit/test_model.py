"""Tests of the Vision Transformer against the equations of its paper in NumPy float64."""

import numpy as np
import pytest

from tests.models.cases import CLASSIFIERS, VIT
from tests.systems.vit import numpy_vit
from tfm.systems.vit.model import VisionTransformer
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
