"""Stored pictures with boxes: the arrays of an .npz file, or COCO's annotations with a folder of images."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfm.data.batches.generated import EVALUATION, Batch
from tfm.data.images import read_arrays, shuffle_epoch
from tfm.data.pictures import read_picture
from tfm.errors import UserError
from tfm.systems.detr.batches import BoxedPicture, BoxedPicturesConfig, assemble
from tfm.systems.detr.metrics import Truth, make_truth

FLIP = 1  # number of a random stream of a seed
TOLERANCE = 1.0  # pixels that a box may reach out of its picture, because coordinates are rounded
log = logging.getLogger(__name__)


class Source(Protocol):
    """The stored pictures of a split, and their boxes in pixels.

    Attributes:
      sizes: height and width of each picture, int [N, 2].
      boxes: for each picture, float [n, 4]: left, top, width and height.
      labels: for each picture, int [n].
      label_names: the names of all classes.
      channels: 1 or 3.
      fingerprint: identifies the content.
    """

    sizes: np.ndarray
    boxes: list[np.ndarray]
    labels: list[np.ndarray]
    label_names: list[str]
    channels: int
    fingerprint: str

    def name(self, index: int) -> str:
        """Returns what an error message calls a picture."""
        ...

    def truth(self, index: int) -> Truth:
        """Returns the objects of a picture for the scores, in pixels."""
        ...

    def read(self, index: int) -> Any:
        """Returns a picture as a PIL image."""
        ...


class ArrayBoxes:
    """The pictures of a split in an .npz file, see `Source`.

    Args:
      path: the file.
      split: the SPLIT in the names of the arrays.

    Raises:
      UserError: if the file has no such arrays, or they have other types or shapes.
    """

    def __init__(self, path: str, split: str):
        self._path, self._split = path, split
        names = [f"{split}_{part}" for part in ("images", "boxes", "labels")]
        arrays = read_arrays(path, names)
        self._images, boxes, labels = (arrays[name] for name in names)
        shape = self._images.shape
        is_usable = (
            self._images.dtype == np.uint8
            and self._images.ndim == 4
            and shape[-1] in (1, 3)
            and labels.dtype.kind == "i"
            and labels.ndim == 2
            and len(labels) == len(self._images)
            and boxes.dtype.kind in "if"
            and boxes.shape == (*labels.shape, 4)
            and np.ndim(arrays.get("label_names", [])) == 1
        )
        if not is_usable:
            raise UserError(
                f"{path}: expected {names[0]} of uint8 [N, height, width, 1 or 3], {names[1]} of numbers "
                f"[N, M, 4] and {names[2]} of signed integers [N, M], got {self._images.dtype}{list(shape)}, "
                f"{boxes.dtype}{list(boxes.shape)} and {labels.dtype}{list(labels.shape)}."
            )
        self.channels = shape[-1]
        self.sizes = np.tile(shape[1:3], (len(labels), 1))
        self.boxes = [box[label >= 0] for box, label in zip(boxes, labels, strict=True)]
        self.labels = [label[label >= 0] for label in labels]
        count = int(labels.max(initial=-1)) + 1
        self.label_names = [str(name) for name in arrays.get("label_names", range(count))]
        if len(self.label_names) < count:
            raise UserError(
                f"{path}: expected label_names to have a text for each of the {count} labels, got "
                f"{len(self.label_names)}."
            )
        digest = hashlib.sha256(repr((shape, self.label_names)).encode())
        for array in (self._images, boxes, labels):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.fingerprint = digest.hexdigest()

    def name(self, index: int) -> str:
        """See `Source`."""
        return f"{self._path}, picture {index} of {self._split}_images"

    def truth(self, index: int) -> Truth:
        """See `Source`."""
        return make_truth(self.boxes[index], self.labels[index])

    def read(self, index: int) -> Any:
        """See `Source`."""
        from PIL import Image

        pixels = self._images[index]
        return Image.fromarray(pixels[..., 0] if self.channels == 1 else pixels)


class CocoBoxes:
    """The pictures of a split in COCO's format, see `Source`. Crowds are only in `truth`.

    The label of an object is the id of its category. Ids without a category have the name "N/A".

    Args:
      folder: contains annotations/instances_SPLIT.json and the images in SPLIT/.
      split: the SPLIT.

    Raises:
      UserError: if the annotations are missing or damaged, or an image is missing.
    """

    channels = 3

    def __init__(self, folder: str, split: str):
        self._folder = os.path.join(folder, split)
        path = os.path.join(folder, "annotations", f"instances_{split}.json")
        try:
            with open(path, "rb") as file:
                content = file.read()
            with os.scandir(self._folder) as entries:
                sizes = {entry.name: entry.stat().st_size for entry in entries}
        except FileNotFoundError as error:
            raise UserError(
                f"{error.filename} does not exist. Check data.directory and the names of the splits."
            ) from None
        try:
            self._parse(json.loads(content))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{path} has no annotations in COCO's format ({error!r}). Expected lists of images, "
                "annotations and categories."
            ) from None
        missing = [name for name in self._names if name not in sizes]
        if missing:
            raise UserError(
                f"{self._folder} lacks {len(missing):,} images of {path}, for example {missing[0]}. "
                "Download them."
            )
        # The images of COCO have 19 GB, so that their sizes stand for their content.
        described = json.dumps([sizes[name] for name in self._names]).encode()
        self.fingerprint = hashlib.sha256(content + described).hexdigest()

    def _parse(self, content: Any) -> None:
        """Sets the attributes from the content of the file of annotations."""
        categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        self.label_names = [categories.get(label, "N/A") for label in range(max(categories) + 1)]
        images = content["images"]
        self._names = [str(image["file_name"]) for image in images]
        self.sizes = np.array([(image["height"], image["width"]) for image in images], int).reshape(-1, 2)
        rows = {image["id"]: row for row, image in enumerate(images)}
        objects: list[list[tuple[Any, ...]]] = [[] for _ in images]  # box, label, area and crowd of each
        for annotation in content["annotations"]:
            categories[annotation["category_id"]]  # raises a KeyError for an unknown category
            box = annotation["bbox"]
            area = annotation.get("area", box[2] * box[3])
            is_crowd = bool(annotation.get("iscrowd"))
            row = rows[annotation["image_id"]]
            objects[row].append((box, int(annotation["category_id"]), area, is_crowd))
        if len(rows) < len(images) or (self.sizes <= 0).any() or min(categories) < 0:
            raise ValueError("ids are repeated or negative, or images have no pixels")
        self._truths = [_make_coco_truth(part) for part in objects]
        self.boxes = [truth.boxes[~truth.crowds] for truth in self._truths]
        self.labels = [truth.labels[~truth.crowds] for truth in self._truths]

    def name(self, index: int) -> str:
        """See `Source`."""
        return os.path.join(self._folder, self._names[index])

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


def _make_coco_truth(objects: Sequence[tuple[Any, ...]]) -> Truth:
    """Returns the objects of a picture from the box, label, area and crowd of each."""
    boxes, labels, areas, crowds = zip(*objects, strict=True) if objects else ((), (), (), ())
    return Truth(
        np.array(boxes, float).reshape(len(objects), 4),
        np.array(labels, int),
        np.array(areas, float),
        np.array(crowds, bool),
    )


class StoredPictures:
    """The pictures of a split, see `tfm.data.batches.generated.Generator`.

    In training, each epoch contains each picture once, in a new random order.

    Args:
      config: the data section.
      source: the pictures and boxes.

    Raises:
      UserError: if the split has no boxes, a picture has too many, or a box is not in its picture.
    """

    def __init__(self, config: BoxedPicturesConfig, source: Source):
        self._config, self._source = config, source
        self.label_names, self.channels, self.fingerprint = (
            source.label_names,
            source.channels,
            source.fingerprint,
        )
        self.evaluated = min(config.evaluated, len(source.boxes))
        self._objects = self._find_objects()

    def _find_objects(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns boxes, as in `BoxedPicture`, and labels of each picture."""
        source = self._source
        objects = []
        empty = 0
        for index, (boxes, labels) in enumerate(zip(source.boxes, source.labels, strict=True)):
            shares = to_shares(boxes, source.sizes[index], source.name(index))
            has_area = shares[:, 2:].all(1)
            empty += int((~has_area).sum())
            objects.append((shares[has_area], labels[has_area]))
        if not any(len(labels) for _, labels in objects[: self.evaluated]):
            raise UserError(
                f"Expected boxes, got {self.evaluated:,} pictures without any box. Check the data, or raise "
                "data.evaluated."
            )
        count, index = max((len(labels), index) for index, (_, labels) in enumerate(objects))
        if count > self._config.max_objects:
            raise UserError(
                f"{source.name(index)} has {count} objects, the maximum of the split. Set "
                f"data.max_objects to at least {count}."
            )
        if empty:
            log.warning("%s boxes without height or width are left out.", f"{empty:,}")
        return objects

    def make(self, *numbers: int) -> BoxedPicture:
        """Returns a picture: of an index after `EVALUATION`, or of seed, step and row."""
        if numbers[0] == EVALUATION:
            return self._read(numbers[1], is_mirrored=False)
        seed, step, row = numbers
        epoch, place = divmod(step * self._config.batch_size + row, len(self._objects))
        is_mirrored = np.random.default_rng((seed, FLIP, step, row)).random() < 0.5
        index = int(shuffle_epoch(seed, epoch, len(self._objects))[place])
        return self._read(index, is_mirrored=self._config.flip and is_mirrored)

    def size(self, index: int) -> tuple[int, int]:
        """Returns height and width of a picture in pixels, before it is resized."""
        height, width = self._source.sizes[index]
        return int(height), int(width)

    def truth(self, index: int) -> Truth:
        """Returns the objects of a picture for the scores, in pixels."""
        return self._source.truth(index)

    def assemble(self, examples: list[BoxedPicture], rows: int) -> Batch:
        """Returns a batch of pictures. Padding fills it up to `rows`."""
        return assemble(self._config, self.channels, examples, rows)

    def _read(self, index: int, *, is_mirrored: bool) -> BoxedPicture:
        """Reads a picture, and resizes it until it fits into a batch."""
        from PIL import Image, ImageOps

        picture = self._source.read(index)
        boxes, labels = self._objects[index]
        if is_mirrored:
            picture = ImageOps.mirror(picture)
            boxes = boxes * (-1, 1, 1, 1) + (1, 0, 0, 0)
        size = fit(self._source.sizes[index], self._config.height, self._config.width)
        if size[::-1] != picture.size:
            picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, np.float32).reshape(*size, self.channels)
        return BoxedPicture(pixels / 127.5 - 1, boxes.astype(np.float32), labels)


def fit(size: Sequence[int], max_height: int, max_width: int) -> tuple[int, int]:
    """Returns height and width of a picture that is resized until it fits, with the same aspect ratio."""
    height, width = size
    scale = min(max_height / height, max_width / width)
    return max(1, round(scale * height)), max(1, round(scale * width))


def to_shares(boxes: np.ndarray, size: Sequence[int], name: str) -> np.ndarray:
    """Converts boxes in pixels, and cuts off what is not in the picture.

    Args:
      boxes: left, top, width and height, [n, 4].
      size: height and width of the picture.
      name: what an error message calls the picture.

    Returns:
      Center x, center y, width and height as shares of the picture, float [n, 4].

    Raises:
      UserError: if a box reaches out of the picture by more than `TOLERANCE`.
    """
    height, width = size
    limits = np.array([width, height], float)
    lows = boxes[:, :2].astype(float)
    highs = lows + boxes[:, 2:]
    is_inside = ((lows >= -TOLERANCE) & (highs <= limits + TOLERANCE) & (highs >= lows)).all(1)
    if not is_inside.all():
        box = boxes[~is_inside][0].tolist()
        raise UserError(
            f"{name}: expected boxes (left, top, width, height) inside the {width} x {height} pixels, "
            f"got {box}."
        )
    lows, highs = lows.clip(0, limits), highs.clip(0, limits)
    return np.concatenate([(lows + highs) / 2 / limits, (highs - lows) / limits], axis=1)
