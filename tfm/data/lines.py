"""The lines of a text file, or the records of a CSV file, read at random from a memory map."""

import hashlib
import itertools
import mmap
import os
import re
from collections.abc import Callable, Iterator

import numpy as np

from tfm.data.text_files import check_unchanged
from tfm.errors import UserError

BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 24
LONGEST_LINE = 1 << 20  # bytes; a longer line is not a sentence, and SentencePiece takes 50 times its size
LONE_RETURN = re.compile(rb"\r(?=[^\r\n])")  # not one of "\r\n" or "\r\r\n"
NUL = re.compile(rb"\0")
# What ends a line for some reader or other; an output is one line for all of them.
LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
PACKED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz"}  # how compressed files begin


def one_line(text: str) -> str:
    """The text without line ends, which a model may write that has seen bytes."""
    return LINE_ENDS.sub(" ", text).strip()


def find_line_ends(data: bytes | mmap.mmap) -> np.ndarray:
    """Byte offsets of the ends of all lines; a last line needs no newline."""
    return _find_ends(data, lambda chunk: np.flatnonzero(chunk == ord("\n")))


def find_record_ends(data: bytes | mmap.mmap) -> np.ndarray:
    """Byte offsets of the ends of all records of a CSV file: of the lines that do not end within quotes.

    A quote within quotes is doubled (RFC 4180), so a line ends outside where the quotes before are even.
    """
    before = 0

    def find_outside(chunk):
        nonlocal before
        newlines, quotes = (np.flatnonzero(chunk == ord(each)) for each in '\n"')
        outside = (before + np.searchsorted(quotes, newlines)) % 2 == 0
        before += len(quotes)
        return newlines[outside]

    return _find_ends(data, find_outside)


def _find_ends(data, find):
    """What `find` finds in each chunk, as offsets in the file, and the end of the file."""
    found = [
        find(np.frombuffer(data[begin : begin + CHUNK], np.uint8)) + begin
        for begin in range(0, len(data), CHUNK)
    ]
    ends = np.concatenate(found) if found else np.zeros(0, np.int64)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))
    return ends


class Lines:
    """The lines of a UTF-8 file, parted by "\\n" alone, without a byte-order mark, stripped.

    The file is memory-mapped; only the offsets of the line ends are held.

    Args:
      path: of the file.
      shown_as: what error messages call it.
      find_ends: the bytes of a file -> int array of the offsets where its lines end; `find_record_ends` makes
        lines of the records of a CSV file.
      expected: what is on a line, for error messages.

    Raises:
      UserError: on reading a line that is not UTF-8.

    Attributes:
      shown_as: what error messages call the file.
    """

    def __init__(
        self,
        path: str,
        shown_as: str,
        find_ends: Callable[[bytes | mmap.mmap], np.ndarray] = find_line_ends,
        expected: str = "one sentence a line",
    ):
        self.shown_as, self._path, self._expected = shown_as, path, expected
        with open(path, "rb") as file:
            self._state = os.fstat(file.fileno())
            size = self._state.st_size
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._start = len(BOM) if self._bytes[:3] == BOM else 0
        self._ends = find_ends(self._bytes)

    def __len__(self):
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return self.read(index).strip()

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def read(self, index: int) -> str:
        """A line with the white space at its ends, without "\\n"."""
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        begin = self._ends[index - 1] + 1 if index else self._start
        try:
            return self._bytes[begin : self._ends[index]].decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Line {self.number(index):,} of {self.shown_as} is not UTF-8 ({error.reason} at its byte "
                f"{error.start}): convert the file to UTF-8."
            ) from None

    def number(self, index: int) -> int:
        """The number of the line of the file, counted from 1, on which a line or record begins."""
        begin = self._ends[index - 1] + 1 if index else 0
        return 1 + sum(
            self._bytes[first : min(first + CHUNK, begin)].count(b"\n") for first in range(0, begin, CHUNK)
        )

    @property
    def lengths(self) -> np.ndarray:
        """int array [lines], bytes of each."""
        return np.diff(self._ends, prepend=-1) - 1

    def require_lines(self) -> None:
        """
        Raises:
          UserError: the file is empty.
        """
        if not len(self):
            raise UserError(f"{self.shown_as} is empty: expected {self._expected}.")

    def check(self, longest: int = LONGEST_LINE) -> None:
        """Reads the whole file.

        Args:
          longest: bytes of a line.

        Raises:
          UserError: it is empty, no UTF-8 text, or a line is too long.
        """
        self.require_lines()
        self._check_characters()
        lengths = self.lengths
        line = int(lengths.argmax())
        if lengths[line] > longest:
            raise UserError(
                f"Line {self.number(line):,} of {self.shown_as} has {lengths[line]:,} bytes: expected "
                f"{self._expected}, of at most {longest:,} bytes."
            )
        self._check_encoding()

    def check_unchanged(self) -> None:
        """See `tfm.data.text_files.check_unchanged`."""
        check_unchanged(self._path, self._state, self.shown_as)

    def _check_characters(self):
        """Finds the files that are no text, or text of another kind, by what other files hardly have."""
        for start, ending in PACKED.items():
            if self._bytes[: len(start)] == start:
                raise UserError(f"{self.shown_as} is a compressed file: add the ending {ending} to its name.")
        if self._has_as_many_as_lines(NUL):
            raise UserError(
                f"{self.shown_as} has a NUL character for every line: it is UTF-16 or no text; "
                "convert it to UTF-8."
            )
        if self._has_as_many_as_lines(LONE_RETURN):
            raise UserError(
                f"{self.shown_as} has {len(self):,} line feeds and at least as many carriage returns without "
                "one: its lines end in CR; convert them to LF, as by: tr '\\r' '\\n'"
            )

    def _has_as_many_as_lines(self, pattern):
        found = itertools.islice(pattern.finditer(self._bytes), len(self))
        return sum(1 for _ in found) == len(self)

    def _check_encoding(self):
        """Decodes many lines at a time; where they fail, reads the first bad one, which raises."""
        first, begin = 0, self._start
        while first < len(self):
            last = max(first + 1, int(np.searchsorted(self._ends, begin + CHUNK)))
            try:
                self._bytes[begin : self._ends[last - 1]].decode("utf-8")
            except UnicodeDecodeError as error:
                self[int(np.searchsorted(self._ends, begin + error.start))]
            first, begin = last, int(self._ends[last - 1]) + 1

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for begin in range(0, len(self._bytes), CHUNK):
            digest.update(self._bytes[begin : begin + CHUNK])
        return digest.hexdigest()
