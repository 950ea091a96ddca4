"""Labelled images of a TFDS data set."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.data_errors import DataError, MissingFile, raise_all
from tfm.data.images.augmentation import Crops
from tfm.data.picture_files import stack_pictures
from tfm.data.pictures import fit_picture, read_picture, to_pixels
from tfm.data.sources import tfds
from tfm.errors import UserError

CHECKED_IMAGES = 100  # of a TFDS split, evenly spaced, when it is opened


class RecordImages:
    """A split of a prepared TFDS builder, with the members of `ArrayImages`. Reading decodes the images.

    Args:
      builder: prepared builder that `check_builder` accepts.
      split: TFDS's name of the split.
      resize: height and width to which images are resized, see `pictures.fit_picture`. 0 keeps their size.
      how: "crop", "pad" or "stretch".

    Raises:
      UserError: if the files are damaged, or some images have no label or differ in size. At most
        `CHECKED_IMAGES` images are read for this check.
    """

    largest = 255.0
    has_class_names = False

    def __init__(self, builder: Any, split: str, resize: int = 0, how: str = "crop"):
        import tensorflow_datasets

        self._resize, self._how = resize, how

        self._name, self._folder = builder.info.full_name, builder.data_dir
        with tfds.reading(self._folder):
            decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
            self._records = builder.as_data_source(split=split, decoders=decoders)
            size = len(self._records)
        self._channels = builder.info.features["image"].shape[-1]
        self.label_names = list(builder.info.features["label"].names)
        self._read_fingerprint = functools.partial(tfds.fingerprint_files, builder, split, ("image", "label"))
        self.take(np.linspace(0, size - 1, min(size, CHECKED_IMAGES)).astype(int))

    def __len__(self):
        return len(self._records)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the files. A check of the split does not read it, because hashing reads all files."""
        return self._read_fingerprint()

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`.

        Raises:
          UserError: if the files are damaged, or some of these images have no label or differ in size.
        """
        with tfds.reading(self._folder):
            records = self._records.__getitems__([int(index) for index in indices])
            contents = [record["image"] for record in records]
            labels = np.array([record["label"] for record in records], np.int64)
        pictures = [
            read_picture(content, f"Image {index:,} of {self._name}", self._channels)
            for index, content in zip(indices, contents, strict=True)
        ]
        images = fit_pictures(pictures, self._resize, self._how, crops)
        if labels.min(initial=0) < 0:
            raise UserError(
                f"Some images of {self._name} have the label -1 instead of a class, as in test splits "
                "without labels. Use another split. An empty data.test leaves out the test split."
            )
        return stack_pictures(images, self._name), labels


def fit_pictures(pictures: Sequence[Any], size: int, how: str, crops: Crops | None) -> list[np.ndarray]:
    """Returns the pixels of PIL images, uint8 [height, width, C] each, after cropping and resizing."""
    sizes = np.array([(picture.height, picture.width) for picture in pictures])
    boxes = [None] * len(pictures) if crops is None else crops.boxes(sizes)
    return [
        to_pixels(fit_picture(picture, size, how, box)) for picture, box in zip(pictures, boxes, strict=True)
    ]


def check_builder(builder: Any, split: str) -> None:
    """Checks that a TFDS data set has a split, 8-bit images with 1 or 3 channels, and class labels.

    Raises:
      UserError: if something is missing. The message lists all problems. The error is a `MissingFile` if only
        the split is missing.
    """
    from tensorflow_datasets import features as kinds

    features, name = builder.info.features, builder.info.full_name
    problems = [
        f"The data set {name} has no feature '{feature}' of the type {kind.__name__}. Use a data set for "
        "image classification."
        for feature, kind in (("image", kinds.Image), ("label", kinds.ClassLabel))
        if not isinstance(tfds.named_features(builder).get(feature), kind)
    ]
    if not problems and (features["image"].np_dtype != np.uint8 or features["image"].shape[-1] not in (1, 3)):
        problems.append(
            f"Expected images of 8 bits with 1 or 3 channels in {name}, got {features['image']}. Use another "
            "data set."
        )
    raise_all([*problems, *tfds.split_problems(builder, [split])], DataError if problems else MissingFile)
