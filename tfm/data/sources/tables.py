"""Texts of the columns of tables: TSV, CSV, JSON Lines and Parquet files.

A TSV file has rows as lines and tabs between columns, and nothing is quoted. A CSV file follows RFC 4180. The
first line contains the names of the columns. If the columns are numbers, counted from 1, the first line is a
row. Each line of a JSON Lines file is an object. A JSON file may also be one array of objects. Empty lines
are ignored.

Python's own csv and json read the rows, because PyArrow's readers accept a file with an unclosed quote as one
long field and a missing key as an empty text, and count the rows of a JSON file from the start of a block.
"""

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tfm.data.config import FORMATS
from tfm.data.data_errors import MissingFile
from tfm.data.source import Row, Source, hash_text, join
from tfm.data.sources.columns import PAIR, ListColumns, Path, find_path, follow, label_text
from tfm.data.sources.text_files import (
    ADVICE,
    ENDINGS,
    TextFile,
    compression,
    exists,
    expand_names,
    find_file,
    find_spelling,
)
from tfm.errors import UserError

FORMAT_OF = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
MAX_ROW_BYTES = 1 << 26
MAX_BLANKS = 1024  # bytes in which the first character of a JSON file is looked for
Parser = Callable[[Any], Sequence[str]]


class TableOptions(NamedTuple):
    """Options of reading tables.

    Attributes:
      columns: the columns of the texts of a row, names or numbers.
      form: one of `tfm.data.config.FORMATS`; "" takes it from the ending of each file.
      clean: applied to each text.
      labels: names of the columns that contain labels. A label may also be a number or a boolean.
      lists: names of the columns that may contain lists of texts, with the function that joins a list.
    """

    columns: tuple[str, ...]
    form: str
    clean: Callable[[str], str]
    labels: tuple[str, ...] = ()
    lists: ListColumns = MappingProxyType({})


def open_tables(directory: str, name: str, options: TableOptions) -> Source:
    """Returns the rows of all files of a split.

    Args:
      directory: folder of the files; "" is the current folder.
      name: the files, between commas, or a pattern such as corpus/*.tsv. The ending may be left out where one
        file has the name.
      options: how the files are read.

    Raises:
      UserError: if a file is missing or has an unknown format.
    """
    return join([open_table(path, options) for path in find_tables(directory, name)])


def find_tables(directory: str, name: str) -> list[str]:
    """Returns the paths of the files of a split. For the arguments and errors, see `open_tables`."""
    return [_find_table(path) for path in expand_names(directory, name)]


def open_table(path: str, options: TableOptions) -> Source:
    """Returns the rows of one file; see `open_tables`.

    Reading the source raises a UserError with the number of the line if a row cannot be read, or if there is
    no row.
    """
    form = options.form or _find_format(path)
    if form == "parquet":
        from tfm.data.sources.arrow import open_parquet  # PyArrow takes a third of a second to import

        return open_parquet(path, options.columns, options.clean, options.labels, options.lists)
    file = TextFile(path, "one row a line", MAX_ROW_BYTES)
    has_header = form != "jsonl" and not all(column.isdecimal() for column in options.columns)

    def locate(row: int) -> str:
        number, _ = next(itertools.islice(READERS[form](file), has_header + row, None))
        return f"{_find_unit(file, form)} {number:,} of {file.path}"

    return Source(
        lambda: _read_rows(file, form, options, has_header),
        lambda: f"table-{hash_text(json.dumps([form, options.columns, file.content.sha256]))}",
        lambda: sum(1 for _ in itertools.islice(READERS[form](file), has_header, None)),
        locate=locate,
    )


def _find_table(path: str) -> str:
    """Returns the path of a table. The ending of `path` may be missing."""
    path = find_spelling(path, [form + packed for form in FORMAT_OF for packed in ENDINGS])
    if _has_file(path) or os.path.splitext(path)[1] in FORMAT_OF:
        return find_file(path)
    paths = [path + ending for ending in FORMAT_OF if _has_file(path + ending)]
    if len(paths) > 1:
        raise UserError(f"There are {' and '.join(paths)}: give the split's name with its ending.")
    if not paths:
        raise MissingFile(
            f"Expected a table {path} with the ending {', '.join(FORMAT_OF)}, but there is none: {ADVICE}."
        )
    return find_file(paths[0])


def _has_file(path: str) -> bool:
    return any(exists(path + packed, [""]) and not os.path.isdir(path + packed) for packed in ENDINGS)


def _find_format(path: str) -> str:
    """Returns the format that the ending of a file stands for, also before .gz or .xz."""
    ending = os.path.splitext(path[: len(path) - len(compression(path))])[1]
    if ending not in FORMAT_OF:
        raise UserError(
            f"The ending of {path} does not say its format: set data.format to {', '.join(FORMATS)}, or "
            f"rename the file to one of {', '.join(FORMAT_OF)}."
        )
    return FORMAT_OF[ending]


def _read_rows(file: TextFile, form: str, options: TableOptions, has_header: bool) -> Iterator[Row]:
    """Yields the texts of the rows.

    Raises:
      UserError: with the number of the line, or of the element of an array, that cannot be read.
    """
    rows, clean = 0, options.clean
    records: Iterator[tuple[int, Any]] = READERS[form](file)
    parse, number = None, 1
    try:
        for number, record in records:  # noqa: B007 - the error has the number
            if parse is None:
                parse = _make_parser(form, options, record)
                if has_header:
                    continue
            yield tuple(map(clean, parse(record)))
            rows += 1
    except UserError:
        raise
    except ValueError as error:
        raise file.error(number, f"cannot be read: {error}", _find_unit(file, form)) from None
    if not rows:
        raise UserError(f"{file.path} has no row after its first line: expected one row a line.")


def _read_lines(file: TextFile) -> Iterator[tuple[int, str]]:
    """Yields (number of the line, text) of each line that is not blank."""
    for number, line in enumerate(file, 1):
        text = line.rstrip("\r")
        if text:
            yield number, text


def _read_fields(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the line, fields) of each line of a TSV file that is not blank."""
    return ((number, line.split("\t")) for number, line in _read_lines(file))


def _read_objects(file: TextFile) -> Iterator[tuple[int, Any]]:
    """Yields (number of the line, its JSON) of each line, or (number, element) if the file is one array."""
    if not _is_array(file):
        return _read_lines(file)
    try:
        return iter(enumerate(map(json.dumps, json.loads(file.decode())), 1))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file.path} begins like a JSON array, but it does not parse ({error}).") from None


def _is_array(file: TextFile) -> bool:
    """Returns whether a JSON file begins like an array."""
    with file.open() as content:
        return content.read(MAX_BLANKS).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _find_unit(file: TextFile, form: str) -> str:
    """Returns what the numbers of the records of a file count."""
    return "element" if form == "jsonl" and _is_array(file) else "line"


def _read_records(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its first line, fields) of each record of a CSV file that is not blank."""
    quotes = 0

    def read_lines():
        nonlocal quotes
        for line in file:
            quotes += line.count('"')
            yield line + "\n"

    csv.field_size_limit(MAX_ROW_BYTES)  # of the process; Python's own limit is 131,072
    records = csv.reader(read_lines(), strict=True)
    number = 1
    try:
        for fields in records:
            if quotes % 2:  # the csv module accepts 5" as a field
                raise csv.Error("a line ends within")
            if fields:
                yield number, fields
            number = records.line_num + 1
    except csv.Error as error:
        if "new-line character" in str(error):
            raise file.error(number, "has a CR outside quotes: quote the field or remove the CR") from None
        raise file.error(
            number,
            f"cannot be read because the quotes of this record do not fit ({error}). Put a field that "
            "contains a quote in quotes, and double the quote",
        ) from None


READERS: dict[str, Callable[[TextFile], Iterator[tuple[int, Any]]]] = {
    "tsv": _read_fields,
    "csv": _read_records,
    "jsonl": _read_objects,
}


def _make_parser(form: str, options: TableOptions, first: Any) -> Parser:
    """Returns a function that takes the columns out of a record. `first` is the first record of the file."""
    if form == "jsonl":
        return _make_json_parser(options, first)
    return _make_field_parser(options, first)


def _make_field_parser(options: TableOptions, first: Sequence[str]) -> Parser:
    """Returns a function that takes the columns out of the fields of a row.

    Args:
      options: the columns have names or numbers.
      first: the fields of the first line.

    Raises:
      ValueError: if a column is missing, or several columns have its name.
    """
    columns: Sequence[str] = options.columns
    names = [name.strip() for name in first]
    if all(column.isdecimal() for column in columns):
        columns = [str(int(column)) for column in columns]
        names = [str(number) for number in range(1, len(names) + 1)]
    _check_has_label(options.labels, names)
    for column in columns:
        if names.count(column) > 1:
            raise ValueError(f"{names.count(column)} columns have the name {column!r}")
    indices = [names.index(find_path(column, dict.fromkeys(names))[0]) for column in columns]

    def parse(fields):
        if len(fields) != len(names):
            raise ValueError(f"expected {len(names)} columns as in the first line, got {len(fields)}")
        return [fields[index] for index in indices]

    return parse


def _check_has_label(labels: Sequence[str], names: Sequence[str]) -> None:
    """Raises a ValueError if a column of labels is missing, as in test splits whose labels are secret."""
    for label in labels:
        if not label.isdecimal() and label not in names:
            raise ValueError(
                f"it has no column {label!r} with labels, but {', '.join(map(repr, names))}. Name the "
                "column, or leave data.test empty if this is a test split without labels"
            )


def _make_json_parser(options: TableOptions, first: Any) -> Parser:
    """Returns a function that takes the columns out of a line of JSON, or of an element of an array."""
    columns = options.columns
    paths: list[Path] = []
    readers = [_choose_json_reader(column, options) for column in columns]

    def parse(line):
        record = _load_object(line)
        if record.get(PAIR, "") is None and record.keys().isdisjoint(columns):  # no keys lead to texts
            return [""] * len(columns)
        _check_not_nested(record, columns)
        paths[:] = paths or [find_path(column, record) for column in columns]
        return [read(follow(record, path), path) for read, path in zip(readers, paths, strict=True)]

    return parse


def _check_not_nested(record: dict[str, Any], columns: Sequence[str]) -> None:
    """Raises a ValueError if an object has no column, but the rows of a table in one of its fields."""
    if not record.keys().isdisjoint(columns):
        return
    for name, value in record.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and set(columns) <= first.keys():
            raise ValueError(
                f"the rows are in the field {name!r} of one object. Write each row on one line, for example "
                f"with jq -c '.{name}[]' FILE"
            )


def _load_object(line: str) -> dict[str, Any]:
    """Returns the JSON object of a line. Raises a ValueError with the reason if there is none."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        advice = ""
        if line.lstrip().startswith("{") and error.pos >= len(line.rstrip()):
            advice = ". Write each object on one line, for example with jq -c . FILE"
        raise ValueError(f"it is no JSON ({error.msg} at character {error.pos + 1:,}){advice}") from None
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object such as {...}" + f", got a {type(record).__name__}")
    return record


def _choose_json_reader(column: str, options: TableOptions) -> Callable[[Any, Path], str]:
    """Returns the function that converts the value of a column to text."""
    read = _read_label if column in options.labels else _require_text
    if column not in options.lists:
        return read

    def read_list(value: Any, path: Path) -> str:
        if not isinstance(value, list):
            return read(value, path)
        return options.lists[column](read(element, path) for element in value)

    return read_list


def _read_label(value: Any, path: Path) -> str:
    """Returns the text of a label. Raises a ValueError if it is no text, number or boolean."""
    if isinstance(value, int | float):
        return label_text(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(
            f"expected a text, a number or a boolean in the column {'.'.join(path)!r}, got "
            f"{type(value).__name__}"
        )
    return _require_text(value, path)


def _require_text(value: Any, path: Path) -> str:
    """Returns the text of a JSON value, "" for null. Raises a ValueError if it is no text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"expected text in the column {'.'.join(path)!r}, got {type(value).__name__}")
    value.encode("utf-8")  # raises a UnicodeEncodeError for half of a character
    return value
