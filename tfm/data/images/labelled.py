"""The common parts of pictures whose classes have names: in files, or in a data set of Hugging Face."""

import copy
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from tfm.data.images.augmentation import Crops
from tfm.data.picture_index import PictureIndex
from tfm.errors import UserError

MAX_SHOWN_CLASSES = 5


class LabelledPictures:
    """Pictures with the names of their classes. Has the members of `ArrayImages`. Subclasses define `take`.

    Args:
      classes: the name of the class of each picture.
      label_names: names of all classes, in the order of their labels.
      index: the index of the pictures.
      fingerprint: identifies the pictures and their classes.

    Attributes:
      label_names, index, fingerprint: see above.
      labels: the labels of all pictures, int64 [N].
      has_class_names: whether the order of `label_names` has no meaning, because the labels are names.
    """

    largest = 255.0
    has_class_names = True

    def __init__(
        self, classes: Sequence[str], label_names: Sequence[str], index: PictureIndex, fingerprint: str
    ):
        self._classes = compose_names(classes)
        self.index, self.fingerprint = index, fingerprint
        self._set_labels(label_names)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        raise NotImplementedError

    def with_label_names(self, label_names: Sequence[str]) -> Self:
        """Returns the same pictures with the labels of a model, whose classes may be more.

        Raises:
          UserError: if a picture has another class.
        """
        known = set(compose_names(label_names))
        new = [name for name in self._classes if name not in known]
        if new:
            raise UserError(
                f"{len(new):,} pictures have classes that the model was not trained with: "
                f"{', '.join(sorted(set(new))[:MAX_SHOWN_CLASSES])}. Leave out these pictures, or train a "
                "new run with all classes."
            )
        pictures = copy.copy(self)
        pictures._set_labels(label_names)
        return pictures

    def _set_labels(self, label_names: Sequence[str]) -> None:
        """Numbers the classes in the order of their names."""
        self.label_names = compose_names(label_names)
        numbers = {name: number for number, name in enumerate(self.label_names)}
        self.labels = np.array([numbers[name] for name in self._classes], np.int64)


def sort_classes(names: Sequence[str]) -> list[str]:
    """Returns the different names of classes in order: as numbers if all are numbers, otherwise as texts."""
    different = set(compose_names(names))
    are_numbers = all(name.isascii() and name.isdecimal() for name in different)
    return sorted(different, key=int) if are_numbers else sorted(different)


def compose_names(names: Iterable[str]) -> list[str]:
    """Returns the names of classes in one Unicode form. Folders of macOS and of Linux may differ in it."""
    return [unicodedata.normalize("NFC", name) for name in names]
