"""Labelled images from TFDS, files of arrays or scikit-learn, and their batches.

The order and the augmentation of the batches depend only on the seed and the step. A batch is a dict of

    images   float32 [B, height, width, C], from -1 (darkest) to 1 (brightest); 0 in padding rows
    labels   int32 [B]; 0 in padding rows
    weights  float32 [B]; 1, or 0 in padding rows
"""

import errno
import functools
import hashlib
import textwrap
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfm.data.config import SPLITS, ImagesConfig
from tfm.data.data_errors import DataError, MissingFile, raise_all
from tfm.data.pictures import read_picture
from tfm.data.sources import tfds
from tfm.data.sources.splits import find_name, find_split_problems
from tfm.errors import UserError, install_extra
from tfm.io.files import check_no_pipe

Batch = dict[str, np.ndarray]
ORDER, AUGMENTATION = 0, 1  # numbers of the random streams of a seed
# NumPy and zipfile raise these for a damaged archive. Damage may look like an unsupported ZIP feature, or
# like an array that does not fit into the memory.
DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OSError, MemoryError, zipfile.BadZipFile, zlib.error)
MAX_REASON_CHARACTERS = 200
MAX_ARRAY_BYTES = 1 << 35  # unpacked, of the arrays of a split, which are all in memory
MAX_CLASSES = 10_000_000  # the maximum of model.classes
CHECKED_IMAGES = 100  # of a TFDS split, evenly spaced, when it is opened


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
        """Returns (images [n, height, width, C], labels int64 [n]) for indices, int [n]."""
        return self._images[indices], self._labels[indices]


class RecordImages:
    """A split of a prepared TFDS builder, with the members of `ArrayImages`. Reading decodes the images.

    Args:
      builder: prepared builder that `check_builder` accepts.
      split: TFDS's name of the split.
      resize: height and width to which images are cropped in the middle and resized. 0 keeps their size.

    Raises:
      UserError: if the files are damaged, or some images have no label or differ in size. At most
        `CHECKED_IMAGES` images are read for this check.
    """

    largest = 255.0

    def __init__(self, builder: Any, split: str, resize: int = 0):
        import tensorflow_datasets

        self._resize = resize

        self._name, self._folder = builder.info.full_name, builder.data_dir
        with tfds.reading(self._folder):
            decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
            self._records = builder.as_data_source(split=split, decoders=decoders)
            size = len(self._records)
        self._channels = builder.info.features["image"].shape[-1]
        self.label_names = list(builder.info.features["label"].names)
        self._read_fingerprint = functools.partial(tfds.fingerprint_files, builder, split, ("image", "label"))
        self.take(np.linspace(0, size - 1, min(size, CHECKED_IMAGES)).astype(int))

    def __len__(self):
        return len(self._records)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the files. A check of the split does not read it, because hashing reads all files."""
        return self._read_fingerprint()

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `ArrayImages.take`."""
        with tfds.reading(self._folder):
            records = self._records.__getitems__([int(index) for index in indices])
            contents = [record["image"] for record in records]
            labels = np.array([record["label"] for record in records], np.int64)
        images = [
            self._decode(content, f"Image {index:,} of {self._name}")
            for index, content in zip(indices, contents, strict=True)
        ]
        if len({image.shape for image in images}) > 1:
            raise UserError(
                f"The images of {self._name} differ in size, for example from {images[0].shape}. Set "
                "data.resize to the height and width that the model reads."
            )
        if labels.min(initial=0) < 0:
            raise UserError(
                f"Some images of {self._name} have the label -1 instead of a class, as in test splits "
                "without labels. Use another split. An empty data.test leaves out the test split."
            )
        return np.stack(images), labels

    def _decode(self, encoded: bytes, name: str) -> np.ndarray:
        """Returns the pixels of a compressed image, uint8 [height, width, C]."""
        from PIL import Image, ImageOps

        picture = read_picture(encoded, name, self._channels)
        if self._resize:
            picture = ImageOps.fit(picture, (self._resize, self._resize), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        return pixels[..., None] if self._channels == 1 else pixels


Images = ArrayImages | RecordImages


def open_images(config: ImagesConfig, split: str) -> Images:
    """Opens the images of a split. Downloads a TFDS data set that does not exist yet.

    Args:
      config: where the images are.
      split: "train", "validation" or "test". The config maps these to the names in the data. Any other text
        is itself the name in the data.

    Raises:
      UserError: if the data are missing or unusable, or the config has no name for the split.
    """
    name = find_name(config, split)
    if config.kind == "digits":
        return _open_digits(name)
    if config.kind == "arrays":
        return _open_arrays(config.file, name)
    builder = tfds.find_builder(config.name, config.directory)
    check_builder(builder, name)  # before the download, as far as TFDS knows
    prepared = tfds.prepare(builder, config.name, config.directory)
    if prepared is not builder:
        check_builder(prepared, name)
    return RecordImages(prepared, name, config.resize)


def check_splits(config: ImagesConfig, splits: Sequence[str] = SPLITS) -> None:
    """Opens splits, so that problems show before the long work on the data begins.

    A test split of the default name may be missing. A test split that exists must be usable.

    Raises:
      UserError: if there are problems. The message lists the problems of all splits.
    """
    raise_all(find_split_problems(config, splits, _find_problems))


def _find_problems(config: ImagesConfig, split: str) -> list[str]:
    """Opens a split, and returns no problems, because opening raises an error for a problem."""
    open_images(config, split)
    return []


def check_builder(builder: Any, split: str) -> None:
    """Checks that a TFDS data set has a split, 8-bit images with 1 or 3 channels, and class labels.

    Raises:
      UserError: if something is missing. The message lists all problems. The error is a `MissingFile` if only
        the split is missing.
    """
    from tensorflow_datasets import features as kinds

    features, name = builder.info.features, builder.info.full_name
    problems = [
        f"The data set {name} has no feature '{feature}' of the type {kind.__name__}. Use a data set for "
        "image classification."
        for feature, kind in (("image", kinds.Image), ("label", kinds.ClassLabel))
        if not isinstance(dict(features.items() if hasattr(features, "items") else ()).get(feature), kind)
    ]
    if not problems and (features["image"].np_dtype != np.uint8 or features["image"].shape[-1] not in (1, 3)):
        problems.append(
            f"Expected images of 8 bits with 1 or 3 channels in {name}, got {features['image']}. Use another "
            "data set."
        )
    raise_all([*problems, *tfds.split_problems(builder, [split])], DataError if problems else MissingFile)


def _open_digits(split: str) -> ArrayImages:
    """Returns a split of the digits. The index modulo 10 is 0 in validation, and 4 or 9 in test."""
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


def _open_arrays(path: str, split: str) -> ArrayImages:
    """Returns a split of an .npz file, whose arrays the help of `ImagesConfig.file` describes."""
    arrays = read_arrays(path, (f"{split}_images", f"{split}_labels"))
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    images = images[..., None] if images.ndim == 3 else images
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


def read_arrays(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns {name: array} for the required `names` of an .npz file, and for `label_names` if it exists.

    Raises:
      UserError: if the file is missing, damaged, no file, or has more than `MAX_ARRAY_BYTES` in these arrays.
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


class ImageBatches:
    """An endless sequence of full batches. `batch(step)` depends only on the step, the seed and the host.

    Each epoch contains each image once, in a new random order. A batch may contain the end of an epoch and
    the start of the next.

    Args:
      source: the images.
      config: batch size over all hosts, and augmentation.
      seed: seed of the order and the augmentation.
      host_index: number of this host, from 0.
      host_count: number of hosts. Host i reads the images i, i + host_count, ... of each batch.
    """

    def __init__(
        self, source: Images, config: ImagesConfig, seed: int, *, host_index: int = 0, host_count: int = 1
    ):
        self._source, self._config, self._seed = source, config, seed
        self._host_index, self._host_count = host_index, host_count
        self.rows = -(-config.batch_size // host_count)  # rows of a batch on this host

    def batch(self, step: int) -> Batch:
        """Returns this host's share of the batch of `step`, counted from 0."""
        mine = slice(self._host_index, None, self._host_count)
        indices = self._batch_indices(step)[mine]
        if not len(indices):  # there are more hosts than images in a batch
            return self.largest_batch()
        images, labels = self._source.take(indices)
        rng = np.random.default_rng((self._seed, AUGMENTATION, step))
        images = augment(images, self._config, rng, self._config.batch_size, mine)
        return assemble(images, labels, self._source.largest, self.rows)

    def describe(self, step: int) -> dict[str, Any]:
        """Returns the epoch of the first image of a batch, and the indices of its images on all hosts."""
        epoch = step * self._config.batch_size // len(self._source)
        return {"epoch": epoch, "images": self._batch_indices(step).tolist()}

    def largest_batch(self) -> Batch:
        """Returns a batch of padding rows. All batches have its shape."""
        images, labels = self._source.take(np.zeros(1, int))
        return assemble(images[:0], labels[:0], self._source.largest, self.rows)

    def _batch_indices(self, step: int) -> np.ndarray:
        """Returns the indices of a step's images on all hosts, int [batch_size]."""
        start = step * self._config.batch_size
        places = np.arange(start, start + self._config.batch_size)
        epochs, within = np.divmod(places, len(self._source))
        size = len(self._source)
        pairs = zip(epochs, within, strict=True)
        return np.array([shuffle_epoch(self._seed, int(epoch), size)[i] for epoch, i in pairs])


@functools.lru_cache(maxsize=4)
def shuffle_epoch(seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns the order of `size` examples in an epoch of a run with this seed, int [size]."""
    return np.random.default_rng((seed, ORDER, epoch)).permutation(size)


def eval_batches(source: Images, batch_size: int) -> Iterator[Batch]:
    """Yields batches of all images in their order. Padding rows fill the last batch."""
    for start in range(0, len(source), batch_size):
        indices = np.arange(start, min(start + batch_size, len(source)))
        images, labels = source.take(indices)
        yield assemble(images, labels, source.largest, batch_size)


def assemble(images: np.ndarray, labels: np.ndarray, largest: float, rows: int) -> Batch:
    """Builds a batch.

    Args:
      images: pixels from 0 to `largest`, [n, height, width, C].
      labels: integers [n].
      largest: value of the brightest pixel.
      rows: rows of the batch, at least n. The others are padding rows.
    """
    count = len(images)
    batch = {
        "images": np.zeros((rows, *images.shape[1:]), np.float32),
        "labels": np.zeros(rows, np.int32),
        "weights": np.zeros(rows, np.float32),
    }
    batch["images"][:count] = images.astype(np.float32) * np.float32(2 / largest) - 1
    batch["labels"][:count] = labels
    batch["weights"][:count] = 1
    return batch


def augment(
    images: np.ndarray, config: ImagesConfig, rng: np.random.Generator, count: int, mine: slice
) -> np.ndarray:
    """Shifts and mirrors images at random.

    Args:
      images: images of this host in a batch, [n, height, width, C].
      config: the maximum shift, and whether to mirror.
      rng: random numbers of the step, equal on all hosts.
      count: images of the batch on all hosts. Every host draws the numbers of all of them, so that the
        augmentation of an image does not depend on the number of hosts.
      mine: the images of this host among all images of the batch.

    Returns:
      The changed images, [n, height, width, C].
    """
    shifts = rng.integers(-config.max_shift, config.max_shift, (count, 2), endpoint=True)[mine]
    flipped = rng.random(count)[mine] < 0.5
    if config.max_shift:
        images = shift(images, shifts)
    if config.flip:
        images = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    return images


def shift(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Moves images [n, height, width, C] down and right by shifts, int [n, 2]. Zeros fill the margin."""
    _, height, width, _ = images.shape
    most = int(np.abs(shifts).max(initial=0))
    padded = np.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    rows = most - shifts[:, :1] + np.arange(height)  # [n, height]
    columns = most - shifts[:, 1:] + np.arange(width)
    index = np.arange(len(images))[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]
