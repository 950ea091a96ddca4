"""Texts of the columns of Arrow data: Parquet files, and the tables of Hugging Face's `datasets`."""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow import types

from tfm.data.data_errors import damage_error
from tfm.data.source import CHUNK_ROWS, Row, Source
from tfm.data.sources.columns import ListColumns, Path, find_path, follow, label_text, name_class
from tfm.data.sources.text_files import BLOCK_BYTES, TextFile, check_unpacked, compression
from tfm.errors import UserError

METADATA_KEY = b"huggingface"  # in a schema: the features that `datasets` has written


class TextColumn(NamedTuple):
    """A column that is read as text.

    Attributes:
      path: the keys that lead to the column, see `tfm.data.sources.columns.find_path`.
      to_text: converts a value of the column.
    """

    path: Path
    to_text: Callable[[Any], str]


def open_parquet(
    path: str,
    columns: Sequence[str],
    clean: Callable[[str], str],
    labels: Sequence[str] = (),
    lists: ListColumns = MappingProxyType({}),
) -> Source:
    """Returns the texts of a Parquet file. Some rows are read at a time.

    Reading the source raises a UserError if the file is damaged, has no rows, or unpacks to far more bytes
    than it has, or if `find_text_columns` or `read_texts` raises it.

    Args:
      path: the path of the file.
      columns: the columns of the texts of a row.
      clean: applied to each text.
      labels, lists: see `find_text_columns`.
    """
    file = TextFile(path)

    @contextlib.contextmanager
    def open_reader(dictionaries: Sequence[str] = ()) -> Iterator[pyarrow.parquet.ParquetFile]:
        try:
            with file.open() as content:
                # A compressed stream is slow to read from its end, where Parquet keeps its index.
                source = pyarrow.BufferReader(content.read()) if compression(path) else content
                reader = pyarrow.parquet.ParquetFile(source, read_dictionary=[*dictionaries])
                if not reader.metadata.num_rows:
                    raise UserError(f"{path} has no rows: expected a text in each column.")
                yield reader
        except (pyarrow.ArrowException, OSError) as error:
            problem = f"{path} is no Parquet file, or it is damaged"
            raise damage_error(error, problem, "write or fetch it again") from None

    def read():
        with open_reader() as reader:
            found = find_text_columns(reader.schema_arrow, columns, path, labels, lists)
            schema = reader.metadata.schema
            leaves = {schema.column(index).path for index in range(len(schema))}
        names = [".".join(column.path) for column in found]
        # As dictionaries, so that a text that a small file repeats in each row is once in memory. Lists of
        # texts cannot be read as dictionaries.
        with open_reader([name for name in names if name in leaves]) as reader:
            unpacked = 0
            for batch in reader.iter_batches(CHUNK_ROWS, columns=names):
                unpacked += sum(_count_bytes(_find_column(batch, column.path)) for column in found)
                check_unpacked(path, unpacked, os.path.getsize(path))
                yield from read_texts(batch, found, clean, path)

    def count():
        with open_reader() as reader:
            return reader.metadata.num_rows

    def compute_fingerprint():
        digest = hashlib.sha256(repr(tuple(columns)).encode())
        with file.open() as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
        return f"parquet-{digest.hexdigest()}"

    return Source(read, compute_fingerprint, count, locate=lambda row: f"row {row + 1:,} of {path}")


def find_text_columns(
    schema: pyarrow.Schema,
    columns: Sequence[str],
    name: str,
    labels: Sequence[str] = (),
    lists: ListColumns = MappingProxyType({}),
) -> list[TextColumn]:
    """Returns columns of text, and columns of labels.

    Labels may also be numbers or booleans. The integers of a ClassLabel of `datasets` become the names of
    the classes.

    Args:
      schema: the schema of the data.
      columns: names of columns.
      name: what error messages call the data.
      labels: names of the columns that contain labels.
      lists: names of the columns that may contain lists, with the function that joins the texts of a list.

    Raises:
      UserError: if a column is missing, or is not text.
    """
    try:
        tree = _describe(schema)
        paths = [find_path(column, tree) for column in columns]
    except ValueError as error:
        raise UserError(f"The columns of {name} do not fit: {error}.") from None
    found = []
    for column, path in zip(columns, paths, strict=True):
        kind, is_label = follow(tree, path), column in labels
        is_list = column in lists and not isinstance(kind, dict) and _is_list(kind)
        element = kind.value_type if is_list else kind
        is_number = not isinstance(element, dict) and _is_number_or_boolean(element)
        if isinstance(element, dict) or not (_is_text(element) or (is_label and is_number)):
            shown = "a struct" if isinstance(kind, dict) else kind
            expected = "text, numbers or booleans" if is_label else "text"
            expected += f", or lists of {'them' if is_label else 'words'}" if column in lists else ""
            raise UserError(f"The column {'.'.join(path)!r} of {name} is not {expected}, but {shown}.")
        to_text = _make_number_reader(schema, path, name) if is_number else _keep_text
        found.append(
            TextColumn(path, functools.partial(_join, lists[column], to_text) if is_list else to_text)
        )
    return found


def read_texts(
    table: pyarrow.Table | pyarrow.RecordBatch,
    columns: Sequence[TextColumn],
    clean: Callable[[str], str],
    name: str,
) -> Iterator[Row]:
    """Returns an iterator over the texts of the rows of a table. A missing text is "".

    Raises:
      UserError: if a text is not UTF-8, or a class is unknown.
    """
    texts = []
    for path, to_text in columns:
        column = _find_column(table, path)
        if types.is_dictionary(column.type):
            column = pyarrow.compute.cast(column, column.type.value_type)
        try:
            texts.append([clean(to_text(value)) for value in column.to_pylist()])
        except UnicodeDecodeError as error:
            raise UserError(
                f"The column {'.'.join(path)!r} of {name} is not UTF-8 ({error.reason}): write it as UTF-8."
            ) from None
    return zip(*texts, strict=True)


def _find_column(table: pyarrow.Table | pyarrow.RecordBatch, path: Path) -> Any:
    """Returns the values of a column."""
    column = table.column(path[0])
    return pyarrow.compute.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _count_bytes(column: pyarrow.Array) -> int:
    """Returns the size of the values of a column, also if a dictionary has each of them once."""
    if not (types.is_dictionary(column.type) and _is_text(column.type)):
        return int(column.nbytes)
    lengths = pyarrow.compute.binary_length(column.dictionary).take(column.indices)
    return int(pyarrow.compute.sum(lengths).as_py() or 0)


def _keep_text(value: str | None) -> str:
    return value or ""


def _join(
    join: Callable[[Iterable[str]], str], to_text: Callable[[Any], str], values: Sequence[Any] | None
) -> str:
    """Returns the texts of the values of a list as one text."""
    return join(map(to_text, values or ()))


def _make_number_reader(schema: pyarrow.Schema, path: Path, name: str) -> Callable[[Any], str]:
    """Returns a function from the number or the boolean of a label to its text."""
    names = _find_class_names(schema, path)
    if names:
        return functools.partial(name_class, names=names, shown_as=name)
    return lambda value: "" if value is None else label_text(value)


def _find_class_names(schema: pyarrow.Schema, path: Path) -> list[str]:
    """Returns the names of a ClassLabel of `datasets`, or [] if the column is no ClassLabel."""
    try:
        feature = json.loads((schema.metadata or {})[METADATA_KEY])["info"]["features"]
        for key in path:
            feature = feature[key]
        if isinstance(feature, list):
            (feature,) = feature  # older versions write the feature of a list in this form
        feature = feature.get("feature", feature)  # of the elements of a list
        is_class = feature["_type"] == "ClassLabel"
        names = feature["names"] if is_class else []
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # other writers may use this key, too
        return []
    is_usable = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_usable else []


def _describe(fields: Iterable[pyarrow.Field]) -> dict[str, Any]:
    """Returns {column: its type, or the same of the columns within it}.

    Raises:
      ValueError: if two columns have one name. PyArrow cannot select either of them.
    """
    tree: dict[str, Any] = {}
    for field in fields:
        if field.name in tree:
            raise ValueError(f"several columns have the name {field.name!r}")
        tree[field.name] = _describe(field.type) if types.is_struct(field.type) else field.type
    return tree


def _is_text(kind: pyarrow.DataType) -> bool:
    """Returns whether a type is text, dictionary-encoded or not."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_number_or_boolean(kind: pyarrow.DataType) -> bool:
    """Returns whether a type is a number or a boolean, dictionary-encoded or not."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_list(kind: pyarrow.DataType) -> bool:
    """Returns whether a type is a list."""
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
