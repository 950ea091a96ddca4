"""Labelled images of a TFDS data set."""

import functools
from typing import Any

import numpy as np

from tfm.data.data_errors import DataError, MissingFile, raise_all
from tfm.data.pictures import read_picture
from tfm.data.sources import tfds
from tfm.errors import UserError

CHECKED_IMAGES = 100  # of a TFDS split, evenly spaced, when it is opened


class RecordImages:
    """A split of a prepared TFDS builder, with the members of `ArrayImages`. Reading decodes the images.

    Args:
      builder: prepared builder that `check_builder` accepts.
      split: TFDS's name of the split.
      resize: height and width to which images are cropped in the middle and resized. 0 keeps their size.

    Raises:
      UserError: if the files are damaged, or some images have no label or differ in size. At most
        `CHECKED_IMAGES` images are read for this check.
    """

    largest = 255.0

    def __init__(self, builder: Any, split: str, resize: int = 0):
        import tensorflow_datasets

        self._resize = resize

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

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        with tfds.reading(self._folder):
            records = self._records.__getitems__([int(index) for index in indices])
            contents = [record["image"] for record in records]
            labels = np.array([record["label"] for record in records], np.int64)
        images = [
            self._decode(content, f"Image {index:,} of {self._name}")
            for index, content in zip(indices, contents, strict=True)
        ]
        if len({image.shape for image in images}) > 1:
            raise UserError(
                f"The images of {self._name} differ in size, for example from {images[0].shape}. Set "
                "data.resize to the height and width that the model reads."
            )
        if labels.min(initial=0) < 0:
            raise UserError(
                f"Some images of {self._name} have the label -1 instead of a class, as in test splits "
                "without labels. Use another split. An empty data.test leaves out the test split."
            )
        return np.stack(images), labels

    def _decode(self, encoded: bytes, name: str) -> np.ndarray:
        """Returns the pixels of a compressed image, uint8 [height, width, C]."""
        from PIL import Image, ImageOps

        picture = read_picture(encoded, name, self._channels)
        if self._resize:
            picture = ImageOps.fit(picture, (self._resize, self._resize), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        return pixels[..., None] if self._channels == 1 else pixels


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
        if not isinstance(dict(features.items() if hasattr(features, "items") else ()).get(feature), kind)
    ]
    if not problems and (features["image"].np_dtype != np.uint8 or features["image"].shape[-1] not in (1, 3)):
        problems.append(
            f"Expected images of 8 bits with 1 or 3 channels in {name}, got {features['image']}. Use another "
            "data set."
        )
    raise_all([*problems, *tfds.split_problems(builder, [split])], DataError if problems else MissingFile)
