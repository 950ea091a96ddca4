"""The files of COCO: a JSON file with images, annotations and categories, and a folder of pictures."""

import hashlib
import json
import logging
import os
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfm.data.data_errors import MissingFile
from tfm.data.pictures import read_picture
from tfm.errors import UserError, first_line
from tfm.io.files import read_limited
from tfm.systems.detr.metrics import Truth

MAX_ANNOTATION_BYTES = 1 << 31  # of a JSON file; the training split of COCO has 448 MB, that of LVIS 1.1 GB
MAX_CATEGORY_ID = 99_999  # the labels are the ids, so that the model has a class for each smaller id, too
MAX_NUMBER = 1e9  # of the absolute value of a coordinate, and of an area in pixels
NO_CATEGORY = "N/A"
ROBOFLOW_FILE = "_annotations.coco.json"
SECTIONS = ("images", "annotations", "categories")
log = logging.getLogger(__name__)


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
        self._folder = os.path.join(folder, split)
        self._path = _find_annotations(folder, split)
        try:
            content = read_limited(self._path, MAX_ANNOTATION_BYTES)
            files = _Files(self._folder)
        except FileNotFoundError as error:
            raise MissingFile(
                f"{error.filename} does not exist. Check data.directory and the names of the splits."
            ) from None
        sections = _load_sections(self._path, content)
        categories = _read_categories(self._path, sections["categories"])
        self.label_names = [categories.get(label, NO_CATEGORY) for label in range(max(categories) + 1)]
        images = _read_images(sections["images"])
        self.sizes = np.array([image.size for image in images.values()], int).reshape(-1, 2)
        names = [image.name for image in images.values()]
        self._find_files(names, files)
        rows = {key: row for row, key in enumerate(images)}
        self._read_annotations(sections["annotations"], rows, categories)
        # The images of COCO have 19 GB, so that their sizes stand for their content.
        described = json.dumps([files.sizes[name] for name in self._names]).encode()
        self.fingerprint = hashlib.sha256(content + described).hexdigest()

    def _find_files(self, names: list[str], files: "_Files") -> None:
        """Sets the names of the pictures on the disk.

        Raises:
          UserError: if a picture is missing.
        """
        found = {name: files.find(name) for name in names}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise UserError(
                f"{self._folder} lacks {len(missing):,} images of {self._path}, for example {missing[0]}. "
                "Download them."
            )
        self._names = [path for name in names if (path := found[name]) is not None]

    def _read_annotations(
        self, entries: list["_Entry"], rows: Mapping[Any, int], categories: Mapping[int, str]
    ) -> None:
        """Sets the objects of each picture.

        Args:
          entries: the annotations.
          rows: {id of a picture: its index}.
          categories: {id of a category: its name}.
        """
        objects: list[list[_Object]] = [[] for _ in rows]
        unlisted = 0
        for entry in entries:
            row = rows.get(entry.identity("image_id"))
            if row is None:
                unlisted += 1
            else:
                objects[row].append(_read_object(entry, categories))
        self.left_out = {"annotations of pictures that are not listed": unlisted}
        if unlisted:
            log.warning(
                "%s of %s annotations of %s are left out, because their pictures are not among its images.",
                f"{unlisted:,}",
                f"{len(entries):,}",
                self._path,
            )
        self._truths = [_make_truth(part) for part in objects]
        self._box_places = [[x.place for x in part if not x.is_crowd] for part in objects]
        self.boxes = [truth.boxes[~truth.crowds] for truth in self._truths]
        self.labels = [truth.labels[~truth.crowds] for truth in self._truths]

    def name(self, index: int) -> str:
        """See `Source`."""
        return os.path.join(self._folder, self._names[index])

    def name_box(self, index: int, number: int) -> str:
        """See `Source`."""
        return f"{self._path}: {self._box_places[index][number]}, field bbox, of {self.name(index)}"

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


class _Image(NamedTuple):
    """An image of the file: its name, and height and width in pixels."""

    name: str
    size: tuple[int, int]


class _Object(NamedTuple):
    """An annotation: its place in the file, for error messages, and its fields."""

    place: str
    box: list[float]
    label: int
    area: float
    is_crowd: bool


class _Files:
    """The pictures of a folder. Their names may have another Unicode form than those in the annotations.

    Attributes:
      sizes: {path in the folder: bytes} of the files that `find` has returned.
    """

    def __init__(self, folder: str):
        self._root = folder
        self._folders: dict[str, dict[str, os.DirEntry]] = {}
        self.sizes: dict[str, int] = {}
        self._list("")

    def find(self, name: str) -> str | None:
        """Returns the path of a picture in the folder, as the disk spells it, or None if there is none."""
        path = ""
        *folders, file = os.path.normpath(name).split(os.sep)
        for part in folders:
            entry = self._find_entry(path, part)
            if entry is None or not entry.is_dir():
                return None
            path = os.path.join(path, entry.name)
        entry = self._find_entry(path, file)
        if entry is None:
            return None
        path = os.path.join(path, entry.name)
        self.sizes[path] = entry.stat().st_size
        return path

    def _find_entry(self, folder: str, name: str) -> os.DirEntry | None:
        """Returns the entry of a folder with a name, or with a name that is canonically equivalent."""
        entries = self._list(folder)
        return entries.get(name) or entries.get(unicodedata.normalize("NFC", name))

    def _list(self, folder: str) -> dict[str, os.DirEntry]:
        """Returns {name: entry} of a folder. The composed form of a name stands for its entry, too."""
        if folder not in self._folders:
            with os.scandir(os.path.join(self._root, folder)) as scanned:
                entries = list(scanned)
            composed = {unicodedata.normalize("NFC", entry.name): entry for entry in entries}
            self._folders[folder] = composed | {entry.name: entry for entry in entries}
        return self._folders[folder]


class _Entry:
    """An entry of a section of the JSON file, whose fields are checked when they are read.

    Args:
      path: the file.
      section: "images", "annotations" or "categories".
      number: number of the entry in its section, from 0.
      fields: the entry.
    """

    def __init__(self, path: str, section: str, number: int, fields: Any):
        self._path, self._section, self._number, self._fields = path, section, number, fields
        if not isinstance(fields, dict):
            raise UserError(f"{self.name}: expected an object with fields, got {_shorten(fields)}.")

    @property
    def place(self) -> str:
        """What an error message calls the entry after the name of the file."""
        identity = f" (id {_shorten(self._fields['id'])})" if self._has("id") else ""
        return f"{self._section}[{self._number}]{identity}"

    @property
    def name(self) -> str:
        """What an error message calls the entry."""
        return f"{self._path}: {self.place}"

    def _has(self, field: str) -> bool:
        return isinstance(self._fields, dict) and field in self._fields

    def error(self, field: str, expected: str) -> UserError:
        """Returns the error of a field."""
        found = _shorten(self._fields[field]) if self._has(field) else "no such field"
        return UserError(f"{self.name}: expected {expected} in the field {field}, got {found}.")

    def get(self, field: str) -> Any:
        """Returns a field, or None if it is missing."""
        return self._fields.get(field)

    def identity(self, field: str) -> int | str:
        """Returns a field that contains the id of a picture or of an annotation."""
        value = self.get(field)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.error(field, "an integer or a text")
        return value

    def text(self, field: str) -> str:
        """Returns a field that contains a text."""
        value = self.get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, "a text")
        return value

    def whole(self, field: str, smallest: int, largest: int) -> int:
        """Returns a field that contains an integer of a range. Some tools write integers as 7.0."""
        value = self.get(field)
        if not _is_number(value) or value != int(value) or not smallest <= value <= largest:
            raise self.error(field, f"an integer from {smallest:,} to {largest:,}")
        return int(value)


def _load_sections(path: str, content: bytes) -> dict[str, list[_Entry]]:
    """Returns the entries of each section of a JSON file."""
    try:
        sections = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a JSON file ({first_line(error)}). Download it again.") from None
    if not isinstance(sections, dict):
        raise UserError(
            f"{path}: expected COCO's format, an object with {', '.join(SECTIONS)}, got {_shorten(sections)}."
        )
    for section in SECTIONS:
        if not isinstance(sections.get(section), list):
            found = _shorten(sections[section]) if section in sections else "no such field"
            raise UserError(
                f"{path}: expected COCO's format with a list in the field {section}, got {found}. Choose a "
                "split with annotations."
            )
    return {
        section: [_Entry(path, section, number, entry) for number, entry in enumerate(sections[section])]
        for section in SECTIONS
    }


def _read_categories(path: str, entries: list[_Entry]) -> dict[int, str]:
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


def _read_images(entries: list[_Entry]) -> dict[int | str, _Image]:
    """Returns {id: image} in the order of the file."""
    images: dict[int | str, _Image] = {}
    for entry in entries:
        key = entry.identity("id")
        if key in images:
            raise UserError(f"{entry.name}: two images have this id. Give each image its own id.")
        name = entry.text("file_name")
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
            raise entry.error("file_name", "a path in the folder of the split")
        size = entry.whole("height", 1, int(MAX_NUMBER)), entry.whole("width", 1, int(MAX_NUMBER))
        images[key] = _Image(name, size)
    return images


def _read_object(entry: _Entry, categories: Mapping[int, str]) -> _Object:
    """Returns an annotation. A missing area is the area of the box."""
    label = entry.get("category_id")
    if not _is_number(label) or label not in categories:
        raise entry.error("category_id", "the id of a category")
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise entry.error("bbox", "four numbers (left, top, width, height in pixels)")
    area = entry.get("area")
    if area is None:
        area = box[2] * box[3]
    elif not _is_number(area) or area < 0:
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


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number of at most `MAX_NUMBER`, and neither NaN nor a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def _shorten(value: Any) -> str:
    """Returns a value of the file as JSON of at most some characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]} ..."
