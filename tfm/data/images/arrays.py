"""Labelled images in memory: the arrays of an .npz file, and scikit-learn's digits."""

import errno
import functools
import hashlib
import textwrap
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.data_errors import MissingFile
from tfm.data.images.augmentation import Crops, crop_arrays
from tfm.errors import UserError, install_extra
from tfm.io.files import check_no_pipe

# NumPy and zipfile raise these for a damaged archive. Damage may look like an unsupported ZIP feature, or
# like an array that does not fit into the memory.
DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OSError, MemoryError, zipfile.BadZipFile, zlib.error)
MAX_REASON_CHARACTERS = 200
MAX_ARRAY_BYTES = 1 << 35  # unpacked, of the arrays of a split, which are all in memory
TOLERANCE = 0.01  # of the share of the brightest pixel, for rounding in files of 16-bit floats
MAX_CLASSES = 10_000_000  # the maximum of model.classes


class ArrayImages:
    """Images in memory.

    Args:
      images: [N, height, width, C].
      labels: int64 [N].
      label_names: names of all classes, in the order of their labels.
      largest: value of the brightest possible pixel. The darkest pixel is 0.

    Attributes:
      fingerprint: identifies the content.
      label_names, largest: see above.
    """

    has_class_names = False  # the names have the order of the labels

    def __init__(self, images: np.ndarray, labels: np.ndarray, label_names: list[str], largest: float):
        self._images, self._labels = images, labels
        self.label_names, self.largest = label_names, largest
        digest = hashlib.sha256(repr((images.shape, str(images.dtype), largest, label_names)).encode())
        digest.update(np.ascontiguousarray(images).tobytes())
        digest.update(np.ascontiguousarray(labels).tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self):
        return len(self._images)

    @property
    def labels(self) -> np.ndarray:
        """The labels of all images, int64 [N]."""
        return self._labels

    def take(self, indices: np.ndarray, crops: Crops | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns images [n, height, width, C] and their labels int64 [n].

        Args:
          indices: int [n].
          crops: the part of each image that is resized to the size of the whole image. None takes all of it.
        """
        images = self._images[indices]
        return images if crops is None else crop_arrays(images, crops), self._labels[indices]


def open_digits(split: str) -> ArrayImages:
    """Returns a split of the digits. The index modulo 10 is 0 in validation, and 4 or 9 in test.

    Raises:
      UserError: if there is no such split, or scikit-learn is not installed.
    """
    images, labels, names = read_digits()
    rest = np.arange(len(images)) % 10
    masks = {"validation": rest == 0, "test": rest % 5 == 4, "train": (rest != 0) & (rest % 5 != 4)}
    if split not in masks:
        raise UserError(f"The digits have the splits {', '.join(masks)}, got '{split}'. Choose one of these.")
    return ArrayImages(images[masks[split]], labels[masks[split]], names, 16.0)


@functools.cache
def read_digits() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns (images uint8 [1797, 8, 8, 1], labels int64 [1797], names of the ten classes).

    Raises:
      UserError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            f"The digits come with scikit-learn, which cannot be imported ({error}): "
            f"{install_extra('digits')}."
        ) from None
    digits = load_digits()
    images = digits.images[..., None].astype(np.uint8)  # the floats are integers from 0 to 16
    return images, digits.target.astype(np.int64), [str(name) for name in digits.target_names]


def open_arrays(
    path: str, split: str, mean: Sequence[float] = (), deviation: Sequence[float] = ()
) -> ArrayImages:
    """Returns a split of an .npz file, whose arrays the help of `ImagesConfig.file` describes.

    Args:
      path: the file.
      split: the SPLIT in the names of its arrays.
      mean, deviation: how the floats of the images were normalized, see `ImagesConfig.mean`.

    Raises:
      UserError: if the file is missing or damaged, or an array is not as described.
    """
    arrays = read_arrays(path, (f"{split}_images", f"{split}_labels"))
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    images = images[..., None] if images.ndim == 3 else images
    if mean or deviation:
        images = _undo_normalization(images, mean, deviation, path)
    if not _are_usable(images, labels):
        raise UserError(
            f"{path}: expected {split}_images [N, height, width] or [N, height, width, C] of uint8 or floats "
            f"from 0 to 1, and in {split}_labels an integer from 0 to {MAX_CLASSES - 1:,} for each image, "
            f"got {_describe(images)} and {_describe(labels)}."
        )
    names: Any = arrays.get("label_names")
    if names is None:
        names = [str(label) for label in range(int(labels.max()) + 1)]
    elif names.ndim != 1 or names.dtype.kind != "U" or labels.max() >= len(names):
        raise UserError(
            f"{path}: label_names must be a list with a text for each label. The labels of {split}_labels go "
            f"up to {labels.max()}."
        )
    largest = 255.0 if images.dtype == np.uint8 else 1.0
    return ArrayImages(images, labels.astype(np.int64), [str(name) for name in names], largest)


def _undo_normalization(
    images: np.ndarray, mean: Sequence[float], deviation: Sequence[float], path: str
) -> np.ndarray:
    """Returns normalized floats [N, height, width, C] as shares of the brightest pixel, from 0 to 1.

    Raises:
      UserError: if mean and deviation do not have a value for each channel or one for all, or they do not
        give numbers from 0 to 1.
    """
    channels = images.shape[-1] if images.ndim else 0
    scale, offset = np.array(deviation or (1.0,)), np.array(mean or (0.0,))
    if images.dtype.kind != "f" or not {scale.size, offset.size} <= {1, channels} or not (scale > 0).all():
        raise UserError(
            f"data.mean and data.deviation need floats and a value for each channel, or one for all; the "
            f"deviations must be above 0. Got {tuple(mean)} and {tuple(deviation)} for the images of {path}, "
            f"{images.dtype} of shape {images.shape}."
        )
    shares = images * scale + offset
    if shares.size and (shares.min() < -TOLERANCE or shares.max() > 1 + TOLERANCE):
        raise UserError(
            f"With data.mean and data.deviation, the images of {path} go from {shares.min():.3g} to "
            f"{shares.max():.3g} instead of 0 to 1. Give the means and deviations that the images were "
            "normalized with."
        )
    return shares.clip(0, 1).astype(np.float32)


def read_arrays(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns {name: array} for the required `names` of an .npz file, and for `label_names` if it exists.

    Raises:
      MissingFile: if the file has none of the required arrays.
      UserError: if the file is missing, damaged or a pipe, lacks some of the required arrays, or has more
        than `MAX_ARRAY_BYTES` in these arrays.
      OSError: if the file cannot be read.
    """
    check_no_pipe(path)
    try:
        # Unlike `np.load`, `NpzFile` raises an error for an .npy file with a single array.
        with open(path, "rb") as opened, np.lib.npyio.NpzFile(opened, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                kind = MissingFile if len(missing) == len(names) else UserError
                raise kind(
                    f"{path} has no array {missing[0]}. Its arrays are: "
                    f"{', '.join(sorted(file.files)) or 'none'}."
                )
            present = [name for name in (*names, "label_names") if name in file.files]
            _check_unpacked_size(file, present, path)
            return {name: file[name] for name in present}
    except UserError:  # an array is missing
        raise
    except FileNotFoundError:
        raise UserError(f"Expected an .npz file at {path}, but there is none. Check data.file.") from None
    except DAMAGE as error:
        # The directory of a damaged archive may have negative offsets, which the system rejects with EINVAL.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        # The message may quote the content of the file at any length.
        reason = textwrap.shorten(str(error), MAX_REASON_CHARACTERS, placeholder="...")
        raise UserError(f"{path} is no .npz file of plain arrays ({reason}). Write it again.") from None


def _check_unpacked_size(file: Any, names: Sequence[str], path: str) -> None:
    """Raises a UserError if arrays of an open .npz file are too large, however small the file is."""
    members = {f"{name}.npy" for name in names} | set(names)
    size = sum(info.file_size for info in file.zip.infolist() if info.filename in members)
    if size > MAX_ARRAY_BYTES:
        raise UserError(
            f"Expected at most {MAX_ARRAY_BYTES:,} bytes in the arrays {', '.join(names)} of {path}, got "
            f"{size:,}. Write fewer images, or use TFDS, which reads images when they are needed."
        )


def _are_usable(images: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether arrays have the shapes, types and values of the help of `ImagesConfig.file`."""
    if images.ndim != 4 or not images.size or labels.shape != images.shape[:1]:
        return False
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= MAX_CLASSES:
        return False
    return images.dtype == np.uint8 or (images.dtype.kind == "f" and images.min() >= 0 and images.max() <= 1)


def _describe(array: np.ndarray) -> str:
    """Returns type, shape and range of an array."""
    numbers = f" from {array.min()} to {array.max()}" if array.size and array.dtype.kind in "iuf" else ""
    return f"{array.dtype} of shape {array.shape}{numbers}"
