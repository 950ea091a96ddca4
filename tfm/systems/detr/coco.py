"""The files of COCO: a JSON file with images, annotations and categories, and a folder of pictures."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfm.data.pictures import read_picture
from tfm.data.sources.coco_json import CocoFile, Entry, is_number
from tfm.errors import UserError
from tfm.systems.detr.metrics import Truth

MAX_CATEGORY_ID = 99_999  # the labels are the ids, so that the model has a class for each smaller id, too
NO_CATEGORY = "N/A"
ROBOFLOW_FILE = "_annotations.coco.json"


class CocoBoxes:
    """The pictures of a split in COCO's format, see `stored_pictures.Source`. Crowds are only in `truth`.

    The label of an object is the id of its category. Ids without a category have the name "N/A". Annotations
    of pictures that are not listed are left out, as by pycocotools and torchvision. A warning counts them.

    Args:
      folder: contains the images in SPLIT/, and the annotations in annotations/instances_SPLIT.json or, as in
        exports of Roboflow, in SPLIT/_annotations.coco.json.
      split: the SPLIT.

    Raises:
      UserError: if the annotations are missing or damaged, or an image is missing.
    """

    channels = 3

    def __init__(self, folder: str, split: str):
        self._file = CocoFile(_find_annotations(folder, split), os.path.join(folder, split), ("categories",))
        categories = _read_categories(self._file.path, self._file.sections["categories"])
        self.label_names = [categories.get(label, NO_CATEGORY) for label in range(max(categories) + 1)]
        self.sizes = np.array([image.size for image in self._file.images], int).reshape(-1, 2)
        self.fingerprint = self._file.fingerprint
        groups = [
            [_read_object(entry, categories) for entry in group] for group in self._file.group_annotations()
        ]
        self.left_out = {"annotations of pictures that are not listed": self._file.left_out}
        self._truths = [_make_truth(group) for group in groups]
        self._box_places = [[x.place for x in group if not x.is_crowd] for group in groups]
        self.boxes = [truth.boxes[~truth.crowds] for truth in self._truths]
        self.labels = [truth.labels[~truth.crowds] for truth in self._truths]

    def name(self, index: int) -> str:
        """See `Source`."""
        return self._file.paths[index]

    def name_box(self, index: int, number: int) -> str:
        """See `Source`."""
        return f"{self._file.path}: {self._box_places[index][number]}, field bbox, of {self.name(index)}"

    def truth(self, index: int) -> Truth:
        """See `Source`."""
        return self._truths[index]

    def read(self, index: int) -> Any:
        """See `Source`.

        Raises:
          UserError: if the image is damaged, or its size differs from the size in the annotations.
        """
        height, width = self.sizes[index]
        return read_picture(self.name(index), self.name(index), self.channels, (int(height), int(width)))


def _find_annotations(folder: str, split: str) -> str:
    """Returns the path of the annotations of a split: COCO's, unless only the file of Roboflow exists."""
    usual = os.path.join(folder, "annotations", f"instances_{split}.json")
    exported = os.path.join(folder, split, ROBOFLOW_FILE)
    return exported if os.path.exists(exported) and not os.path.exists(usual) else usual


class _Object(NamedTuple):
    """An annotation: its place in the file, for error messages, and its fields."""

    place: str
    box: list[float]
    label: int
    area: float
    is_crowd: bool


def _read_categories(path: str, entries: list[Entry]) -> dict[int, str]:
    """Returns {id: name} of the categories."""
    if not entries:
        raise UserError(f"{path}: expected at least one entry in the list categories, got none.")
    names: dict[int, str] = {}
    for entry in entries:
        label, name = entry.whole("id", 0, MAX_CATEGORY_ID), entry.text("name")
        if names.setdefault(label, name) != name:
            raise UserError(
                f"{entry.name}: two categories have the id {label}, {names[label]!r} and {name!r}. Give each "
                "category its own id, and correct the field category_id of the annotations."
            )
    return names


def _read_object(entry: Entry, categories: Mapping[int, str]) -> _Object:
    """Returns an annotation. A missing area is the area of the box."""
    label = entry.get("category_id")
    if not is_number(label) or label not in categories:
        raise entry.error("category_id", "the id of a category")
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise entry.error("bbox", "four numbers (left, top, width, height in pixels)")
    area = entry.get("area")
    if area is None:
        area = box[2] * box[3]
    elif not is_number(area) or area < 0:
        raise entry.error("area", "a number of pixels")
    is_crowd = entry.get("iscrowd") or 0
    if is_crowd not in (0, 1):
        raise entry.error("iscrowd", "0 or 1")
    return _Object(entry.place, [float(x) for x in box], int(label), float(area), bool(is_crowd))


def _make_truth(objects: list[_Object]) -> Truth:
    """Returns the objects of a picture as arrays."""
    return Truth(
        np.array([each.box for each in objects], float).reshape(-1, 4),
        np.array([each.label for each in objects], int),
        np.array([each.area for each in objects], float),
        np.array([each.is_crowd for each in objects], bool),
    )
