"""COCO's JSON files: lists of images, annotations and other entries, whose fields are checked."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from tfm.data.data_errors import MissingFile
from tfm.data.picture_files import PictureFolder
from tfm.errors import UserError, first_line
from tfm.io.files import read_limited

MAX_JSON_BYTES = 1 << 31  # the annotations of COCO's training split have 448 MB, and LVIS has 1.1 GB
MAX_NUMBER = 1e9  # of the absolute value of a coordinate, and of an area in pixels
log = logging.getLogger(__name__)


class CocoFile:
    """A JSON file of COCO, and the folder of its pictures.

    Args:
      path: the JSON file.
      folder: the folder of the pictures.
      sections: the lists that the file must have, in addition to images and annotations.

    Attributes:
      path: the JSON file.
      sections: {name: entries} of these lists.
      images: the images in the order of the file.
      paths: the path of each image, as the disk spells it.
      fingerprint: hash of the file and of the sizes of the pictures, which stand for their content.
      left_out: number of the annotations whose images are not listed, after `group_annotations`.

    Raises:
      MissingFile: if the file or the folder does not exist.
      UserError: if the file is damaged, or pictures are missing.
    """

    def __init__(self, path: str, folder: str, sections: Sequence[str] = ()):
        self.path, self.left_out = path, 0
        try:
            content = read_limited(path, MAX_JSON_BYTES)
            files = PictureFolder(folder)
        except FileNotFoundError as error:
            raise MissingFile(
                f"{error.filename} does not exist. Check data.directory and the names of the splits."
            ) from None
        self.sections = load_sections(path, content, ("images", "annotations", *sections))
        images = read_images(self.sections["images"])
        self.images = list(images.values())
        self._rows = {key: row for row, key in enumerate(images)}
        names = _find_files(path, folder, [image.name for image in self.images], files)
        self.paths = [os.path.join(folder, name) for name in names]
        sizes = json.dumps([files.sizes[name] for name in names]).encode()
        self.fingerprint = hashlib.sha256(content + sizes).hexdigest()

    def group_annotations(self) -> list[list["Entry"]]:
        """Returns the annotations of each image.

        Annotations of images that are not listed are left out, as by pycocotools and torchvision. Subsets of
        COCO often keep them. A warning counts them.

        Raises:
          UserError: if the id of an annotation's image is neither an integer nor a text.
        """
        groups: list[list[Entry]] = [[] for _ in self.images]
        self.left_out = 0
        for entry in self.sections["annotations"]:
            row = self._rows.get(entry.identity("image_id"))
            if row is None:
                self.left_out += 1
            else:
                groups[row].append(entry)
        if self.left_out:
            log.warning(
                "%s of %s annotations of %s are left out, because their pictures are not among its images.",
                f"{self.left_out:,}",
                f"{len(self.sections['annotations']):,}",
                self.path,
            )
        return groups


def _find_files(path: str, folder: str, names: Sequence[str], files: PictureFolder) -> list[str]:
    """Returns the names of pictures as the disk spells them.

    Raises:
      UserError: if pictures are missing.
    """
    found = {name: files.find(name) for name in names}
    missing = [name for name, spelled in found.items() if spelled is None]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing):,} images of {path}, for example {missing[0]}. Download them."
        )
    return [spelled for name in names if (spelled := found[name]) is not None]


class Image(NamedTuple):
    """An image of the file: its name, and height and width in pixels."""

    name: str
    size: tuple[int, int]


class Entry:
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
        """Returns the place of the entry for an error message, after the name of the file."""
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

    def text(self, field: str, *, may_be_empty: bool = False) -> str:
        """Returns a field that contains a text."""
        value = self.get(field)
        if not isinstance(value, str) or not (value or may_be_empty):
            raise self.error(field, "a text")
        return value

    def whole(self, field: str, smallest: int, largest: int) -> int:
        """Returns a field that contains an integer of a range. Some tools write integers as 7.0."""
        value = self.get(field)
        if not is_number(value) or value != int(value) or not smallest <= value <= largest:
            raise self.error(field, f"an integer from {smallest:,} to {largest:,}")
        return int(value)


def load_sections(path: str, content: bytes, names: Sequence[str]) -> dict[str, list[Entry]]:
    """Returns the entries of each section of a JSON file.

    Args:
      path: the file, for error messages.
      content: its content.
      names: the sections, each a list that the file must have. Other sections are left out.

    Raises:
      UserError: if the content is not JSON, has no such list, or an entry is not an object.
    """
    try:
        sections = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a JSON file ({first_line(error)}). Download it again.") from None
    if not isinstance(sections, dict):
        raise UserError(
            f"{path}: expected COCO's format, an object with {', '.join(names)}, got {_shorten(sections)}."
        )
    for section in names:
        if not isinstance(sections.get(section), list):
            found = _shorten(sections[section]) if section in sections else "no such field"
            raise UserError(
                f"{path}: expected COCO's format with a list in the field {section}, got {found}. Choose a "
                "split with annotations."
            )
    return {
        section: [Entry(path, section, number, entry) for number, entry in enumerate(sections[section])]
        for section in names
    }


def read_images(entries: list[Entry]) -> dict[int | str, Image]:
    """Returns {id: image} in the order of the file.

    Raises:
      UserError: if a field is missing or invalid, a name leads out of the folder, or two images have one id.
    """
    images: dict[int | str, Image] = {}
    for entry in entries:
        key = entry.identity("id")
        if key in images:
            raise UserError(f"{entry.name}: two images have this id. Give each image its own id.")
        name = entry.text("file_name")
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
            raise entry.error("file_name", "a path in the folder of the split")
        size = entry.whole("height", 1, int(MAX_NUMBER)), entry.whole("width", 1, int(MAX_NUMBER))
        images[key] = Image(name, size)
    return images


def is_number(value: Any) -> bool:
    """Returns whether a value is a number of at most `MAX_NUMBER`, and neither NaN nor a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def _shorten(value: Any) -> str:
    """Returns a value of the file as JSON of at most some characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]} ..."
