"""Labelled images of a data set of Hugging Face's `datasets`."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.config import ImagesConfig
from tfm.data.images.augmentation import Crops
from tfm.data.images.labelled import LabelledPictures, sort_classes
from tfm.data.images.records import fit_pictures
from tfm.data.picture_files import stack_pictures
from tfm.data.picture_index import index_pictures
from tfm.data.pictures import read_picture
from tfm.data.sources.columns import label_text, name_class
from tfm.data.sources.huggingface import load_split
from tfm.errors import UserError

PICTURE_COLUMN = "image"


class DatasetImages(LabelledPictures):
    """A split of a data set. Reading decodes the images.

    The labels come from the `ClassLabel` of the data. Without it, they are in the order of the different
    names.

    Args:
      config: the data section.
      split: name of the split.

    Raises:
      UserError: if there is no such data set or split, it has no pictures or labels, or a picture is damaged.
    """

    def __init__(self, config: ImagesConfig, split: str):
        self._config = config
        self._name = f"the split '{split}' of {config.directory or config.name}"
        self._column = config.picture_column or PICTURE_COLUMN
        loaded = load_split(config.name, config.directory, split)
        _check_columns(loaded, self._column, config.label_column, self._name)
        names = getattr(loaded.features[config.label_column], "names", None)
        classes = _name_classes(list(loaded[config.label_column]), names, self._name)
        self._pictures = _without_decoding(loaded, self._column)
        rows = [f"Row {row:,} of {self._name}" for row in range(1, len(loaded) + 1)]
        index = index_pictures(rows, self._content, [*_identify(loaded), self._column], config.cache)
        content = index.hashes.astype("<u8").tobytes() + repr(classes).encode("utf-8", "surrogatepass")
        self.has_class_names = names is None
        super().__init__(classes, names or sort_classes(classes), index, hashlib.sha256(content).hexdigest())

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        config = self._config
        pictures = [
            read_picture(self._content(int(index)), f"Row {index + 1:,} of {self._name}", config.channels)
            for index in indices
        ]
        pixels = fit_pictures(pictures, config.resize, config.resizing, crops)
        return stack_pictures(pixels, self._name), self.labels[indices]

    def _content(self, index: int) -> bytes | str:
        """Returns the compressed picture of a row, or the path of its file."""
        picture = self._pictures[index][self._column]
        if picture is None:
            raise UserError(f"Row {index + 1:,} of {self._name} has no picture. Remove the row.")
        return picture["bytes"] if picture["bytes"] is not None else picture["path"]


def _check_columns(loaded: Any, picture_column: str, label_column: str, shown_as: str) -> None:
    """Raises a UserError if a data set has no rows, lacks a column, or its pictures have another feature."""
    import datasets

    fields = {picture_column: "data.picture_column", label_column: "data.label_column"}
    for column, field in fields.items():
        if column not in loaded.features:
            raise UserError(
                f"{shown_as} has no column {column!r}, but {', '.join(loaded.features)}. Set {field}."
            )
    if not isinstance(loaded.features[picture_column], datasets.Image):
        raise UserError(
            f"Expected pictures (the feature Image) in the column {picture_column!r} of {shown_as}, got "
            f"{loaded.features[picture_column]}. Set data.picture_column, or cast the column to Image."
        )
    if not len(loaded):
        raise UserError(f"{shown_as} has no rows. Choose another split.")


def _without_decoding(loaded: Any, column: str) -> Any:
    """Returns a column of pictures, whose rows have the compressed pictures."""
    import datasets

    return loaded.select_columns([column]).cast_column(column, datasets.Image(decode=False))


def _name_classes(labels: list[Any], names: Sequence[str] | None, shown_as: str) -> list[str]:
    """Returns the name of the class of each row."""
    if names is not None:
        return [name_class(label, names, shown_as) for label in labels]
    classes = [_read_label(label) for label in labels]
    if empty := [row for row, name in enumerate(classes, 1) if not name.strip()]:
        raise UserError(f"Row {empty[0]:,} of {shown_as} has no label. Remove such rows ({len(empty):,}).")
    return classes


def _read_label(label: str | float | None) -> str:
    """Returns the name of a class that is a text, a number or a boolean, "" if it is missing."""
    if label is None:
        return ""
    return label if isinstance(label, str) else label_text(label)


def _identify(loaded: Any) -> list[Any]:
    """Returns what identifies the rows of a data set: its files with their sizes and times, and its state.

    The state has the slice of a split such as train[:90%]. Other slices have the same files.
    """
    files = [os.stat(file["filename"]) for file in loaded.cache_files]
    return [loaded._fingerprint, *((file.st_size, file.st_mtime_ns) for file in files)]
