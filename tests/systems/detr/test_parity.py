"""Parity of DETR with the implementation of transformers, whose outputs `detr_fixture.py` wrote."""

import pathlib
import re

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.systems.detr import detr_fixture as fixture
from tfm.systems.detr.model import DETR, Detections, DETRConfig
from tfm.systems.detr.set_loss import LossWeights, set_loss
from tfm.testing.models import quick_jit

MODEL = DETR(
    DETRConfig(
        classes=fixture.CLASSES,
        queries=fixture.QUERIES,
        encoder_layers=fixture.ENCODER_LAYERS,
        decoder_layers=fixture.DECODER_LAYERS,
        d_model=fixture.D_MODEL,
        d_ff=fixture.D_FF,
        heads=fixture.HEADS,
        backbone_depths=fixture.DEPTHS,
        backbone_width=fixture.WIDTH,
    )
)
IMAGES, VALID = fixture.make_images()
OUTPUTS = np.load(pathlib.Path(fixture.__file__).with_name("detr.npz"))
NORMS = {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
# (pattern of our path, name of their module). Groups of the pattern fill the name.
MODULES = (
    (r"queries", "model.query_position_embeddings"),
    (r"projection", "model.input_projection"),
    (r"class_head", "class_labels_classifier"),
    (r"box_head/output", "bbox_predictor.layers.2"),
    (r"box_head/hidden_(\d)", r"bbox_predictor.layers.\1"),
    (r"decoder/output/norm", "model.decoder.layernorm"),
    (r"backbone/stem", "model.backbone.model.embedder.embedder.convolution"),
    (r"backbone/stem_norm", "model.backbone.model.embedder.embedder.normalization"),
    (r"(encoder|decoder)/layers_(\d)/feed_forward/hidden", r"model.\1.layers.\2.mlp.fc1"),
    (r"(encoder|decoder)/layers_(\d)/feed_forward/output", r"model.\1.layers.\2.mlp.fc2"),
    (
        r"(encoder|decoder)/layers_(\d)/self_attention_residual/norm",
        r"model.\1.layers.\2.self_attn_layer_norm",
    ),
    (
        r"(encoder|decoder)/layers_(\d)/cross_attention_residual/norm",
        r"model.\1.layers.\2.encoder_attn_layer_norm",
    ),
    (r"(encoder|decoder)/layers_(\d)/feed_forward_residual/norm", r"model.\1.layers.\2.final_layer_norm"),
)


def their_module(module):
    """Returns the name of a module in transformers."""
    for pattern, name in MODULES:
        if match := re.fullmatch(pattern, module):
            return match.expand(name)
    if match := re.fullmatch(r"(encoder|decoder)/layers_(\d)/(self|cross)_attention/(\w+)", module):
        stack, layer, kind, projection = match.groups()
        attention = "self_attn" if kind == "self" else "encoder_attn"
        return f"model.{stack}.layers.{layer}.{attention}.{PROJECTIONS[projection]}"
    stage, block, part = re.fullmatch(r"backbone/stage_(\d)_block_(\d)/(\w+)", module).groups()
    kind = "normalization" if "norm" in part else "convolution"
    inner = "shortcut" if "shortcut" in part else f"layer.{int(part[-1]) - 1}"
    return f"model.backbone.model.encoder.stages.{stage}.layers.{block}.{inner}.{kind}"


def make_array(path, shape):
    """Returns the array that transformers' model has for one of our paths, in our layout."""
    module, _, leaf = path.rpartition("/")
    if path == "queries":
        return fixture.make_array("model.query_position_embeddings.weight", shape)
    name = their_module(module)
    if leaf != "kernel":
        return fixture.make_array(f"{name}.{NORMS[leaf]}", (int(np.prod(shape)),)).reshape(shape)
    if "convolution" in name:
        return fixture.make_array(f"{name}.weight", (shape[3], shape[2], *shape[:2])).transpose(2, 3, 1, 0)
    inputs = int(np.prod(shape[:-1])) if name.endswith("o_proj") else shape[0]
    outputs = int(np.prod(shape)) // inputs
    theirs = (outputs, inputs, 1, 1) if "input_projection" in name else (outputs, inputs)
    return fixture.make_array(f"{name}.weight", theirs).reshape(outputs, inputs).T.reshape(shape)


@pytest.fixture(scope="module")
def variables():
    shapes = jax.eval_shape(lambda key: MODEL.init(key, IMAGES, train=False), jax.random.key(0))
    return {
        collection: unflatten_dict(
            {path: make_array(path, x.shape) for path, x in flatten_dict(tree, sep="/").items()}, sep="/"
        )
        for collection, tree in shapes.items()
    }


@pytest.fixture(scope="module")
def padded(variables):
    return quick_jit(lambda variables: MODEL.apply(variables, IMAGES, VALID, train=False))(variables)


@pytest.mark.long
def test_detections_of_whole_images_equal_those_of_transformers(variables):
    found = quick_jit(lambda variables: MODEL.apply(variables, IMAGES, train=False))(variables)
    np.testing.assert_allclose(found.logits[-1], OUTPUTS["logits"], atol=1e-5)
    np.testing.assert_allclose(found.boxes[-1], OUTPUTS["boxes"], atol=1e-5)


def test_detections_of_padded_images_equal_those_of_transformers(padded):
    np.testing.assert_allclose(padded.logits[-1], OUTPUTS["padded_logits"], atol=1e-5)
    np.testing.assert_allclose(padded.boxes[-1], OUTPUTS["padded_boxes"], atol=1e-5)


def test_loss_equals_that_of_transformers(padded):
    batch = {
        "boxes": np.zeros((3, 3, 4), np.float32),
        "labels": np.zeros((3, 3), np.int32),
        "objects": np.zeros((3, 3), np.float32),
        "weights": np.ones(3, np.float32),
    }
    for row, (labels, boxes) in enumerate(zip(fixture.LABELS, fixture.BOXES, strict=True)):
        count = len(labels)
        batch["labels"][row, :count] = labels
        batch["boxes"][row, :count] = np.reshape(boxes, (count, 4))
        batch["objects"][row, :count] = 1
    last = Detections(padded.logits[-1:], padded.boxes[-1:])
    terms, _ = quick_jit(lambda found, batch: set_loss(found, batch, LossWeights()))(last, batch)
    assert float(sum(total / count for total, count in terms.values())) == pytest.approx(
        float(OUTPUTS["loss"]), rel=1e-5
    )
