"""The folders of YOLO: pictures, and next to each a text file with the boxes as shares of the picture.

The files are read as Ultralytics reads them. Only damaged label files are different. Ultralytics leaves out
their pictures, and here an error names the file and the line.
"""

import hashlib
import logging
import os
from typing import Any, NamedTuple

import numpy as np

from tfm.data.data_errors import collect
from tfm.data.pictures import read_picture, read_picture_size
from tfm.errors import UserError
from tfm.io.files import read_text
from tfm.systems.detr.metrics import Truth, make_truth, to_pixels
from tfm.systems.detr.yolo_folder import BOX_COLUMNS, Description, find_pictures, read_description

MAX_LABEL_BYTES = 1 << 24  # of the label file of a picture
MAX_SHOWN_PROBLEMS = 5
TOLERANCE = 0.01  # of a share; Ultralytics permits numbers from -0.01 to 1.01
MIN_POLYGON_COLUMNS = 7  # a class and three points
log = logging.getLogger(__name__)


class YoloBoxes:
    """The pictures of a split in a folder of YOLO, see `stored_pictures.Source`.

    Args:
      folder: contains data.yaml or another YAML file with the names of the classes and the places of the
        splits, or classes.txt. Without a place in the YAML file, the pictures are in SPLIT/images/ or in
        images/SPLIT/. The label file of a picture is in the same place of labels/, see `find_label_file`.
      split: the SPLIT. "validation", "val" and "valid" are the same split.

    Raises:
      UserError: if the folder has no such split or no names of classes, or a label file is damaged.
    """

    channels = 3

    def __init__(self, folder: str, split: str):
        description = read_description(folder)
        self._paths = find_pictures(folder, split, description)
        self.label_names = description.names
        problems: list[str] = []
        parts = [_read_labels(path, description, problems) for path in self._paths]
        _raise_problems(problems, "lines of label files", "Correct these lines, or remove the pictures.")
        if not any(part.exists for part in parts):
            raise UserError(
                f"Expected a label file for each picture with objects, but none of the {len(parts):,} "
                f"pictures of the split '{split}' in {folder} has one. For example, there is no "
                f"{find_label_file(self._paths[0])}. Download the labels."
            )
        self.sizes = _read_sizes(self._paths)
        self._lines = [part.lines for part in parts]
        self._label_files = [find_label_file(path) for path in self._paths]
        self.labels = [part.labels for part in parts]
        self.boxes = [_cut(part.shares, size) for part, size in zip(parts, self.sizes, strict=True)]
        self.left_out = {"repeated lines": sum(part.repeated for part in parts)}
        if self.left_out["repeated lines"]:
            log.warning(
                "%s repeated lines of label files are left out.", f"{self.left_out['repeated lines']:,}"
            )
        self.fingerprint = self._hash(folder)

    def _hash(self, folder: str) -> str:
        """Returns the hash of names, classes and boxes. The sizes of the pictures stand for their content."""
        digest = hashlib.sha256(repr(self.label_names).encode())
        for path, labels, boxes in zip(self._paths, self.labels, self.boxes, strict=True):
            name = os.path.relpath(path, folder)
            digest.update(repr((name, os.path.getsize(path), labels.tolist(), boxes.tolist())).encode())
        return digest.hexdigest()

    def name(self, index: int) -> str:
        """See `Source`."""
        return self._paths[index]

    def name_box(self, index: int, number: int) -> str:
        """See `Source`."""
        return f"{self._label_files[index]}, line {self._lines[index][number]}"

    def truth(self, index: int) -> Truth:
        """See `Source`."""
        return make_truth(self.boxes[index], self.labels[index])

    def read(self, index: int) -> Any:
        """See `Source`.

        Raises:
          UserError: if the picture is damaged, or does not have the size of its header.
        """
        height, width = self.sizes[index]
        return read_picture(self.name(index), self.name(index), self.channels, (int(height), int(width)))


class _Labels(NamedTuple):
    """The objects in a label file.

    Attributes:
      exists: whether there is such a file.
      shares: center x, center y, width and height as shares of the picture, float [n, 4].
      labels: int [n].
      lines: line of each object in the file, counted from 1.
      repeated: number of lines that were left out because they equal an earlier one.
    """

    exists: bool
    shares: np.ndarray
    labels: np.ndarray
    lines: list[int]
    repeated: int = 0


def find_label_file(path: str) -> str:
    """Returns the path of the label file of a picture.

    The last folder `images` of the path becomes `labels`, and the ending becomes .txt. Without a folder
    `images`, the label file lies next to the picture.
    """
    before, found, after = path.rpartition(f"{os.sep}images{os.sep}")
    place = f"{before}{os.sep}labels{os.sep}{after}" if found else path
    return os.path.splitext(place)[0] + ".txt"


def _read_labels(path: str, description: Description, problems: list[str]) -> _Labels:
    """Reads the label file of a picture, and appends a message for each damaged line to `problems`."""
    label_file = find_label_file(path)
    try:
        lines = read_text(label_file, MAX_LABEL_BYTES).splitlines()
    except FileNotFoundError:
        return _Labels(False, np.zeros((0, 4)), np.zeros(0, int), [])
    rows: dict[tuple[float, ...], int] = {}  # a row and its first line
    count = 0
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if not columns:
            continue
        count += 1
        try:
            rows.setdefault(_read_row(columns, description), number)
        except UserError as error:
            problems.append(f"{label_file}, line {number}: {error}.")
    table = np.array(list(rows), float).reshape(-1, BOX_COLUMNS)
    return _Labels(True, table[:, 1:], table[:, 0].astype(int), list(rows.values()), count - len(rows))


def _read_row(columns: list[str], description: Description) -> tuple[float, ...]:
    """Returns the class and the box (center x, center y, width, height) of a line.

    The box of a polygon, also of a rotated box, surrounds it. Key points are left out.

    Raises:
      UserError: if the line has another number of columns, or a number is not permitted.
    """
    if len(columns) == description.pose_columns:
        columns = columns[:BOX_COLUMNS]
    if len(columns) != BOX_COLUMNS and (len(columns) < MIN_POLYGON_COLUMNS or len(columns) % 2 == 0):
        raise UserError(
            f"expected a class and the four numbers of a box, or a class and the points of a polygon, got "
            f"{len(columns)} columns"
        )
    try:
        label, *numbers = map(float, columns)
    except ValueError as error:
        raise UserError(f"expected numbers ({error})") from None
    classes = len(description.names)
    if label not in range(classes):
        raise UserError(f"expected a class from 0 to {classes - 1} of {description.path}, got {columns[0]}")
    if not all(-TOLERANCE <= number <= 1 + TOLERANCE for number in numbers):
        raise UserError(f"expected shares of the picture from 0 to 1, got {' '.join(columns[1:]):.80}")
    if len(columns) > BOX_COLUMNS:
        lows, highs = np.reshape(numbers, (-1, 2)).min(0), np.reshape(numbers, (-1, 2)).max(0)
        numbers = [*(lows + highs) / 2, *highs - lows]
    if min(numbers[2:]) < 0:
        raise UserError(f"expected a width and a height of at least 0, got {columns[3]} and {columns[4]}")
    return (label, *map(float, numbers))


def _read_sizes(paths: list[str]) -> np.ndarray:
    """Returns height and width of pictures, int [N, 2]."""
    problems: list[str] = []
    sizes: list[tuple[int, int]] = []
    for path in paths:
        with collect(problems):
            sizes.append(read_picture_size(path, path))
    _raise_problems(problems, "pictures", "Replace these pictures, or remove them.")
    return np.array(sizes, int).reshape(-1, 2)


def _raise_problems(problems: list[str], what: str, advice: str) -> None:
    """Raises a UserError with the number of the problems and the first of them."""
    if problems:
        shown = " ".join(problems[:MAX_SHOWN_PROBLEMS])
        raise UserError(f"{len(problems):,} {what} cannot be used. {shown} {advice}")


def _cut(shares: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Converts boxes from shares into left, top, width and height in pixels, and cuts them at the border."""
    boxes = to_pixels(shares, size.tolist())
    limits = size[::-1].astype(float)
    lows = boxes[:, :2].clip(0, limits)
    highs = (boxes[:, :2] + boxes[:, 2:]).clip(0, limits)
    return np.concatenate([lows, highs - lows], axis=1)
