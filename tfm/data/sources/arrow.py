"""Texts of the columns of Arrow data: Parquet files, and the tables of Hugging Face's `datasets`."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow import types

from tfm.data.data_errors import damage_error
from tfm.data.source import CHUNK_ROWS, Row, Source
from tfm.data.sources.columns import Path, find_path, follow
from tfm.data.sources.text_files import BLOCK_BYTES, TextFile, check_unpacked, compression
from tfm.errors import UserError


def open_parquet(path: str, columns: Sequence[str], clean: Callable[[str], str]) -> Source:
    """Returns the texts of a Parquet file. Some rows are read at a time.

    Args:
      path: the path of the file.
      columns: the columns of the texts of a row.
      clean: applied to each text.
    """
    file = TextFile(path)

    @contextlib.contextmanager
    def open_reader():
        try:
            with file.open() as content:
                # A compressed stream is slow to read from its end, where Parquet keeps its index.
                source = pyarrow.BufferReader(content.read()) if compression(path) else content
                reader = pyarrow.parquet.ParquetFile(source)
                if not reader.metadata.num_rows:
                    raise UserError(f"{path} has no rows: expected a text in each column.")
                yield reader
        except (pyarrow.ArrowException, OSError) as error:
            problem = f"{path} is no Parquet file, or it is damaged"
            raise damage_error(error, problem, "write or fetch it again") from None

    def read():
        with open_reader() as reader:
            paths = find_text_columns(reader.schema_arrow, columns, path)
            names = [".".join(path) for path in paths]
            unpacked = 0
            for batch in reader.iter_batches(CHUNK_ROWS, columns=names):
                unpacked += batch.nbytes
                check_unpacked(path, unpacked, os.path.getsize(path))
                yield from read_texts(batch, paths, clean, path)

    def count():
        with open_reader() as reader:
            return reader.metadata.num_rows

    def compute_fingerprint():
        digest = hashlib.sha256(repr(tuple(columns)).encode())
        with file.open() as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
        return f"parquet-{digest.hexdigest()}"

    return Source(read, compute_fingerprint, count)


def find_text_columns(schema: pyarrow.Schema, columns: Sequence[str], name: str) -> list[Path]:
    """Returns the paths of columns of text; see `tfm.data.sources.columns.find_path`.

    Args:
      schema: the schema of the data.
      columns: names of columns.
      name: what error messages call the data.

    Raises:
      UserError: if a column is missing, or is not text.
    """
    tree = _describe(schema)
    try:
        paths = [find_path(column, tree) for column in columns]
    except ValueError as error:
        raise UserError(f"The columns of {name} do not fit: {error}.") from None
    for path in paths:
        kind = follow(tree, path)
        if isinstance(kind, dict) or not _is_text(kind):
            shown = "a struct" if isinstance(kind, dict) else kind
            raise UserError(f"The column {'.'.join(path)!r} of {name} is not text, but {shown}.")
    return paths


def read_texts(
    table: pyarrow.Table | pyarrow.RecordBatch, paths: Sequence[Path], clean: Callable[[str], str], name: str
) -> Iterator[Row]:
    """Returns an iterator over the texts of the rows of a table. A missing text is "".

    Raises:
      UserError: if a text is not UTF-8.
    """
    columns = []
    for path in paths:
        column = table.column(path[0])
        if len(path) > 1:
            column = pyarrow.compute.struct_field(column, list(path[1:]))
        try:
            columns.append([clean(text or "") for text in column.to_pylist()])
        except UnicodeDecodeError as error:
            raise UserError(
                f"The column {'.'.join(path)!r} of {name} is not UTF-8 ({error.reason}): write it as UTF-8."
            ) from None
    return zip(*columns, strict=True)


def _describe(fields: Iterable[pyarrow.Field]) -> dict[str, Any]:
    """Returns {column: its type, or the same of the columns within it}."""
    return {
        field.name: _describe(field.type) if types.is_struct(field.type) else field.type for field in fields
    }


def _is_text(kind: pyarrow.DataType) -> bool:
    """Returns whether a type is text, dictionary-encoded or not."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
