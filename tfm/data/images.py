"""Labelled images from TFDS, files of arrays or scikit-learn, behind one interface. No JAX here.

A source of images has `len(source)`; `source.take(indices)`, the images [n, height, width, C] and their
labels, int64 [n]; `source.largest`, the value of the brightest pixel there can be, where the darkest is 0;
`source.label_names`; and `source.fingerprint`, which identifies its content.
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

# What NumPy and zipfile raise for a damaged archive, among them features of ZIP that they do not have.
DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OSError, zipfile.BadZipFile, zlib.error)
MAX_REASON_CHARACTERS = 200
DIGITS_SPLIT = "by index modulo 10: validation 0, test 4 and 9, train the others"


@dataclasses.dataclass(frozen=True)
class ImageDataConfig:
    """Where labelled images come from and how they become batches."""

    kind: str = field(
        "tfds",
        "a tfds data set, the arrays of an .npz file, or the 1,797 digits of 8 x 8 pixels of scikit-learn, "
        "which needs the extra digits.",
        choices=("tfds", "arrays", "digits"),
    )
    name: str = field(
        "mnist",
        "Name of the TFDS data set, whose features are image and label.",
        pattern=TFDS_NAME,
        form="a name such as mnist",
    )
    directory: str = field("", "TFDS's data_dir, empty for its default.")
    file: str = field(
        "",
        "arrays: an .npz file with the arrays SPLIT_images [N, height, width, C] or [N, height, width], of "
        "uint8 or floats of 0 to 1, and SPLIT_labels [N], integers from 0; label_names, texts, is optional.",
    )
    train: str = field(
        "train",
        "tfds: a split such as train or train[:90%]. arrays: what the names of its arrays begin with. "
        "digits: one of train, validation and test.",
    )
    validation: str = field("validation", "The same for the validation split.")
    test: str = field("test", "The same for the test split, which only eval.py reads.", resume=CHANGEABLE)
    batch_size: int = field(128, "Images of a batch, on all hosts.", least=1, most=10**7, unit="images")
    max_shift: int = field(
        0,
        "Training moves each image by up to so many pixels in both directions, at random: a random crop of "
        "the image with a margin of zeros.",
        least=0,
        most=4096,
        unit="pixels",
    )
    flip: bool = field(False, "Training mirrors each image, left to right, with probability 1/2.")

    def __post_init__(self):
        check_fields(self, "data")
        if self.kind == "arrays" and not self.file:
            raise UserError("data.kind 'arrays' needs data.file, the path of an .npz file.")

    @property
    def summary(self) -> str:
        """The data in a few words, for a model card."""
        of = {"digits": "scikit-learn's digits", "arrays": f"`{self.file}`", "tfds": f"TFDS `{self.name}`"}
        return f"{of[self.kind]}, `{self.train}`, validated on `{self.validation}`"


class Images(Protocol):
    """A source of labelled images, see the module's docstring."""

    fingerprint: str
    label_names: list[str]
    largest: float

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(images [n, height, width, C], labels int64 [n])."""
        ...


class ArrayImages:
    """Images in memory.

    Args:
      images: [N, height, width, C].
      labels: int64 [N].
      label_names: of all classes.
      largest: value of the brightest pixel.
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
    """A split of a prepared TFDS builder, whose images are decoded when they are read.

    Raises:
      UserError: no such split, other features than image and label, no examples, or damaged files.
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
            found = self._records.__getitems__([int(index) for index in indices])
            images = [self._decode(each["image"]) for each in found]
            labels = np.array([each["label"] for each in found], np.int64)
        if len({image.shape for image in images}) > 1:
            raise UserError(
                f"The images of {self._name} differ in size, such as {images[0].shape} and another: use a "
                "data set whose images have one size."
            )
        if labels.min(initial=0) < 0:
            raise UserError(
                f"Some images of {self._name} have no label (-1), as those of some test splits: name another."
            )
        return np.stack(images), labels

    def _decode(self, encoded):
        from PIL import Image

        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert("L" if self._channels == 1 else "RGB"))
        return pixels[..., None] if self._channels == 1 else pixels


def open_images(config: ImageDataConfig, split: str) -> Images:
    """The images of a split.

    Args:
      config: says where they are.
      split: "train", "validation" or "test", which the config maps to a name of its own; any other name is
        taken as it is.

    Raises:
      UserError: whatever is missing or unusable.
    """
    name = getattr(config, split) if split in SPLITS else split
    if not name:
        raise UserError(f"There is no split to read: data.{split} is empty; name one, or choose another.")
    if config.kind == "digits":
        return _open_digits(name)
    if config.kind == "arrays":
        return _open_arrays(config.file, name)
    builder = tfds.find_builder(config.name, config.directory)
    raise_all([*find_feature_problems(builder), *tfds.split_problems(builder, [name])])
    return RecordImages(tfds.prepare(builder, config.name, config.directory), name)


def check_splits(config: ImageDataConfig, splits: Sequence[str] = SPLITS) -> None:
    """Opens all splits before work is put into them.

    Raises:
      UserError: its message lists all problems.
    """
    problems: list[str] = []
    for split in splits:
        with collect(problems):
            open_images(config, split)
    raise_all(problems)


def find_feature_problems(builder: Any) -> list[str]:
    """Error messages where a TFDS data set has no images of 8 bits with a label each."""
    from tensorflow_datasets import features as kinds

    features, problems = builder.info.features, []
    for name, kind in (("image", kinds.Image), ("label", kinds.ClassLabel)):
        if not hasattr(features, "keys") or name not in features or not isinstance(features[name], kind):
            problems.append(
                f"The data set {builder.info.full_name} has no feature '{name}' of the type {kind.__name__}: "
                "use one that classifies images."
            )
    if not problems and (features["image"].np_dtype != np.uint8 or features["image"].shape[-1] not in (1, 3)):
        problems.append(
            f"Expected images of 8 bits with 1 or 3 channels in {builder.info.full_name}, got "
            f"{features['image']}: use another data set."
        )
    return problems


def _open_digits(split):
    """A split of scikit-learn's digits, see `DIGITS_SPLIT`."""
    images, labels, names = read_digits()
    rest = np.arange(len(images)) % 10
    masks = {"validation": rest == 0, "test": rest % 5 == 4, "train": (rest != 0) & (rest % 5 != 4)}
    if split not in masks:
        raise UserError(f"The digits have the splits {', '.join(masks)}, got '{split}': choose one of them.")
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
    found = load_digits()
    images = found.images[..., None].astype(np.uint8)  # integers of 0 to 16, as floats
    return images, found.target.astype(np.int64), [str(name) for name in found.target_names]


def _open_arrays(path, split):
    """A split of an .npz file, see `ImageDataConfig.file`."""
    arrays = _read_arrays(path, (f"{split}_images", f"{split}_labels"))
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    images = images[..., None] if images.ndim == 3 else images
    problem = _array_problem(images, labels)
    if problem:
        raise UserError(f"{path}: {split}_images and {split}_labels {problem}.")
    names = arrays.get("label_names")
    if names is None:
        names = [str(label) for label in range(int(labels.max()) + 1)]
    elif names.ndim != 1 or names.dtype.kind != "U" or labels.max() >= len(names):
        raise UserError(
            f"{path}: label_names must be a list of texts, one for each label, of {split}_labels up to "
            f"{labels.max()}."
        )
    largest = 255.0 if images.dtype == np.uint8 else 1.0
    return ArrayImages(images, labels.astype(np.int64), [str(name) for name in names], largest)


def _read_arrays(path, names):
    """{name: array} of an .npz file, `label_names` too where it has it."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise UserError(
                    f"{path} has no array {missing[0]}; it has {', '.join(sorted(file.files)) or 'none'}."
                )
            return {name: file[name] for name in (*names, "label_names") if name in file.files}
    except FileNotFoundError:
        raise UserError(f"Expected an .npz file at {path}, but there is none: check data.file.") from None
    except DAMAGE as error:
        # A damaged directory of the archive has offsets before its begin, which the system rejects.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        # The message may quote the content of the file at any length.
        reason = textwrap.shorten(str(error), MAX_REASON_CHARACTERS, placeholder="...")
        raise UserError(f"{path} is no .npz file of plain arrays ({reason}): write it again.") from None


def _array_problem(images, labels):
    """What is wrong with the arrays of a split; "" for nothing."""
    if images.ndim != 4 or images.size == 0:
        return f"must hold images [N, height, width] or [N, height, width, C], got the shape {images.shape}"
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        return f"must have an integer label for each image, got {labels.dtype} of shape {labels.shape}"
    if labels.min() < 0:
        return f"must have labels from 0, got {labels.min()}"
    if images.dtype == np.uint8:
        return ""
    if images.dtype.kind != "f" or not (images.min() >= 0 and images.max() <= 1):
        return f"must hold uint8 or floats of 0 to 1, got {images.dtype} of {images.min()} to {images.max()}"
    return ""
