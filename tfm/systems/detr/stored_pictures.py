"""Stored pictures with boxes, as examples: the arrays of an .npz file, or files of COCO or YOLO.

For the files, see `tfm.systems.detr.coco` and `tfm.systems.detr.yolo`.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfm.data.batches.generated import EVALUATION, Batch
from tfm.data.images import read_arrays, shuffle_epoch
from tfm.data.pictures import to_pixels
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
      left_out: {what was left out: how often}.
    """

    sizes: np.ndarray
    boxes: list[np.ndarray]
    labels: list[np.ndarray]
    label_names: list[str]
    channels: int
    fingerprint: str
    left_out: dict[str, int]

    def name(self, index: int) -> str:
        """Returns what an error message calls a picture."""
        ...

    def name_box(self, index: int, number: int) -> str:
        """Returns what an error message calls a box of a picture."""
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
        self._path = path
        self._split = split
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
        self.left_out: dict[str, int] = {}

    def name(self, index: int) -> str:
        """See `Source`."""
        return f"{self._path}, picture {index} of {self._split}_images"

    def name_box(self, index: int, number: int) -> str:
        """See `Source`."""
        return f"{self.name(index)}, object {number} of those with a label"

    def truth(self, index: int) -> Truth:
        """See `Source`."""
        return make_truth(self.boxes[index], self.labels[index])

    def read(self, index: int) -> Any:
        """See `Source`."""
        from PIL import Image

        pixels = self._images[index]
        return Image.fromarray(pixels[..., 0] if self.channels == 1 else pixels)


class StoredPictures:
    """The pictures of a split, see `tfm.data.batches.generated.Generator`.

    In training, each epoch contains each picture once, in a new random order.

    Args:
      config: the data section.
      source: the pictures and boxes.
      is_training: whether the pictures are trained on. Otherwise, the first `evaluated` pictures are scored.

    Raises:
      UserError: if the pictures that are used have no boxes, a picture has too many, or a box is not in its
        picture.
    """

    def __init__(self, config: BoxedPicturesConfig, source: Source, *, is_training: bool = False):
        self._config = config
        self._source = source
        self._is_training = is_training
        self.label_names = source.label_names
        self.channels = source.channels
        self.fingerprint = source.fingerprint
        self.evaluated = min(config.evaluated, len(source.boxes))
        self._objects = self._find_objects()

    def _find_objects(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns boxes, as in `BoxedPicture`, and labels of each picture."""
        source = self._source
        _check_pixels(source)
        objects = []
        empty = 0
        for index, (boxes, labels) in enumerate(zip(source.boxes, source.labels, strict=True)):
            is_inside = find_inside(boxes, source.sizes[index])
            if not is_inside.all():
                number = int(is_inside.argmin())
                height, width = source.sizes[index]
                raise UserError(
                    f"{source.name_box(index, number)}: expected a box (left, top, width, height) inside the "
                    f"{width} x {height} pixels of the picture, got {boxes[number].tolist()}."
                )
            is_kept = has_area(boxes, source.sizes[index])
            empty += int((~is_kept).sum())
            objects.append((to_shares(boxes[is_kept], source.sizes[index]), labels[is_kept]))
        self._check_boxes_exist([len(labels) for _, labels in objects])
        count, index = max((len(labels), index) for index, (_, labels) in enumerate(objects))
        if count > self._config.max_objects:
            raise UserError(
                f"{source.name(index)} has {count} objects, the maximum of the split. Set "
                f"data.max_objects to at least {count}, and model.queries to at least as many."
            )
        if empty:
            log.warning("%s boxes without height or width are left out.", f"{empty:,}")
        return objects

    def _check_boxes_exist(self, counts: list[int]) -> None:
        """Raises a UserError if none of the pictures that are used has a box.

        Args:
          counts: number of the boxes of each picture.
        """
        used = counts if self._is_training else counts[: self.evaluated]
        if any(used):
            return
        advice = "Check the data."
        if any(counts):
            first = next(number for number, count in enumerate(counts, 1) if count)
            advice = f"Set data.evaluated to at least {first}, the first picture with a box."
        raise UserError(f"Expected boxes, got {len(used):,} pictures without any box. {advice}")

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
        from PIL import ImageOps

        picture = self._source.read(index)
        boxes, labels = self._objects[index]
        if is_mirrored:
            picture = ImageOps.mirror(picture)
            boxes = boxes * (-1, 1, 1, 1) + (1, 0, 0, 0)
        return BoxedPicture(resize(picture, self._config), boxes.astype(np.float32), labels)


def resize(picture: Any, config: BoxedPicturesConfig) -> np.ndarray:
    """Returns a PIL image with the largest size that fits into a batch, float32 [h, w, C] from -1 to 1."""
    from PIL import Image

    size = fit(picture.size[::-1], config.height, config.width)
    if size[::-1] != picture.size:
        picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return to_pixels(picture).astype(np.float32) / 127.5 - 1


def fit(size: Sequence[int], max_height: int, max_width: int) -> tuple[int, int]:
    """Returns height and width of a picture that is resized until it fits, with the same aspect ratio."""
    height, width = size
    scale = min(max_height / height, max_width / width)
    return max(1, round(scale * height)), max(1, round(scale * width))


def find_inside(boxes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Returns for each box whether it is in the picture, except for at most `TOLERANCE`, bool [n].

    Args:
      boxes: left, top, width and height in pixels, [n, 4].
      size: height and width of the picture.
    """
    lows = boxes[:, :2]
    highs = lows + boxes[:, 2:]
    limits = np.array(size[::-1], float)
    return ((lows >= -TOLERANCE) & (highs <= limits + TOLERANCE) & (highs >= lows)).all(1)


def to_shares(boxes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Converts boxes in pixels, and cuts off what is not in the picture.

    Args:
      boxes: left, top, width and height, [n, 4].
      size: height and width of the picture.

    Returns:
      Center x, center y, width and height as shares of the picture, float [n, 4].
    """
    limits = np.array(size[::-1], float)
    lows = boxes[:, :2].astype(float)
    highs = lows + boxes[:, 2:]
    lows, highs = lows.clip(0, limits), highs.clip(0, limits)
    return np.concatenate([(lows + highs) / 2 / limits, (highs - lows) / limits], axis=1)


def has_area(boxes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Returns for each box whether its part inside the picture has height and width, bool [n].

    Args:
      boxes: left, top, width and height in pixels, [n, 4].
      size: height and width of the picture.
    """
    return (to_shares(boxes, size)[:, 2:] != 0).all(1)


def _check_pixels(source: Source) -> None:
    """Raises a UserError if all boxes are shares of their pictures, from 0 to 1, instead of pixels."""
    boxes = np.concatenate([np.zeros((0, 4)), *source.boxes])
    are_shares = len(boxes) and (boxes >= 0).all() and (boxes <= 1).all() and (boxes % 1).any()
    if are_shares:
        index = next(index for index, part in enumerate(source.boxes) if len(part))
        height, width = source.sizes[index]
        raise UserError(
            f"Expected boxes in pixels, but the numbers of all {len(boxes):,} boxes lie from 0 to 1. For "
            f"example, {source.name_box(index, 0)} is {source.boxes[index][0].tolist()}, and the picture has "
            f"{width} x {height} pixels. Multiply left and width by the width of each picture, and top and "
            "height by its height."
        )
