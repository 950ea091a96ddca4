"""DETR once more, in NumPy float64 and loops, from the parameters and the state of the Flax one."""

import math

import numpy as np

from tests.references.numpy_transformer import feed_forward, layer_norm, project, wide
from tests.systems.detr import numpy_resnet

EPSILON = 1e-5


def attention(params, query, key, value, is_visible):
    """Attends from query [B, L, D] to key and value [B, M, D]. `is_visible` is bool [B, M]."""
    query, key, value = (
        project(params[name], x, "bld,dhk->blhk")
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    mixed = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, i, h in np.ndindex(*query.shape[:3]):
        keys, values = key[b, is_visible[b], h], value[b, is_visible[b], h]
        logits = keys @ query[b, i, h] / math.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max())
        mixed[b, i, h] = weights / weights.sum() @ values
    return project(params["output"], mixed, "blhv,hvd->bld")


def encode_places(valid, features):
    """Returns sinusoids [B, H * W, D] of the places of images, of which `valid` [B, H, W] are no padding."""
    batch, height, width = valid.shape
    result = np.zeros((batch, height, width, features))
    half = features // 2
    for b, row, column in np.ndindex(batch, height, width):
        place = (
            valid[b, : row + 1, column].sum() / (valid[b, :, column].sum() + 1e-6),
            valid[b, row, : column + 1].sum() / (valid[b, row].sum() + 1e-6),
        )
        for axis, share in enumerate(place):
            for index in range(half):
                angle = 2 * math.pi * share / 10_000 ** (2 * (index // 2) / half)
                value = math.cos(angle) if index % 2 else math.sin(angle)
                result[b, row, column, axis * half + index] = value
    return result.reshape(batch, -1, features)


def detr(params, state, images, valid, *, depths, stem):
    """Returns logits [layers, B, N, classes + 1] and boxes [layers, B, N, 4].

    Args:
      params: parameters of `tfm.systems.detr.model.DETR`.
      state: statistics of the frozen norms.
      images: [B, height, width, C].
      valid: bool [B, H, W], the places of the feature map that are no padding.
      depths, stem: see `numpy_resnet.resnet`.
    """
    features = numpy_resnet.resnet(params["backbone"], state["backbone"], images, depths=depths, stem=stem)
    memory = project(params["projection"], features, "bhwc,cd->bhwd")
    memory = memory.reshape(len(images), -1, memory.shape[-1])
    places, is_visible = encode_places(valid, memory.shape[-1]), valid.reshape(len(images), -1)
    encoder, decoder = params["encoder"], params["decoder"]
    for index in range(sum(name.startswith("layers_") for name in encoder)):
        layer = encoder[f"layers_{index}"]
        where = memory + places
        y = memory + attention(layer["self_attention"], where, where, memory, is_visible)
        y = layer_norm(layer["self_attention_residual"]["norm"], y, EPSILON)
        memory = layer_norm(
            layer["feed_forward_residual"]["norm"], y + feed_forward(layer["feed_forward"], y), EPSILON
        )
    queries = np.broadcast_to(wide(params["queries"]), (len(images), *params["queries"].shape))
    x, everywhere = np.zeros(queries.shape), np.ones(queries.shape[:2], bool)
    outputs = []
    for index in range(sum(name.startswith("layers_") for name in decoder)):
        layer = decoder[f"layers_{index}"]
        y = attention(layer["self_attention"], x + queries, x + queries, x, everywhere)
        x = layer_norm(layer["self_attention_residual"]["norm"], x + y, EPSILON)
        y = attention(layer["cross_attention"], x + queries, memory + places, memory, is_visible)
        x = layer_norm(layer["cross_attention_residual"]["norm"], x + y, EPSILON)
        y = feed_forward(layer["feed_forward"], x)
        x = layer_norm(layer["feed_forward_residual"]["norm"], x + y, EPSILON)
        outputs.append(layer_norm(decoder["output"]["norm"], x, EPSILON))
    outputs = np.stack(outputs)
    hidden = outputs
    for name in ("hidden_0", "hidden_1"):
        hidden = np.maximum(project(params["box_head"][name], hidden, "lbnd,df->lbnf"), 0)
    boxes = 1 / (1 + np.exp(-project(params["box_head"]["output"], hidden, "lbnd,df->lbnf")))
    return project(params["class_head"], outputs, "lbnd,dc->lbnc"), boxes
