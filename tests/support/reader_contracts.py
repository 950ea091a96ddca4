"""Contracts of readers of data, as pytest classes.

A reader is a source with a length, rows by index and slice, and a fingerprint that identifies its content.
"""

import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.files import compress, damaged_files, list_files
from tfm.errors import UserError

MAX_MESSAGE_CHARACTERS = 600
ROWS = [
    ("one", "eins"),
    ("two half", "zwei ä"),
    ('say "hi", you', "sag 'ja'; du"),
    ("three\u2028lines", "drei"),
    ("five", "fünf"),
]


def change_texts(row: tuple[str, ...]) -> list[Any]:
    """Returns one row for each text. In the row of a text, only its last character differs."""
    return [(*row[:i], f"{text[:-1]}x", *row[i + 1 :]) for i, text in enumerate(row)]


class Reader(NamedTuple):
    """How tests make and open a reader.

    Attributes:
      write: (folder, rows) writes the files of the reader into an empty folder.
      open: (folder, **options) opens the reader. The reader may write into `folder / CACHE`.
      rows: rows to write.
      changes: returns rows that each differ from a row in one place. They have as many bytes as the last row.
      options: keyword arguments of `open` that must change the fingerprint.
      may_be_compressed: whether the reader opens compressed files.
      package: an optional package that the reader needs.
    """

    write: Callable[[pathlib.Path, Any], Any]
    open: Callable[..., Any]
    rows: Sequence[Any] = ROWS
    changes: Callable[[Any], list[Any]] = change_texts
    options: Sequence[Mapping[str, Any]] = ()
    may_be_compressed: bool = True
    package: str = ""


class ReaderContract:
    """The contract of every reader of files.

    Attributes:
      cases: {name: reader}. The first reader has options, and its files may be compressed.
    """

    cases: ClassVar[Mapping[str, Reader]] = {}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases."""
        if "reader" in metafunc.fixturenames:
            metafunc.parametrize("reader", self.cases.values(), ids=self.cases.keys())

    def take(self, source: Any, chosen: Any) -> Any:
        """Returns the row of an index, or the list of rows of a slice."""
        return source[chosen]

    def make(self, reader: Reader, folder: pathlib.Path, rows: Any = None, ending: str = "") -> Any:
        """Writes rows into a new folder and opens them."""
        if reader.package:
            pytest.importorskip(reader.package, reason=f"the package {reader.package} is not installed")
        if ending and not reader.may_be_compressed:
            pytest.skip("the files of this reader cannot be compressed")
        folder.mkdir()
        reader.write(folder, reader.rows if rows is None else rows)
        if ending:
            compress(folder, ending)
        return reader.open(folder)

    def test_every_index_and_slice_gives_the_rows_written(self, reader, tmp_path):
        source, rows = self.make(reader, tmp_path / "a"), list(reader.rows)
        assert len(source) == len(rows) > 2
        for index in np.random.default_rng(0).permutation(len(rows)).tolist():
            assert self.take(source, index) == rows[index]
        bounds = [None, 0, 1, 2, len(rows), -1]
        for first, last, step in itertools.product(bounds, bounds, [None, 1, 2, 3, -1, -2]):
            assert self.take(source, slice(first, last, step)) == rows[first:last:step]
        with pytest.raises(IndexError):
            self.take(source, len(rows))

    def test_the_fingerprint_is_that_of_the_content(self, reader, tmp_path):
        rows = list(reader.rows)
        first = self.make(reader, tmp_path / "first").fingerprint
        assert self.make(reader, tmp_path / "other_folder").fingerprint == first
        contents = [rows[::-1], rows[:-1]]
        for i, row in enumerate(rows):
            contents += [[*rows[:i], other, *rows[i + 1 :]] for other in reader.changes(row)]
        found = [self.make(reader, tmp_path / str(i), each).fingerprint for i, each in enumerate(contents)]
        assert len({first, *found}) == 1 + len(contents)

    def test_reading_options_change_the_fingerprint(self, reader, tmp_path):
        if not reader.options:
            pytest.skip("the reader has no option that changes its rows")
        source = self.make(reader, tmp_path / "a")
        found = [reader.open(tmp_path / "a", **each).fingerprint for each in reader.options]
        assert len({source.fingerprint, *found}) == 1 + len(found)

    @pytest.mark.parametrize("ending", ["", ".gz"])
    def test_a_replaced_file_of_equal_size_is_read_again(self, reader, tmp_path, ending):
        source = self.make(reader, tmp_path / "a", ending=ending)
        before, rows = source.fingerprint, [*reader.rows[:-1], reader.changes(reader.rows[-1])[0]]
        assert self.take(source, slice(None)) == list(reader.rows)
        self.make(reader, tmp_path / "b", rows, ending)
        for name, content in list_files(tmp_path / "b").items():
            old = tmp_path / "a" / name
            assert len(content) == old.stat().st_size
            (tmp_path / "new").write_bytes(content)
            os.utime(tmp_path / "new", ns=(0, old.stat().st_mtime_ns + 1))
            (tmp_path / "new").replace(old)
        again = reader.open(tmp_path / "a")
        assert self.take(again, slice(None)) == rows
        assert again.fingerprint != before

    @pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
    def test_compressed_files_equal_plain_ones(self, reader, tmp_path, ending):
        packed = self.make(reader, tmp_path / "packed", ending=ending)
        assert self.take(packed, slice(None)) == list(reader.rows)
        assert packed.fingerprint == self.make(reader, tmp_path / "plain").fingerprint

    def test_reading_changes_no_file(self, reader, tmp_path):
        source = self.make(reader, tmp_path / "a")
        before = list_files(tmp_path / "a")
        assert self.take(source, slice(None))
        assert source.fingerprint
        assert list_files(tmp_path / "a") == before

    def test_any_bytes_give_rows_or_a_short_printable_message(self, reader, tmp_path):
        self.make(reader, tmp_path / "a")

        @given(damaged_files(list_files(tmp_path / "a")))
        @settings(max_examples=40)
        def read(files):
            with tempfile.TemporaryDirectory() as folder:
                for name, content in files.items():
                    path = pathlib.Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                try:
                    source = reader.open(pathlib.Path(folder))
                    assert len(self.take(source, slice(None))) == len(source)
                    assert source.fingerprint
                except UserError as error:
                    message = str(error)
                    assert message.isprintable()
                    assert 20 < len(message.strip()) < MAX_MESSAGE_CHARACTERS + 3 * len(folder)

        read()


class ImageReaderContract(ReaderContract):
    """The contract of `tfm.data.images.Images`. Rows are (nested list of pixels, label)."""

    def take(self, source: Any, chosen: Any) -> Any:
        """Returns the row of an index, or the list of rows of a slice."""
        indices = np.arange(len(source))[chosen] if isinstance(chosen, slice) else np.array([chosen])
        images, labels = source.take(indices)
        rows = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
        return rows if isinstance(chosen, slice) else rows[0]
