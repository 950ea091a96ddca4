"""Texts of the columns of tables: TSV, CSV, JSON Lines and Parquet files, read at random.

A TSV file has rows as lines and tabs between columns, nothing is quoted. A CSV file follows RFC 4180: commas,
a field in double quotes may have commas and line ends, a quote in it is doubled. Their first line names the
columns, unless columns are numbers, counted from 1: then it is a row. Each line of a JSON Lines file is an
object.
"""

import csv
import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.columns import find_path, follow
from tfm.data.config import FORMATS
from tfm.data.lines import Lines, find_line_ends, find_record_ends
from tfm.data.text_files import OPENERS, decompress, expand_names, find_file
from tfm.data.text_source import TextSource, join
from tfm.errors import UserError

ENDINGS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
LONGEST_ROW = 1 << 26  # bytes
Parser = Callable[[str], Sequence[str]]


class TableOptions(NamedTuple):
    """How tables are read.

    Attributes:
      columns: the columns of the texts of a row, names or numbers.
      form: one of `tfm.data.config.FORMATS`; "" takes it from the ending of the file.
      cache_dir: folder of unpacked files.
      clean: applied to each text.
    """

    columns: tuple[str, ...]
    form: str
    cache_dir: str
    clean: Callable[[str], str]


def open_tables(directory: str, name: str, options: TableOptions) -> TextSource:
    """The rows of all files of a split.

    Args:
      directory: their folder; "" is the current one.
      name: see `find_tables`.
      options: how they are read.

    Raises:
      UserError: a file is missing, is no such table, or has not the columns.
    """
    return join([open_table(path, options) for path in find_tables(directory, name)])


def find_tables(directory: str, name: str) -> list[str]:
    """The files of a split: several between commas, or of a pattern such as corpus/*.tsv.

    The ending may be left out where one file has the name.

    Raises:
      UserError: there is none, or more than one where one is named.
    """
    return [_find_table(path) for path in expand_names(directory, name, list(OPENERS))]


def some_table_exists(directory: str, name: str) -> bool:
    """Whether there is a file with the name of a split, as it is or with an ending."""
    stem = os.path.join(directory, name)
    return any(_has_file(stem + ending) for ending in ("", *ENDINGS))


def open_table(path: str, options: TableOptions) -> TextSource:
    """The rows of a file; see `open_tables`."""
    form = options.form or _find_format(path)
    if form == "parquet":
        from tfm.data.arrow_tables import ParquetTable  # PyArrow takes a fifth of a second to import

        return ParquetTable(decompress(path, options.cache_dir), path, options.columns, options.clean)
    return LineTable(path, form, options)


class LineTable(TextSource):
    """The rows of a TSV, CSV or JSON Lines file; blank lines are none.

    The file is memory-mapped, a compressed one unpacked once; only offsets are held.

    Args:
      path: of the file.
      form: "tsv", "csv" or "jsonl".
      options: how it is read.

    Raises:
      UserError: the file has no rows, is not UTF-8, or has not the columns; on reading a row that cannot be
        read, with the number of its line.
    """

    def __init__(self, path: str, form: str, options: TableOptions):
        find_ends = find_record_ends if form == "csv" else find_line_ends
        self._lines = Lines(decompress(path, options.cache_dir), path, find_ends, "one row a line")
        self._lines.require_lines()
        self._identity, self._clean = (form, options.columns), options.clean
        filled = _find_filled(self._lines)
        make_parser = functools.partial(MAKERS[form], options.columns)
        try:
            self._parse, header = self._at(filled[0] if len(filled) else 0, make_parser)
        except UserError:
            self.check()  # of a file that is no text, this says more
            raise
        self._rows = filled[header:]
        if not len(self._rows):
            raise UserError(f"{path} has no row behind its first line: expected one row a line.")

    def __len__(self):
        return len(self._rows)

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The rows of indices that rise."""
        self._lines.check_unchanged()
        rows = [tuple(map(self._clean, self._at(self._rows[i], self._parse))) for i in indices]
        self._lines.check_unchanged()
        return rows

    def check(self) -> None:
        """Checks that the file is text; see `tfm.data.lines.Lines.check`."""
        self._lines.check(LONGEST_ROW)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content and of the columns."""
        return f"table-{identify(*self._identity, self._lines.sha256())}"

    def _at(self, line, function):
        """`function` of the text of a line, whose ValueErrors get the number of the line."""
        text = self._lines.read(int(line)).rstrip("\r")
        try:
            return function(text)
        except ValueError as error:
            number = self._lines.number(int(line))
            raise UserError(f"Line {number:,} of {self._lines.shown_as} cannot be read: {error}.") from None


def identify(*parts: Any) -> str:
    """SHA-256 of what identifies the content of a source."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _find_table(path):
    """The file of a path, which may lack its ending."""
    if _has_file(path) or os.path.splitext(path)[1] in ENDINGS:
        return find_file(path, "check data.directory and the split's name")
    found = [path + ending for ending in ENDINGS if _has_file(path + ending)]
    if len(found) > 1:
        raise UserError(f"There are {' and '.join(found)}: give the split's name with its ending.")
    if not found:
        raise UserError(
            f"Expected a table {path} with the ending {', '.join(ENDINGS)}, but there is none: check "
            "data.directory and the split's name."
        )
    return find_file(found[0])


def _has_file(path):
    return any(os.path.lexists(path + packed) and not os.path.isdir(path + packed) for packed in OPENERS)


def _find_format(path):
    stem, ending = os.path.splitext(path)
    if ending in OPENERS:
        ending = os.path.splitext(stem)[1]
    if ending not in ENDINGS:
        raise UserError(
            f"The ending of {path} does not say its format: set data.format to {', '.join(FORMATS)}, or "
            f"rename the file to one of {', '.join(ENDINGS)}."
        )
    return ENDINGS[ending]


def _find_filled(lines: Lines) -> range | np.ndarray:
    """Indices of the lines that are not blank."""
    short = np.flatnonzero(lines.lengths <= 1)
    blank = [i for i in short if not lines.read(int(i)).strip("\r")]
    return np.delete(np.arange(len(lines)), blank) if blank else range(len(lines))


def _make_field_parser(
    split: Callable[[str], list[str]], columns: Sequence[str], first: str
) -> tuple[Parser, int]:
    """(parser of a row, lines of the header) of a file with this first line.

    Raises:
      ValueError: it has not the columns.
    """
    names = [name.strip() for name in split(first)]
    numbered = all(column.isdecimal() for column in columns)
    indices = [_find_number(column, names) if numbered else _find_name(column, names) for column in columns]

    def parse(text):
        fields = split(text)
        if len(fields) != len(names):
            raise ValueError(f"it has {_count(len(fields))} and the first line has {len(names)}")
        return [fields[i] for i in indices]

    return parse, 0 if numbered else 1


def _find_number(column, names):
    if not 1 <= int(column) <= len(names):
        raise ValueError(f"it has {_count(len(names))}, so there is no column {column}")
    return int(column) - 1


def _find_name(column, names):
    if names.count(column) > 1:
        raise ValueError(f"it names {names.count(column)} columns {column!r}")
    return names.index(find_path(column, dict.fromkeys(names))[0])


def _count(columns):
    return f"{columns} column" if columns == 1 else f"{columns} columns"


def _split_tabs(text):
    return text.split("\t")


def _split_record(text):
    """The fields of a CSV record.

    Raises:
      ValueError: its quotes do not fit.
    """
    if len(text) > csv.field_size_limit():  # a limit of the process, 131,072 at first
        csv.field_size_limit(LONGEST_ROW)
    try:
        (fields,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        reason = error if isinstance(error, csv.Error) else "a line ends within"
        raise ValueError(
            f"the quotes of this record do not fit ({reason}); a field with a quote stands in quotes, and "
            "the quote is doubled"
        ) from None
    return fields


def _make_json_parser(columns: Sequence[str], first: str) -> tuple[Parser, int]:
    """The same for JSON Lines, which have no header."""
    paths = [find_path(column, _load_object(first)) for column in columns]

    def parse(text):
        record = _load_object(text)
        return [_require_text(follow(record, path), path) for path in paths]

    return parse, 0


def _load_object(text):
    try:
        record = json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} at character {error.pos + 1:,})") from None
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object such as {...}" + f", got a {type(record).__name__}")
    return record


def _require_text(value, path):
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"expected text in the column {'.'.join(path)!r}, got {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"the column {'.'.join(path)!r} has half of a character") from None
    return value


# Form -> function of (columns, first line) to (parser, lines of the header).
MAKERS: dict[str, Callable[[Sequence[str], str], tuple[Parser, int]]] = {
    "tsv": functools.partial(_make_field_parser, _split_tabs),
    "csv": functools.partial(_make_field_parser, _split_record),
    "jsonl": _make_json_parser,
}
