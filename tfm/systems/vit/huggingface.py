"""ViT in transformers: the fields of its config, its arrays and its preprocessing, in both directions."""

import dataclasses
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfm import tasks
from tfm.huggingface.arrays import Entry
from tfm.huggingface.family import (
    PIPELINE,
    Family,
    Target,
    encoder_fields,
    encoder_layer_entries,
    linear_entries,
    norm_entries,
    to_json,
)
from tfm.huggingface.fields import TWO_LABELS, Fields
from tfm.huggingface.preprocessor import PREPROCESSOR_FILE, read_normalization
from tfm.huggingface.vocabulary import Vocabulary
from tfm.systems.vit.model import ViTConfig

ARCHITECTURE = "ViTForImageClassification"
# Arrays of other classes of transformers with the same encoder: a pooler, and the decoder of masked patches.
UNUSED = re.compile(
    r"vit\.pooler\.dense\.(weight|bias)|vit\.embeddings\.mask_token|decoder\.0\.(weight|bias)"
)
log = logging.getLogger(__name__)


def vit_model(fields: Fields) -> ViTConfig:
    """Returns the config of ViT. A model without a classifier gets two classes."""
    labels = TWO_LABELS if is_headless(fields) else fields.get("id2label", dict, TWO_LABELS)
    fields.require("qkv_bias", True)
    activation, _ = fields.activation("hidden_act")
    return ViTConfig(
        image_size=fields.get("image_size", int),
        patch_size=fields.get("patch_size", int),
        channels=fields.get("num_channels", int, 3),
        classes=len(labels),
        encoder_layers=fields.get("num_hidden_layers", int),
        d_model=fields.get("hidden_size", int),
        d_ff=fields.get("intermediate_size", int),
        heads=fields.get("num_attention_heads", int),
        activation=activation,
        attention_bias=True,
        layer_norm_epsilon=fields.get("layer_norm_eps", float),
        dropout=fields.get("hidden_dropout_prob", float, 0.0),
        attention_dropout=fields.get("attention_probs_dropout_prob", float, 0.0),
    )


def vit_entries(model: ViTConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of ViT."""
    yield Entry("class_token", "vit.embeddings.cls_token", "one_row")
    yield Entry("positions/table", "vit.embeddings.position_embeddings", "one_row")
    projection = "vit.embeddings.patch_embeddings.projection"
    yield Entry("embedding/kernel", f"{projection}.weight", "patches", patch_size=model.patch_size)
    yield Entry("embedding/bias", f"{projection}.bias")
    yield from norm_entries("encoder/norm", "vit.layernorm")
    yield from linear_entries("head", "classifier", optional=is_headless(fields))
    for i in range(model.encoder_layers):
        norms = "layernorm_before", "layernorm_after"
        yield from encoder_layer_entries(i, f"vit.encoder.layer.{i}", "attention", norms)


def is_headless(fields: Fields) -> bool:
    """Returns whether a folder has an encoder without a classifier, such as `ViTModel` for ImageNet-21k.

    Returns False if the arrays are not known, or if the config says that there is a classifier.
    """
    if not fields.arrays or {"classifier.weight", "classifier.bias"} & set(fields.arrays):
        return False
    return ARCHITECTURE not in (fields.get("architectures", list, None) or [])


def finish_import(folder: str, model: Any, parameters: dict[str, np.ndarray]) -> None:
    """Folds the normalization into the patches, and warns if the folder had no classifier.

    See `fold_normalization` for the arguments and the errors.
    """
    fold_normalization(folder, model, parameters)
    if not parameters["head/kernel"].any() and not parameters["head/bias"].any():
        log.warning(
            "%s has no classifier, so the head of the export is 0 and predicts nothing. Train a head for "
            "your own classes: tfm train --config=EXPORT/config.json --warm_start=EXPORT "
            "--warm_start_map='*=*' --config.model.classes=N",
            folder,
        )


def fold_normalization(folder: str, model: Any, parameters: dict[str, np.ndarray]) -> None:
    """Changes the kernel and bias of the patches, in place, for pixels from -1 to 1.

    transformers reads (x - mean) / deviation of pixels x from 0 to 1, or x if do_normalize is false.

    Raises:
      UserError: see `read_normalization`.
    """
    mean, deviation = map(
        np.asarray, read_normalization(folder, [0.5] * model.channels, [0.5] * model.channels)
    )
    kernel = parameters["embedding/kernel"].reshape(-1, model.channels, model.d_model)
    shift = ((0.5 - mean) / deviation)[:, None]
    bias = parameters["embedding/bias"] + (kernel * shift).sum((0, 1))
    scaled = kernel * (0.5 / deviation)[:, None]
    parameters["embedding/bias"] = bias.astype(np.float32)
    parameters["embedding/kernel"] = scaled.reshape(parameters["embedding/kernel"].shape).astype(np.float32)


def make_config(model: ViTConfig, vocabulary: Vocabulary | None) -> Any:
    """Returns the config of an export."""
    del vocabulary
    config_class = tasks.find("image_classification").Config
    data = dataclasses.replace(config_class().data, kind="arrays", file="images.npz")
    return config_class(model=model, data=data)


def _vit_config(run: Any) -> dict[str, Any]:
    model = run.task.config.model
    return {
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_channels": model.channels,
        "qkv_bias": True,
        **encoder_fields(model, run.task.label_names),
    }


def _vit_files(run: Any, workdir: str) -> dict[str, bytes]:
    """Returns the preprocessing of images: pixels from -1 to 1, as tfm reads them."""
    del workdir
    size, channels = run.task.config.model.image_size, run.task.config.model.channels
    values = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * channels,
        "image_std": [0.5] * channels,
    }
    return {PREPROCESSOR_FILE: to_json(values)}


FAMILIES = {
    "vit": Family(
        architecture=ARCHITECTURE,
        prefix="vit.",
        model=vit_model,
        entries=vit_entries,
        make_config=make_config,
        has_labels=lambda model: True,
        finish=finish_import,
        unused=UNUSED,
    )
}
TARGETS = {
    "vit": Target(
        model_type="vit",
        family=FAMILIES["vit"],
        required={"norm_order": "pre", "positions": "learned"},
        config=_vit_config,
        files=_vit_files,
        example=lambda model: PIPELINE.format("image-classification"),
        find_problems=lambda config, tokenizer: iter(()),
    )
}
