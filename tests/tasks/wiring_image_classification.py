"""Observers of the config sections of image classification, and of models that classify images."""

import os
import pathlib
from typing import Any

import numpy as np
from PIL import Image

from tests.support import images
from tests.wiring.case import Case, Observation
from tests.wiring.folder import OTHER_SPLITS, OTHER_TFDS, SPLITS, TFDS
from tests.wiring.observers import list_batches, observe_loss, open_run
from tfm.data.config import ImagesConfig
from tfm.data.images import ImageBatches, open_images
from tfm.systems.vit.model import ViTConfig
from tfm.tasks import image_classification

ARRAYS = ImagesConfig(kind="arrays", file="images.npz", batch_size=8)
NORMALIZED_ARRAYS = ImagesConfig(
    kind="arrays", file="normalized.npz", mean=(0.1,), deviation=(0.9,), batch_size=3
)
TABLE = ImagesConfig(
    kind="table", directory="pictures", train="train.csv", resize=4, batch_size=3, cache_dir="picture_cache"
)
VIT = ViTConfig(
    image_size=4, channels=2, patch_size=2, classes=3, encoder_layers=1, d_model=8, d_ff=12, heads=2
)


class EqualProbabilities(image_classification.Classification):
    """A classification whose model is replaced. All classes have the same probability."""

    def classify(self, variables, images):
        """Returns the same number for all classes."""
        return np.zeros((len(images), len(self.label_names)))


def observe_classification(config: image_classification.Config) -> Observation:
    """Traces the initialization and the loss."""
    size, classes = config.model.image_size, range(config.model.classes)
    pixels = np.zeros((2, size, size, config.model.channels), np.float32)
    batch = {"images": pixels, "labels": np.zeros(2, int), "weights": np.ones(2)}
    return observe_loss(image_classification.Classification(config, list(map(str, classes)), ""), batch)


def observe_model(model: Any) -> Observation:
    """Traces the initialization and the loss of a model that classifies images."""
    return observe_classification(image_classification.Config(model=model))


def observe_images(data: ImagesConfig) -> Observation:
    """Observes a run with this data section, and the images that its evaluations and reports read."""
    config = image_classification.Config(model=images.MODEL, data=data)
    task, opened, observation = open_run(config)
    replaced = EqualProbabilities(config, task.label_names, "")
    report = next(iter(replaced.report({"params": None}, "test")))
    return observation | {
        "validation": list_batches(opened.validation_batches()),
        "test": report.examples,
    }


def observe_stored_images(data: ImagesConfig) -> Observation:
    """Observes the training images of a data set."""
    source = open_images(data, "train")
    pixels, labels = source.take(np.arange(len(source)))
    return {"images": pixels.tolist(), "labels": labels.tolist(), "fingerprint": source.fingerprint}


def observe_pictures(data: ImagesConfig) -> Observation:
    """Observes the first batch of pictures, the names of their classes and what the cache contains."""
    source = open_images(data, "train")
    return {
        "batch": list_batches([ImageBatches(source, data, 0).batch(0)]),
        "names": source.label_names,
        "cache": (data.cache, os.path.isdir(os.path.join(data.cache, "pictures"))),
    }


def write_data() -> None:
    """Writes images in arrays, and folders of pictures with a table of labels for each split."""
    images.write_arrays("images.npz", {split: 8 * size // 5 for split, size in SPLITS.items()})
    images.write_arrays("others.npz", {split: 6 * size // 5 for split, size in SPLITS.items()})
    rng = np.random.default_rng(0)
    for folder in map(pathlib.Path, ("pictures", "pictures/others")):
        folder.mkdir()
        for number in range(6):
            pixels = rng.integers(0, 256, (5, 7 + number % 2, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    rows = [f"{number}.png,{5 - number}.png,{number % 3},{'ab'[number % 2]}" for number in range(6)]
    for split, size in SPLITS.items():
        lines = ["file_name,other,label,letter", *rows[: min(size, 6)]]
        pathlib.Path("pictures", f"{split}.csv").write_text("\n".join(lines))
    floats = rng.random((6, 4, 4, 3)) / 2
    np.savez("normalized.npz", train_images=floats, train_labels=np.arange(6))


CASES = [
    Case(ARRAYS, observe_images),
    Case(ImagesConfig(kind="tfds", name=TFDS, directory="tfds"), observe_stored_images),
    Case(TABLE, observe_pictures),
    Case(NORMALIZED_ARRAYS, observe_pictures),
    Case(image_classification.Config(model=VIT), observe_classification),
]
VALUES = {
    ImagesConfig: {
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "file": "others.npz",
        "pictures": "others",
        "picture_column": "other",
        "label_column": "letter",
        "cache_dir": "other_cache",
        "mean": (0.25,),
        "deviation": (0.75,),
    }
    | OTHER_SPLITS,
}
