"""Texts of the columns of Arrow tables, and Parquet files, which are read as such."""

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow import types

from tfm.data.columns import Path, find_path, follow
from tfm.data.text_files import check_unchanged
from tfm.data.text_source import TextSource, split_indices
from tfm.errors import UserError

CHUNK = 1 << 24


class ParquetTable(TextSource):
    """The rows of a Parquet file; one of its row groups is held in memory.

    Args:
      path: of the file.
      shown_as: what error messages call it.
      columns: of the texts of a row.
      clean: applied to each text.

    Raises:
      UserError: the file is damaged, has no rows, or not the columns as text.
    """

    def __init__(self, path: str, shown_as: str, columns: Sequence[str], clean: Callable[[str], str]):
        self._path, self._shown_as, self._columns, self._clean = path, shown_as, tuple(columns), clean
        self._state = os.stat(path)
        with _reading(shown_as):
            self._file = pyarrow.parquet.ParquetFile(path)
            schema, metadata = self._file.schema_arrow, self._file.metadata
        self._paths = find_columns(schema, columns, shown_as)
        sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        self._ends = list(itertools.accumulate(sizes))
        if not metadata.num_rows:
            raise UserError(f"{shown_as} has no rows: expected a text in each column.")
        self._group = functools.lru_cache(maxsize=1)(self._read_group)

    def __len__(self):
        return self._ends[-1]

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The rows of indices that rise."""
        check_unchanged(self._path, self._state, self._shown_as)
        rows = []
        for group, chosen in split_indices(indices, self._ends):
            found = read_texts(self._group(group), self._paths, chosen, self._shown_as)
            rows += [tuple(map(self._clean, row)) for row in found]
        check_unchanged(self._path, self._state, self._shown_as)
        return rows

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content and of the columns."""
        digest = hashlib.sha256(repr(self._columns).encode())
        with open(self._path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return f"parquet-{digest.hexdigest()}"

    def _read_group(self, group):
        with _reading(self._shown_as):
            return self._file.read_row_group(group, columns=[".".join(path) for path in self._paths])


def find_columns(schema: pyarrow.Schema, columns: Sequence[str], shown_as: str) -> list[Path]:
    """The paths of columns of text; see `tfm.data.columns.find_path`.

    Raises:
      UserError: there is no such column, or it is not text.
    """
    tree = _describe(schema)
    try:
        paths = [find_path(column, tree) for column in columns]
    except ValueError as error:
        raise UserError(f"The columns of {shown_as} do not fit: {error}.") from None
    for path in paths:
        found = follow(tree, path)
        if isinstance(found, dict) or not _is_text(found):
            kind = "a struct" if isinstance(found, dict) else found
            raise UserError(f"The column {'.'.join(path)!r} of {shown_as} is not text, but {kind}.")
    return paths


def read_texts(
    table: pyarrow.Table, paths: Sequence[Path], chosen: range, shown_as: str
) -> list[tuple[str, ...]]:
    """Some rows of a table; what is missing is "".

    Raises:
      UserError: a text is not UTF-8.
    """
    part = table.slice(chosen.start, chosen.stop - chosen.start)
    columns = []
    for path in paths:
        column = part.column(path[0])
        if len(path) > 1:
            column = pyarrow.compute.struct_field(column, list(path[1:]))
        try:
            columns.append([text or "" for text in column.to_pylist()[:: chosen.step]])
        except UnicodeDecodeError as error:
            raise UserError(
                f"The column {'.'.join(path)!r} of {shown_as} is not UTF-8 ({error.reason}): write it as "
                "UTF-8."
            ) from None
    return list(zip(*columns, strict=True))


def _describe(fields):
    """Column -> its type, or the same of the columns within it."""
    return {
        field.name: _describe(field.type) if types.is_struct(field.type) else field.type for field in fields
    }


def _is_text(kind):
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


@contextlib.contextmanager
def _reading(shown_as: str) -> Iterator[None]:
    """Within, what PyArrow raises for a damaged file becomes a UserError."""
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{shown_as} is no Parquet file, or it is damaged ({reason}): write or fetch it again."
        ) from None
