"""Labelled images from TFDS, files of arrays or scikit-learn, with a common interface, `Images`.

This module does not depend on JAX.
"""

import dataclasses
import errno
import functools
import hashlib
import io
import textwrap
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfm.data.config import SPLITS, TFDS_NAME
from tfm.data.data_errors import collect, raise_all
from tfm.data.sources import tfds
from tfm.errors import UserError, install_extra
from tfm.fields import CHANGEABLE, check_fields, field

# NumPy and zipfile raise these for a damaged archive, also when damage looks like an unsupported ZIP feature.
DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OSError, zipfile.BadZipFile, zlib.error)
MAX_REASON_CHARACTERS = 200
DIGITS_SPLIT = "by index modulo 10: validation 0, test 4 and 9, train the others"


@dataclasses.dataclass(frozen=True)
class ImageDataConfig:
    """The source of labelled images, and how they become batches."""

    kind: str = field(
        "tfds",
        "Kind of the data. tfds: a TFDS data set. arrays: the arrays of an .npz file. digits: scikit-learn's "
        "1,797 digits of 8 x 8 pixels (install the extra digits).",
        choices=("tfds", "arrays", "digits"),
    )
    name: str = field(
        "mnist",
        "tfds: name of the data set. It must have the features image and label.",
        pattern=TFDS_NAME,
        form="a name such as mnist",
    )
    directory: str = field("", "tfds: TFDS's data_dir; empty for its default.")
    file: str = field(
        "",
        "arrays: path of an .npz file. For each SPLIT it contains SPLIT_images, [N, height, width, C] or "
        "[N, height, width], uint8 or floats from 0 to 1, and SPLIT_labels, [N], integers from 0. The array "
        "label_names, a text for each label, is optional.",
    )
    train: str = field(
        "train",
        "Training split. tfds: a split such as train or train[:90%]. arrays: the SPLIT in the names of the "
        "arrays. digits: train, validation or test.",
    )
    validation: str = field("validation", "Validation split, in the form of data.train.")
    test: str = field(
        "test", "Test split, in the form of data.train. Training does not read it.", resume=CHANGEABLE
    )
    batch_size: int = field(
        128, "Images of a batch, summed over all hosts.", least=1, most=10**7, unit="images"
    )
    max_shift: int = field(
        0,
        "Maximum random shift of each training image, vertically and horizontally. Zeros fill the margin.",
        least=0,
        most=4096,
        unit="pixels",
    )
    flip: bool = field(False, "Random mirroring of training images, left to right, with probability 1/2.")

    def __post_init__(self):
        check_fields(self, "data")
        if self.kind == "arrays" and not self.file:
            raise UserError("data.kind 'arrays' needs data.file, but it is empty. Set it to an .npz file.")

    @property
    def summary(self) -> str:
        """Description of the data for a line of the model card."""
        of = {"digits": "scikit-learn's digits", "arrays": f"`{self.file}`", "tfds": f"TFDS `{self.name}`"}
        return f"{of[self.kind]}, `{self.train}`, validated on `{self.validation}`"


class Images(Protocol):
    """A source of labelled images.

    Attributes:
      fingerprint: identifies the content.
      label_names: names of all classes, in the order of their labels.
      largest: the value of the brightest possible pixel. The darkest pixel is 0.
    """

    fingerprint: str
    label_names: list[str]
    largest: float

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (images [n, height, width, C], labels int64 [n]) for indices, int [n]."""
        ...


class ArrayImages:
    """Images in memory.

    Args:
      images: [N, height, width, C].
      labels: int64 [N].
      label_names: names of all classes.
      largest: value of the brightest possible pixel.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, label_names: list[str], largest: float):
        self._images, self._labels = images, labels
        self.label_names, self.largest = label_names, largest
        digest = hashlib.sha256(repr((images.shape, str(images.dtype), largest, label_names)).encode())
        digest.update(np.ascontiguousarray(images).tobytes())
        digest.update(np.ascontiguousarray(labels).tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self):
        return len(self._images)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Images`."""
        return self._images[indices], self._labels[indices]


class RecordImages:
    """A split of a prepared TFDS builder. Images are decoded when they are read.

    Args:
      builder: prepared builder.
      split: TFDS's name of the split.

    Raises:
      UserError: if there is no such split, the features image and label are missing or have other types,
        there are no examples, or the files are damaged.
    """

    largest = 255.0

    def __init__(self, builder: Any, split: str):
        import tensorflow_datasets

        self._name, self._folder = builder.info.full_name, builder.data_dir
        raise_all([*find_feature_problems(builder), *tfds.split_problems(builder, [split])])
        with tfds.reading(self._folder):
            decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
            self._records = builder.as_data_source(split=split, decoders=decoders)
            size = len(self._records)
        self._channels = builder.info.features["image"].shape[-1]
        self.label_names = list(builder.info.features["label"].names)
        self.fingerprint = f"tfds-{self._name}-{split}-{size}-image-label"

    def __len__(self):
        return len(self._records)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Images`."""
        with tfds.reading(self._folder):
            records = self._records.__getitems__([int(index) for index in indices])
            images = [self._decode(record["image"]) for record in records]
            labels = np.array([record["label"] for record in records], np.int64)
        if len({image.shape for image in images}) > 1:
            raise UserError(
                f"The images of {self._name} differ in size. The shape of an image is {images[0].shape}, and "
                "others have another shape. Use a data set whose images all have the same size."
            )
        if labels.min(initial=0) < 0:
            raise UserError(
                f"Some images of {self._name} have the label -1 instead of a class, as in test splits "
                "without labels. Use another split."
            )
        return np.stack(images), labels

    def _decode(self, encoded: bytes) -> np.ndarray:
        """Returns the pixels of a compressed image, uint8 [height, width, C]."""
        from PIL import Image

        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert("L" if self._channels == 1 else "RGB"))
        return pixels[..., None] if self._channels == 1 else pixels


def open_images(config: ImageDataConfig, split: str) -> Images:
    """Opens the images of a split. Downloads a TFDS data set that does not exist yet.

    Args:
      config: where the images are.
      split: "train", "validation" or "test". The config maps these to the names in the data. Any other text
        is itself the name in the data.

    Raises:
      UserError: if the data are missing or unusable, or the config has no name for the split.
    """
    name = getattr(config, split) if split in SPLITS else split
    if not name:
        raise UserError(
            f"There is no split to read because data.{split} is empty. Set it or choose another split."
        )
    if config.kind == "digits":
        return _open_digits(name)
    if config.kind == "arrays":
        return _open_arrays(config.file, name)
    builder = tfds.find_builder(config.name, config.directory)
    raise_all([*find_feature_problems(builder), *tfds.split_problems(builder, [name])])
    return RecordImages(tfds.prepare(builder, config.name, config.directory), name)


def check_splits(config: ImageDataConfig, splits: Sequence[str] = SPLITS) -> None:
    """Opens splits, so that problems show before the long work on the data begins.

    Args:
      config: where the images are.
      splits: see `open_images`.

    Raises:
      UserError: if there are problems. The message lists the problems of all splits.
    """
    problems: list[str] = []
    for split in splits:
        with collect(problems):
            open_images(config, split)
    raise_all(problems)


def find_feature_problems(builder: Any) -> list[str]:
    """Returns error messages if a TFDS data set has no 8-bit images with 1 or 3 channels and class labels."""
    from tensorflow_datasets import features as kinds

    features, problems = builder.info.features, []
    for name, kind in (("image", kinds.Image), ("label", kinds.ClassLabel)):
        if not hasattr(features, "keys") or name not in features or not isinstance(features[name], kind):
            problems.append(
                f"The data set {builder.info.full_name} has no feature '{name}' of the type {kind.__name__}. "
                "Use a data set for image classification."
            )
    if not problems and (features["image"].np_dtype != np.uint8 or features["image"].shape[-1] not in (1, 3)):
        problems.append(
            f"Expected images of 8 bits with 1 or 3 channels in {builder.info.full_name}, got "
            f"{features['image']}. Use another data set."
        )
    return problems


def _open_digits(split: str) -> ArrayImages:
    """Returns a split of scikit-learn's digits, as `DIGITS_SPLIT` describes it."""
    images, labels, names = read_digits()
    rest = np.arange(len(images)) % 10
    masks = {"validation": rest == 0, "test": rest % 5 == 4, "train": (rest != 0) & (rest % 5 != 4)}
    if split not in masks:
        raise UserError(f"The digits have the splits {', '.join(masks)}, got '{split}'. Choose one of these.")
    return ArrayImages(images[masks[split]], labels[masks[split]], names, 16.0)


@functools.cache
def read_digits():
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


def _open_arrays(path: str, split: str) -> ArrayImages:
    """Returns a split of an .npz file, whose arrays the help of `ImageDataConfig.file` describes."""
    arrays = _read_arrays(path, (f"{split}_images", f"{split}_labels"))
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    images = images[..., None] if images.ndim == 3 else images
    problem = _array_problem(images, labels)
    if problem:
        raise UserError(f"{path}: {split}_images and {split}_labels {problem}.")
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


def _read_arrays(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns {name: array} of an .npz file for the required `names`, and `label_names` if the file has it.

    Raises:
      UserError: if the file or a required array is missing, or it is not an .npz file of plain arrays.
    """
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise UserError(
                    f"{path} has no array {missing[0]}. Its arrays are: "
                    f"{', '.join(sorted(file.files)) or 'none'}."
                )
            return {name: file[name] for name in (*names, "label_names") if name in file.files}
    except FileNotFoundError:
        raise UserError(f"Expected an .npz file at {path}, but there is none. Check data.file.") from None
    except DAMAGE as error:
        # In a damaged archive, the directory may have negative offsets. The system rejects them with EINVAL.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        # The message may quote the content of the file at any length.
        reason = textwrap.shorten(str(error), MAX_REASON_CHARACTERS, placeholder="...")
        raise UserError(f"{path} is no .npz file of plain arrays ({reason}). Write it again.") from None


def _array_problem(images: np.ndarray, labels: np.ndarray) -> str:
    """Returns the end of an error message if the arrays of a split are unusable, otherwise ""."""
    if images.ndim != 4 or images.size == 0:
        return (
            f"must contain images [N, height, width] or [N, height, width, C], got the shape {images.shape}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        return f"must have an integer label for each image, got {labels.dtype} of shape {labels.shape}"
    if labels.min() < 0:
        return f"must have labels from 0, got {labels.min()}"
    if images.dtype == np.uint8:
        return ""
    if images.dtype.kind != "f" or not (images.min() >= 0 and images.max() <= 1):
        return f"must be uint8 or floats from 0 to 1, got {images.dtype} of {images.min()} to {images.max()}"
    return ""
