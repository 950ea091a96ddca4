"""Tests of DETR and of residual networks against their equations in NumPy float64."""

import jax
import numpy as np
import pytest

from tests.models import cases
from tests.references.numeric_gradients import assert_gradient_close
from tests.references.numpy_transformer import project
from tests.systems.detr import numpy_detr, numpy_resnet
from tfm.layers.batch_norm import Rows
from tfm.systems.detr.model import DETR, DETRConfig
from tfm.systems.detr.resnet import ResNetClassifier, ResNetConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 12, 8, 2)).astype(np.float32)
VALID = np.ones((2, 12, 8), bool)
VALID[0, 8:] = VALID[0, :, 5:] = False
PLACES = VALID[:, ::4, ::4]  # the feature map is smaller by a factor of 4
FACTORS = [RNG.normal(size=(2, 2, 3, features)) for features in (6, 4)]
MODEL = cases.DETECTORS["DETR"]
SIZES = {"depths": MODEL.config.backbone_depths, "stem": "small"}


def random_state(model, *inputs):
    """Returns random statistics of norms, none of them zero."""
    init = lambda key: model.init(key, *inputs, train=False)  # noqa: E731
    rng = np.random.default_rng(1)

    def draw(path, x):
        positive = path[-1].key in ("variance", "scale")
        return (rng.uniform(0.5, 1.5, x.shape) if positive else rng.normal(0, 0.3, x.shape)).astype(x.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(init, jax.random.key(0))["batch_stats"])


@pytest.fixture(scope="module")
def variables():
    params = random_parameters(MODEL, IMAGES, deviation=0.3)
    return {"params": params, "batch_stats": random_state(MODEL, IMAGES)}


def detect(variables, params):
    return numpy_detr.detr(params, variables["batch_stats"], IMAGES, PLACES, **SIZES)


def weigh(predictions):
    """Returns a sum of all predictions that tells them apart."""
    return sum((x * factor).sum() for x, factor in zip(predictions, FACTORS, strict=True))


def test_detections_of_all_layers_equal_numpy(variables):
    apply = quick_jit(lambda variables: MODEL.apply(variables, IMAGES, VALID, train=False))
    for actual, expected in zip(apply(variables), detect(variables, variables["params"]), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.long
def test_gradients_of_detections_equal_central_differences(variables):
    def loss(params):
        return weigh(MODEL.apply({**variables, "params": params}, IMAGES, VALID, train=False))

    gradient = quick_jit(jax.grad(loss))(variables["params"])
    reference = lambda params: weigh(detect(variables, params))  # noqa: E731
    assert_gradient_close(gradient, reference, variables["params"], rtol=2e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("stem", "size"), [("imagenet", 16), ("small", 9)])
def test_classifier_and_its_gradient_equal_numpy(stem, size, train):
    config = ResNetConfig(image_size=size, channels=2, classes=4, depths=(2, 1), width=4, stem=stem)
    model = ResNetClassifier(config)
    images = np.random.default_rng(2).normal(size=(4, size, size, 2)).astype(np.float32)
    weights = np.float32([1, 1, 1, 0]) if train else None
    rows = None if weights is None else Rows(weights)
    factors = np.random.default_rng(3).normal(size=(4, 4))
    params, state = random_parameters(model, images, deviation=0.3), random_state(model, images)

    def loss(params):
        logits, _ = model.apply(
            {"params": params, "batch_stats": state}, images, rows, train=train, mutable=["batch_stats"]
        )
        return (logits * factors).sum(), logits

    def reference(params):
        x = numpy_resnet.resnet(
            params["backbone"], state["backbone"], images, depths=(2, 1), stem=stem, weights=weights
        )
        return project(params["head"], x.mean((1, 2)), "bd,dc->bc")

    gradient, logits = quick_jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(logits, reference(params), rtol=1e-4, atol=1e-4)
    assert_gradient_close(
        gradient, lambda params: (reference(params) * factors).sum(), params, rtol=5e-3, atol=1e-3
    )


@pytest.mark.long
def test_initial_parameters_are_normal_by_fan_out_uniform_as_glorot_and_normal_for_queries():
    model = DETR(
        DETRConfig(
            channels=2,
            classes=9,
            queries=20,
            encoder_layers=1,
            decoder_layers=1,
            backbone_depths=(1,),
            backbone_width=16,
            backbone_stem="small",
            d_model=64,
            d_ff=64,
            heads=4,
        )
    )
    init = quick_jit(lambda key: model.init(key, np.zeros((1, 8, 8, 2), np.float32), train=False))
    params = init(jax.random.key(0))["params"]
    assert params["queries"].std() == pytest.approx(1, rel=0.1)
    kernels = {name: params["backbone"]["stage_0_block_0"][name]["kernel"] for name in ("conv_2", "conv_3")}
    for name, outputs in {"conv_2": 9 * 16, "conv_3": 64}.items():
        assert np.std(kernels[name]) == pytest.approx(np.sqrt(2 / outputs), rel=0.1), name
        assert np.abs(kernels[name]).max() > 2.5 * np.std(kernels[name])  # uniform numbers reach 1.7
    for head, shape in {"hidden_0": (64, 64), "output": (64, 4)}.items():
        limit = np.sqrt(6 / sum(shape))
        kernel = params["box_head"][head]["kernel"]
        assert np.abs(kernel).max() == pytest.approx(limit, rel=0.05), head
    assert not params["class_head"]["bias"].any()
