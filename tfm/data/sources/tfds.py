"""Texts of TFDS data sets in array_record files, read without TensorFlow."""

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfm.data.data_errors import MissingFile, raise_all
from tfm.data.source import CHUNK_ROWS, Source
from tfm.errors import UserError

UNKNOWN_SIZE = 1 << 40  # examples of a split before its download
BAD_SPLIT = (ValueError, KeyError, AssertionError, NotImplementedError)  # what TFDS raises for its name
DAMAGE = (RuntimeError, ValueError, KeyError, IndexError, AssertionError)


def open_records(name: str, directory: str, split: str, features: Sequence[str]) -> Source:
    """Returns texts of a split of a data set. Downloads the data set if it does not exist yet.

    Raises:
      UserError: if there is no such data set, split or feature, or it has no examples.
    """
    return read_records(prepare(find_builder(name, directory), name, directory), split, features)


def read_records(builder: Any, split: str, features: Sequence[str]) -> Source:
    """Returns texts of a split of a prepared TFDS builder.

    Only the features are parsed, by the key that a feature without parts has in a record. TFDS takes three
    times as long because it parses all features.

    Raises:
      UserError: if there is no such split or feature, it has no examples, or the files are damaged.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2

    raise_all(feature_problems(builder, features))
    raise_all(split_problems(builder, [split]), MissingFile)
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
                values = (example.features.feature[feature].bytes_list.value for feature in features)
                yield tuple(decode(number, value) for value in values)

    def decode(number, values):
        if len(values) != 1:
            raise UserError(describe_damage(folder, f"example {number} has no text"))
        try:
            return values[0].decode("utf-8").strip()
        except UnicodeDecodeError:
            raise UserError(f"Example {number} of {name} is not UTF-8: use another data set.") from None

    return Source(read, lambda: f"tfds-{name}-{split}-{size}-{'-'.join(features)}", lambda: size)


@contextlib.contextmanager
def reading(folder: str) -> Iterator[None]:
    """Converts the errors of TFDS and array_record for damaged files into a UserError."""
    from google.protobuf.message import DecodeError

    try:
        yield
    except (*DAMAGE, DecodeError) as error:
        raise UserError(describe_damage(folder, str(error).split("\n")[0])) from None


def describe_damage(folder: str, reason: str) -> str:
    """Returns the error message for damaged files of a data set."""
    return f"The files in {folder} are damaged ({reason}): delete that folder, and they are prepared again."


def find_builder(name: str, directory: str) -> Any:
    """Returns the builder of a TFDS data set, possibly before its download.

    Raises:
      UserError: if TFDS has no such data set, or its files are damaged or have another format.
    """
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate
    from google.protobuf import json_format

    options = {"data_dir": directory or None}
    try:
        return tfds.builder(name, file_format="array_record", **options)
    except (
        json_format.Error,
        AssertionError,
        tfds.core.registered.DatasetNotFoundError,
        ValueError,
    ) as error:
        text = " ".join(str(error).split())
        if "File format is already set" in text:
            raise UserError(
                f"The data set '{name}' was prepared in {tfds.builder(name, **options).data_dir} in another "
                "format than array_record: set data.directory to another folder."
            ) from None
        if isinstance(error, json_format.Error) or (
            isinstance(error, AssertionError) and "cannot be loaded at version" not in text
        ):
            raise UserError(
                f"The data set '{name}' in {directory or 'the folder of TFDS'} is damaged ({text}): delete "
                "its folder, and it is prepared again."
            ) from None
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"TFDS has no data set '{name}' ({reason}); check data.name.") from None


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


def feature_problems(builder: Any, features: Sequence[str]) -> list[str]:
    """Returns an error message for each feature that the data set lacks, or that is not text."""
    known = dict(builder.info.features.items()) if hasattr(builder.info.features, "items") else {}
    problems: list[str] = []
    for name in features:
        if name not in known:
            problems.append(
                f"The data set {builder.info.full_name} has no feature '{name}'; "
                f"it has {', '.join(known) or 'none with a name'}."
            )
        elif known[name].shape != () or known[name].np_dtype not in (object, str):
            problems.append(f"The feature '{name}' of {builder.info.full_name} is not text: {known[name]}.")
    return problems


def split_problems(builder: Any, names: Iterable[str]) -> list[str]:
    """Returns an error message for each split that is missing or empty, as far as this is known."""
    import tensorflow_datasets as tfds

    infos = builder.info.splits or {
        name: tfds.core.SplitInfo(
            name=name, shard_lengths=[UNKNOWN_SIZE], num_bytes=0, filename_template=None
        )
        for name in split_names(builder)
    }
    problems: list[str] = []
    for name in names if infos else ():
        try:
            parts = tfds.core.ReadInstruction.from_spec(name).to_absolute(infos)
        except BAD_SPLIT as error:
            reason = str(error).strip().split("\n")[-1]
            problems.append(
                f"The data set {builder.info.full_name} has no split '{name}'; "
                f"it has {', '.join(infos)} ({reason})."
            )
            continue
        ends = ((part, infos[part.splitname].num_examples if part.to is None else part.to) for part in parts)
        if not any(end > (part.from_ or 0) for part, end in ends):
            problems.append(f"The split '{name}' of {builder.info.full_name} is empty.")
    return problems


def split_names(builder: Any) -> list[str]:
    """Returns the splits of a data set, also before its download; none if its code needs the files."""
    if builder.info.splits:
        return list(builder.info.splits)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            generators = builder._split_generators(_FakeDownloadManager())
        names = generators if isinstance(generators, dict) else [each.name for each in generators]
        return [str(name) for name in names]
    except Exception:  # code of any data set may read missing files
        return []


class _FakeDownloadManager:
    """A download manager for TFDS that returns paths of missing files."""

    def __init__(self):
        from etils import epath

        self.download_dir = self.manual_dir = self._file = epath.Path("/nonexistent")

    def download(self, urls):
        """Returns a path for each URL of a nested structure."""
        if isinstance(urls, dict):
            return {name: self.download(url) for name, url in urls.items()}
        if isinstance(urls, list | tuple):
            return [self.download(url) for url in urls]
        return self._file

    extract = download_and_extract = download

    def iter_archive(self, *_):
        """Returns no members."""
        return iter(())
