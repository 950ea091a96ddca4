"""Texts of TFDS data sets in array_record files, read without TensorFlow."""

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfm.data.data_errors import MissingFile, raise_all
from tfm.data.source import CHUNK_ROWS, Source
from tfm.errors import UserError

MANY = 1 << 40  # examples of a split whose size is not known yet
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
    """Within, what TFDS and array_record raise for damaged files becomes a UserError."""
    from google.protobuf.message import DecodeError

    try:
        yield
    except (*DAMAGE, DecodeError) as error:
        raise UserError(describe_damage(folder, str(error).split("\n")[0])) from None


def describe_damage(folder: str, reason: str) -> str:
    """The error message for damaged files of a data set."""
    return f"The files in {folder} are damaged ({reason}): delete that folder, and they are prepared again."


def find_builder(name: str, directory: str) -> Any:
    """Returns the builder of a TFDS data set, possibly before its download.

    Raises:
      UserError: TFDS has no such data set, or its files are damaged or of another format.
    """
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    options = {"data_dir": directory or None}
    try:
        with opening(name, directory or "the folder of TFDS"):
            return tfds.builder(name, file_format="array_record", **options)
    except UserError:
        raise
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        if "File format is already set" in str(error):
            raise UserError(
                f"The data set '{name}' was prepared in {tfds.builder(name, **options).data_dir} in another "
                "format than array_record: set data.directory to another folder."
            ) from None
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"TFDS has no data set '{name}' ({reason}); check data.name.") from None


@contextlib.contextmanager
def opening(name: str, folder: str) -> Iterator[None]:
    """Within, what TFDS raises for the damaged description of a data set becomes a UserError."""
    from google.protobuf import json_format

    try:
        yield
    except (json_format.Error, AssertionError) as error:
        text = " ".join(str(error).split())
        if "cannot be loaded at version" in text:
            raise UserError(f"TFDS has no data set '{name}' ({text}); check data.name.") from None
        raise UserError(
            f"The data set '{name}' in {folder} is damaged ({text}): delete its folder, and it is prepared "
            "again."
        ) from None


def prepare(builder: Any, name: str, directory: str) -> Any:
    """Returns the builder with its files on disk. Downloads and writes missing files.

    Raises:
      UserError: they could not be.
    """
    from tfm.data.sources.tfds_download import download

    if not builder.data_path.exists():
        download(name, type(builder).__module__, str(builder.data_dir_root), builder.data_dir)
        builder = find_builder(name, directory)
    return require_splits(builder)


def require_splits(builder: Any) -> Any:
    """The builder of a prepared data set.

    Raises:
      UserError: its description is missing.
    """
    if not builder.info.splits:
        raise UserError(describe_damage(builder.data_dir, "it has no dataset_info.json, or no splits"))
    return builder


def feature_problems(builder: Any, features: Sequence[str]) -> list[str]:
    """An error message for each of these features that the data set has not, or not as text."""
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
    """An error message for each of these splits that the data set has not, as far as is known."""
    import tensorflow_datasets as tfds

    infos = builder.info.splits or {
        name: tfds.core.SplitInfo(name=name, shard_lengths=[MANY], num_bytes=0, filename_template=None)
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
        if not any(_count(part, infos) > 0 for part in parts):
            problems.append(f"The split '{name}' of {builder.info.full_name} is empty.")
    return problems


def _count(part, infos):
    """Examples of a part of a split, whose ends are None where they are the split's."""
    last = infos[part.splitname].num_examples if part.to is None else part.to
    return last - (part.from_ or 0)


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
        """A path for each URL of a nested structure."""
        if isinstance(urls, dict):
            return {name: self.download(url) for name, url in urls.items()}
        if isinstance(urls, list | tuple):
            return [self.download(url) for url in urls]
        return self._file

    extract = download_and_extract = download

    def iter_archive(self, *_):
        """No member."""
        return iter(())
