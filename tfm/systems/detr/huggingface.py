"""DETR in transformers: the fields of its config, its arrays and its normalization of pixels, for the import.

The arrays of the backbone have the names of timm ("conv1", "layer1.0.bn1") or of transformers' own ResNet
("embedder", "encoder.stages.0").
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfm import tasks
from tfm.errors import UserError
from tfm.huggingface.arrays import Entry
from tfm.huggingface.family import Family, Target, linear_entries, norm_entries
from tfm.huggingface.fields import TWO_LABELS, Fields
from tfm.huggingface.preprocessor import read_normalization
from tfm.huggingface.vocabulary import Vocabulary
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig

ARCHITECTURE = "DetrForObjectDetection"
BACKBONE = "model.backbone.conv_encoder.model"
IMAGENET_MEAN, IMAGENET_DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# {name in tfm: name in transformers} of the projections of an attention
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
STATISTICS = {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
SIZE = 1024  # pixels of the longer side of a picture in an imported config


class Names(NamedTuple):
    """The names of the modules of a ResNet, for `str.format` with stage, block and part of the block.

    Attributes:
      stem, stem_norm: the first convolution and its norm.
      block: prefix of a block. Stages and blocks are counted from 0.
      convolution, norm: in a block. Parts are counted from 0.
      shortcut, shortcut_norm: in a block.
      first: number of the first stage and of the first part in these names.
    """

    stem: str
    stem_norm: str
    block: str
    convolution: str
    norm: str
    shortcut: str
    shortcut_norm: str
    first: int


TIMM = Names("conv1", "bn1", "layer{}.{}", "conv{}", "bn{}", "downsample.0", "downsample.1", first=1)
TRANSFORMERS = Names(
    "embedder.embedder.convolution",
    "embedder.embedder.normalization",
    "encoder.stages.{}.layers.{}",
    "layer.{}.convolution",
    "layer.{}.normalization",
    "shortcut.convolution",
    "shortcut.normalization",
    first=0,
)


def detr_model(fields: Fields) -> DETRConfig:
    """Returns the config of DETR. The arrays decide the size of the backbone."""
    architectures = fields.get("architectures", list, None) or [ARCHITECTURE]
    if architectures != [ARCHITECTURE]:
        raise UserError(
            f"{fields.path}: expected architectures to be [{ARCHITECTURE!r}], got {architectures!r}. tfm "
            "has no such model."
        )
    for name, value in {
        "dilation": False,
        "position_embedding_type": "sine",
        "scale_embedding": False,
    }.items():
        fields.require(name, value)
    heads, d_ff = (_require_equal(fields, name) for name in ("attention_heads", "ffn_dim"))
    activation, _ = fields.activation("activation_function", "relu")
    channels = fields.get("num_channels", int, 3)
    mean, deviation = read_normalization(os.path.dirname(fields.path), *_imagenet(channels))
    names = _find_names(fields)
    depths = _count_blocks(fields, names)
    stem = fields.shapes[f"{BACKBONE}.{names.stem}.weight"]
    return DETRConfig(
        channels=channels,
        classes=len(fields.get("id2label", dict, TWO_LABELS)),
        queries=fields.get("num_queries", int, 100),
        encoder_layers=fields.get("encoder_layers", int, 6),
        decoder_layers=fields.get("decoder_layers", int, 6),
        backbone_depths=depths,
        backbone_width=stem[0],
        pixel_mean=tuple(mean),
        pixel_deviation=tuple(deviation),
        d_model=fields.get("d_model", int, 256),
        d_ff=d_ff,
        heads=heads,
        activation=activation,
        dropout=fields.get("dropout", float, 0.1),
        attention_dropout=fields.get("attention_dropout", float, 0.0),
        feed_forward_dropout=fields.get("activation_dropout", float, 0.0),
    )


def detr_entries(model: DETRConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of DETR."""
    yield from _backbone_entries(model, _find_names(fields))
    yield Entry("projection/kernel", "model.input_projection.weight", "convolution")
    yield Entry("projection/bias", "model.input_projection.bias")
    yield Entry("queries", "model.query_position_embeddings.weight")
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i in range(layers):
            yield from _layer_entries(f"{stack}/layers_{i}", f"model.{stack}.layers.{i}")
    yield from norm_entries("decoder/output/norm", "model.decoder.layernorm")
    yield from linear_entries("class_head", "class_labels_classifier")
    for i, name in enumerate(("hidden_0", "hidden_1", "output")):
        yield from linear_entries(f"box_head/{name}", f"bbox_predictor.layers.{i}")


def make_config(model: DETRConfig, vocabulary: Vocabulary | None) -> Any:
    """Returns the config of an export, for data in COCO's format."""
    del vocabulary
    data = BoxedPicturesConfig(
        kind="coco", height=SIZE, width=SIZE, max_objects=min(model.queries, 100), flip=True, batch_size=4
    )
    return tasks.find("detection").Config(model=model, data=data)


def _layer_entries(ours: str, theirs: str) -> Iterator[Entry]:
    """Yields the entries of a layer of the encoder or decoder."""
    attentions = {"self_attention": "self_attn"}
    if ours.startswith("decoder"):
        attentions["cross_attention"] = "encoder_attn"
    for attention, their_attention in attentions.items():
        for name, their_name in PROJECTIONS.items():
            yield from linear_entries(
                f"{ours}/{attention}/{name}", f"{theirs}.{their_attention}.{their_name}"
            )
        yield from norm_entries(f"{ours}/{attention}_residual/norm", f"{theirs}.{their_attention}_layer_norm")
    yield from linear_entries(f"{ours}/feed_forward/hidden", f"{theirs}.fc1")
    yield from linear_entries(f"{ours}/feed_forward/output", f"{theirs}.fc2")
    yield from norm_entries(f"{ours}/feed_forward_residual/norm", f"{theirs}.final_layer_norm")


def _backbone_entries(model: DETRConfig, names: Names) -> Iterator[Entry]:
    """Yields the entries of the ResNet."""
    yield from _convolution_entries("stem", "stem_norm", names.stem, names.stem_norm)
    for stage, depth in enumerate(model.backbone_depths):
        for index in range(depth):
            ours = f"stage_{stage}_block_{index}"
            theirs = names.block.format(stage + names.first, index)
            for part in range(3):
                number = part + names.first
                convolution, norm = names.convolution.format(number), names.norm.format(number)
                yield from _convolution_entries(
                    f"{ours}/conv_{part + 1}",
                    f"{ours}/norm_{part + 1}",
                    f"{theirs}.{convolution}",
                    f"{theirs}.{norm}",
                )
            if index == 0:
                yield from _convolution_entries(
                    f"{ours}/shortcut",
                    f"{ours}/shortcut_norm",
                    f"{theirs}.{names.shortcut}",
                    f"{theirs}.{names.shortcut_norm}",
                )


def _convolution_entries(ours: str, our_norm: str, theirs: str, their_norm: str) -> Iterator[Entry]:
    """Yields the entries of a convolution of the backbone and of the frozen batch norm after it."""
    yield Entry(f"backbone/{ours}/kernel", f"{BACKBONE}.{theirs}.weight", "convolution")
    for name, their_name in STATISTICS.items():
        yield Entry(f"batch_stats:backbone/{our_norm}/{name}", f"{BACKBONE}.{their_norm}.{their_name}")


def _find_names(fields: Fields) -> Names:
    """Returns the names of the backbone's modules.

    Raises:
      UserError: if the folder has another backbone than a ResNet of bottleneck blocks, such as ResNet-50.
    """
    for names in (TIMM, TRANSFORMERS):
        block = names.block.format(names.first, 0)
        last = names.convolution.format(2 + names.first)
        if {f"{BACKBONE}.{names.stem}.weight", f"{BACKBONE}.{block}.{last}.weight"} <= set(fields.arrays):
            return names
    raise UserError(
        f"{fields.path}: expected a backbone such as ResNet-50 or ResNet-101, whose blocks have three "
        f"convolutions, but there is neither an array {BACKBONE}.layer1.0.conv3.weight (timm) nor "
        f"{BACKBONE}.encoder.stages.0.layers.0.layer.2.convolution.weight (transformers). tfm has no such "
        "model."
    )


def _count_blocks(fields: Fields, names: Names) -> tuple[int, ...]:
    """Returns the number of blocks of each stage."""

    def has_block(stage: int, index: int) -> bool:
        block = names.block.format(stage + names.first, index)
        return f"{BACKBONE}.{block}.{names.convolution.format(names.first)}.weight" in fields.shapes

    def count_blocks(stage: int) -> int:
        return next(index for index in itertools.count() if not has_block(stage, index))

    depths = map(count_blocks, itertools.count())
    return tuple(itertools.takewhile(bool, depths))


def _require_equal(fields: Fields, name: str) -> int:
    """Returns a size of the layers. Raises a UserError if encoder and decoder have different sizes."""
    size = int(fields.get(f"encoder_{name}", int))
    fields.require(f"decoder_{name}", size)
    return size


def _imagenet(channels: int) -> tuple[list[float], list[float]]:
    """Returns the default mean and deviation of transformers, for pixels from 0 to 1."""
    if channels == len(IMAGENET_MEAN):
        return IMAGENET_MEAN, IMAGENET_DEVIATION
    return [0.5] * channels, [0.5] * channels


FAMILIES = {
    "detr": Family(
        architecture=ARCHITECTURE,
        prefix="model.",
        model=detr_model,
        entries=detr_entries,
        make_config=make_config,
    )
}
TARGETS: dict[str, Target] = {}
