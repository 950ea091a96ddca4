"""Labelled images of a data set of Hugging Face's `datasets`."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.config import ImagesConfig
from tfm.data.images.augmentation import Crops
from tfm.data.images.files import check_new_classes, sort_classes
from tfm.data.images.records import fit_pictures
from tfm.data.picture_files import stack_pictures
from tfm.data.picture_index import index_pictures
from tfm.data.pictures import read_picture
from tfm.data.sources.columns import label_text, name_class
from tfm.data.sources.huggingface import load_split
from tfm.errors import UserError

PICTURE_COLUMN = "image"


class DatasetImages:
    """A split of a data set with the members of `ArrayImages`. Reading decodes the images.

    Args:
      config: the data section.
      split: name of the split.

    Attributes:
      index: the index of the pictures.
      label_names: names of the classes: of the `ClassLabel` of the data, otherwise the different labels in
        order.
      has_class_names: whether the order of `label_names` has no meaning, because the labels are names.
      fingerprint: identifies the content.

    Raises:
      UserError: if there is no such data set or split, it has no pictures or labels, or a picture is damaged.
    """

    largest = 255.0

    def __init__(self, config: ImagesConfig, split: str):
        import datasets

        self._config = config
        self._name = f"the split '{split}' of {config.directory or config.name}"
        loaded = load_split(config.name, config.directory, split)
        column = config.picture_column or PICTURE_COLUMN
        for name in (column, config.label_column):
            if name not in loaded.features:
                raise UserError(
                    f"{self._name} has no column {name!r}, but {', '.join(loaded.features)}. Set "
                    f"data.{'picture' if name == column else 'label'}_column."
                )
        if not isinstance(loaded.features[column], datasets.Image):
            raise UserError(
                f"Expected pictures (the feature Image) in the column {column!r} of {self._name}, got "
                f"{loaded.features[column]}. Set data.picture_column, or cast the column to Image."
            )
        if not len(loaded):
            raise UserError(f"{self._name} has no rows. Choose another split.")
        labels, feature = loaded[config.label_column], loaded.features[config.label_column]
        self._classes = _name_classes(list(labels), getattr(feature, "names", None), self._name)
        self.has_class_names = not hasattr(feature, "names")
        self.label_names = list(getattr(feature, "names", None) or sort_classes(self._classes))
        self._pictures = loaded.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self._column = column
        names = [f"Row {row:,} of {self._name}" for row in range(1, len(loaded) + 1)]
        self.index = index_pictures(names, self._content, _identify(loaded), config.cache)
        self._number_labels(self.label_names)

    def _number_labels(self, label_names: Sequence[str]) -> None:
        """Sets the names of the classes and the labels of the pictures."""
        self.label_names = list(label_names)
        numbers = {name: number for number, name in enumerate(label_names)}
        self.labels = np.array([numbers[name] for name in self._classes], np.int64)
        content = self.index.hashes.astype("<u8").tobytes()
        self.fingerprint = hashlib.sha256(content + repr(self._classes).encode()).hexdigest()

    def __len__(self):
        return len(self.labels)

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        config = self._config
        pictures = [
            read_picture(self._content(int(index)), f"Row {index + 1:,} of {self._name}", config.channels)
            for index in indices
        ]
        pixels = fit_pictures(pictures, config.resize, config.resizing, crops)
        return stack_pictures(pixels, self._name), self.labels[indices]

    def with_label_names(self, label_names: Sequence[str]) -> "DatasetImages":
        """Returns the same pictures with the labels of a model, see `FileImages.with_label_names`."""
        check_new_classes(self._classes, label_names)
        self._number_labels(label_names)
        return self

    def _content(self, index: int) -> bytes | str:
        """Returns the compressed picture of a row, or the path of its file."""
        picture = self._pictures[index][self._column]
        if picture is None:
            raise UserError(f"Row {index + 1:,} of {self._name} has no picture. Remove the row.")
        return picture["bytes"] if picture["bytes"] is not None else picture["path"]


def _name_classes(labels: list[Any], names: Sequence[str] | None, shown_as: str) -> list[str]:
    """Returns the name of the class of each row."""
    if names is not None:
        return [name_class(label, names, shown_as) for label in labels]
    classes = [label if isinstance(label, str) else label_text(label) for label in labels]
    if empty := [row for row, name in enumerate(classes, 1) if not name.strip() or name == "none"]:
        raise UserError(f"Row {empty[0]:,} of {shown_as} has no label. Remove such rows ({len(empty):,}).")
    return classes


def _identify(loaded: Any) -> list[Any]:
    """Returns what identifies the rows of a data set: its files with their sizes and times, and its state."""
    files = [os.stat(file["filename"]) for file in loaded.cache_files]
    return [len(loaded), *((file.st_size, file.st_mtime_ns) for file in files), *loaded.column_names]
