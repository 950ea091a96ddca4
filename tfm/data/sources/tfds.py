"""Texts of TFDS data sets in array_record files, read without TensorFlow."""

import contextlib
import functools
import hashlib
import io
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.data_errors import MissingFile, collect, raise_all
from tfm.data.source import CHUNK_ROWS, Source
from tfm.data.sources.columns import label_text, name_class
from tfm.errors import UserError, first_line

UNKNOWN_SIZE = 1 << 40  # examples of a split before its download
BAD_SPLIT = (ValueError, KeyError, AssertionError, NotImplementedError)  # what TFDS raises for its name
DAMAGE = (RuntimeError, ValueError, KeyError, IndexError, AssertionError)


def open_records(
    name: str, directory: str, split: str, features: Sequence[str], labels: Sequence[str] = ()
) -> Source:
    """Returns texts of a split of a data set. Downloads the data set if it does not exist yet.

    For `labels`, see `feature_problems`.

    Raises:
      UserError: if there is no such data set, split or feature, or it has no examples.
    """
    return read_records(prepare(find_builder(name, directory), name, directory), split, features, labels)


def read_records(builder: Any, split: str, features: Sequence[str], labels: Sequence[str] = ()) -> Source:
    """Returns texts of a split of a prepared TFDS builder.

    Parses only the given features, whose keys in a record are their names. TFDS takes three times as long
    because it parses all features. For `labels`, see `feature_problems`.

    Raises:
      UserError: if there is no such split or feature, it has no examples, or the files are damaged.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2

    raise_all(feature_problems(builder, features, labels))
    raise_all(split_problems(builder, [split]), MissingFile)
    kinds = [builder.info.features[feature] for feature in features]
    to_texts = [_decode_text if _is_text(kind) else _make_label_reader(kind) for kind in kinds]
    name, folder = builder.info.full_name, builder.data_dir
    with reading(folder):
        method = tfds.decode.DeserializeMethod.RAW_BYTES
        records = builder.as_data_source(split=split, deserialize_method=method)
        size = len(records)

    def read():
        for first in range(0, size, CHUNK_ROWS):
            numbers = range(first, min(first + CHUNK_ROWS, size))
            with reading(folder):
                # A file that was cut short gives None.
                contents = [record or b"" for record in records.__getitems__(list(numbers))]
                examples = [tf_example_pb2.Example.FromString(content) for content in contents]
            for number, example in zip(numbers, examples, strict=True):
                values = (example.features.feature[feature] for feature in features)
                yield tuple(decode(number, *pair) for pair in zip(to_texts, values, strict=True))

    def decode(number, to_text, value):
        values = value.bytes_list.value or value.int64_list.value or value.float_list.value
        if len(values) != 1:
            raise UserError(describe_damage(folder, f"example {number} has no text"))
        try:
            return to_text(values[0], name)
        except UnicodeDecodeError:
            raise UserError(f"Example {number} of {name} is not UTF-8: use another data set.") from None

    return Source(read, lambda: fingerprint_files(builder, split, features), lambda: size)


def _decode_text(value: bytes, name: str) -> str:
    return value.decode("utf-8")


def _make_label_reader(kind: Any) -> Callable[[Any, str], str]:
    """Returns a function from the number of a label and the name of the data set to the label's text."""
    import tensorflow_datasets as tfds

    if isinstance(kind, tfds.features.ClassLabel):
        names = list(kind.names)
        return lambda value, name: name_class(value, names, name)
    number = {"b": bool, "f": float}.get(np.dtype(kind.np_dtype).kind, int)
    return lambda value, name: label_text(number(value))


def fingerprint_files(builder: Any, split: str, features: Sequence[str]) -> str:
    """Returns a text that identifies the content of a split, and the features that are read from it."""
    digest, infos = hashlib.sha256(), builder.info.splits
    for name, _ in find_parts(split, infos, builder.info.full_name):
        for path in infos[name].filepaths:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"tfds-{builder.info.full_name}-{split}-{'-'.join(features)}-{digest.hexdigest()}"


@contextlib.contextmanager
def reading(folder: str) -> Iterator[None]:
    """Converts the errors that TFDS and array_record raise for damaged files (`DAMAGE`) into a UserError.

    The block should only read and parse, because other errors of these types are converted, too.
    """
    from google.protobuf.message import DecodeError

    try:
        yield
    except (*DAMAGE, DecodeError) as error:
        raise UserError(describe_damage(folder, first_line(error))) from None


def describe_damage(folder: str, reason: str) -> str:
    """Returns the error message for damaged files of a data set."""
    return f"The files in {folder} are damaged ({reason}): delete that folder, and they are prepared again."


def find_builder(name: str, directory: str) -> Any:
    """Returns the builder of a TFDS data set, possibly before its download.

    Raises:
      UserError: if TFDS has no such data set, or its files are damaged or have a different format.
    """
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate
    from google.protobuf import json_format

    tfds.features.FeatureConnector.cls_from_name = find_imported_feature
    not_found = tfds.core.registered.DatasetNotFoundError
    try:
        return tfds.builder(name, file_format="array_record", data_dir=directory or None)
    except (json_format.Error, AssertionError, ValueError, not_found) as error:
        raise UserError(
            f"TFDS cannot open the data set '{name}' in {directory or 'its own folder'} "
            f"({first_line(error)}): check data.name. If its files are damaged, delete their folder. If they "
            "are in another format than array_record, set data.directory to another folder."
        ) from None


def find_imported_feature(name: str) -> Any:
    """Returns the class of a feature, replacing the function of TFDS that imports the module of the class.

    A features.json may come from somebody else, and importing the module that it names would run its code.

    Raises:
      ValueError: if the class is not part of TFDS.
    """
    import tensorflow_datasets as tfds

    registered = tfds.features.FeatureConnector._registered_features
    if name not in registered:
        raise ValueError(f"its features.json names the class {name}, which is not part of TFDS")
    return registered[name]


def prepare(builder: Any, name: str, directory: str) -> Any:
    """Returns the builder with its files on disk. Downloads and writes missing files.

    Raises:
      UserError: if the files cannot be written, or their description is missing.
    """
    from tfm.data.sources.tfds_download import download

    if not builder.data_path.exists():
        download(name, type(builder).__module__, str(builder.data_dir_root), builder.data_dir)
        builder = find_builder(name, directory)
    if not builder.info.splits:
        raise UserError(describe_damage(builder.data_dir, "it has no dataset_info.json, or no splits"))
    return builder


def check_and_prepare(
    name: str, directory: str, splits: Sequence[str], features: Sequence[str], labels: Sequence[str] = ()
) -> None:
    """Checks splits and text features of a data set, as far as they are known, and then downloads it.

    For `labels`, see `feature_problems`.

    Raises:
      UserError: if there are problems, or the download fails.
    """
    builder = find_builder(name, directory)
    raise_all(feature_problems(builder, features, labels) + split_problems(builder, filter(None, splits)))
    prepare(builder, name, directory)


def feature_problems(builder: Any, features: Sequence[str], labels: Sequence[str] = ()) -> list[str]:
    """Returns an error message for each feature that the data set lacks, or that is not text.

    Args:
      builder: the builder of a data set.
      features: names of features.
      labels: names of the features that contain labels. A label may also be numbers, booleans or classes.
    """
    known = named_features(builder)
    problems: list[str] = []
    for name in features:
        if name not in known:
            problems.append(
                f"The data set {builder.info.full_name} has no feature '{name}'; "
                f"it has {', '.join(known) or 'none with a name'}."
            )
        elif not _is_text(known[name]) and not (name in labels and _is_label(known[name])):
            expected = "text, a number, a boolean or a class" if name in labels else "text"
            problems.append(
                f"The feature '{name}' of {builder.info.full_name} is not {expected}: {known[name]}."
            )
    return problems


def named_features(builder: Any) -> dict[str, Any]:
    """Returns {name: feature} of a data set, or {} if its examples are single features without a name."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    return dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}


def _is_text(kind: Any) -> bool:
    """Returns whether a feature of TFDS is a text."""
    return kind.shape == () and kind.np_dtype in (object, str)


def _is_label(kind: Any) -> bool:
    """Returns whether a feature of TFDS is a number, a boolean or a class."""
    return kind.shape == () and np.dtype(kind.np_dtype).kind in "iufb"


def split_problems(builder: Any, names: Iterable[str]) -> list[str]:
    """Returns an error message for each split that is missing or empty, as far as this is known."""
    infos = builder.info.splits or make_infos(dict.fromkeys(_predict_splits(builder), UNKNOWN_SIZE))
    problems: list[str] = []
    for name in names if infos else ():
        with collect(problems):
            parts = find_parts(name, infos, f"The data set {builder.info.full_name}")
            if not any(range(infos[split].num_examples)[part] for split, part in parts):
                problems.append(f"The split '{name}' of {builder.info.full_name} is empty.")
    return problems


def make_infos(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Returns TFDS's descriptions of splits, {name: number of examples}."""
    import tensorflow_datasets as tfds  # takes half a second

    return {
        name: tfds.core.SplitInfo(name=name, shard_lengths=[size], num_bytes=0, filename_template=None)
        for name, size in sizes.items()
    }


def find_parts(name: str, infos: Mapping[str, Any], shown_as: str) -> list[tuple[str, slice]]:
    """Returns [(split, slice of its examples)] for a name such as "train[:90%]+test".

    Args:
      name: the name.
      infos: TFDS's descriptions of the splits.
      shown_as: what error messages call the data set.

    Raises:
      UserError: if there is no such split.
    """
    import tensorflow_datasets as tfds

    try:
        parts = tfds.core.ReadInstruction.from_spec(name).to_absolute(infos)
    except BAD_SPLIT as error:
        reason = str(error).strip().split("\n")[-1]
        raise UserError(f"{shown_as} has no split '{name}'; it has {', '.join(infos)} ({reason}).") from None
    return [(part.splitname, slice(part.from_, part.to)) for part in parts]


def _predict_splits(builder: Any) -> list[str]:
    """Returns the splits of a data set before its download, or no splits if its code needs the files."""
    import tree
    from etils import epath

    missing = epath.Path("/nonexistent")
    download = functools.partial(tree.map_structure, lambda url: missing)
    manager = types.SimpleNamespace(
        download=download,
        extract=download,
        download_and_extract=download,
        iter_archive=lambda *_: iter(()),
        download_dir=missing,
        manual_dir=missing,
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            generators = builder._split_generators(manager)
        names = generators if isinstance(generators, dict) else [generator.name for generator in generators]
        return [str(name) for name in names]
    except Exception:  # code of any data set may read missing files
        return []
