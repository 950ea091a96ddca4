"""Sentence pairs from two text files, line i of one the translation of line i of the other."""

import functools
import hashlib
import itertools
import mmap
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from tfm.data.problems import collect
from tfm.data.text_files import OPENERS, decompress, find_file
from tfm.data.tokenizer import LONGEST_TEXT
from tfm.errors import UserError

BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 24
LONGEST_LINE = 1 << 20  # bytes; a longer line is not a sentence, and SentencePiece takes 50 times its size
LONE_RETURN = re.compile(rb"\r(?=[^\r\n])")  # not one of "\r\n" or "\r\r\n"
NUL = re.compile(rb"\0")
PACKED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz"}  # how compressed files begin


def find_problems(stem: str, languages: Sequence[str], cache_dir: str) -> list[str]:
    """Why the two files of a split cannot be used: error messages, none where they can.

    Reads both files whole, so that no error is found later, behind a long tokenisation.
    """
    problems, sides = [], []
    for language in languages:
        with collect(problems):
            side = _open_side(stem, language, cache_dir)
            side.check()
            sides.append(side)
    if not problems:
        with collect(problems):
            _check_pairs(*sides)
    return problems


def some_file_exists(stem: str, languages: Sequence[str]) -> bool:
    """Whether there is a file of either side."""
    names = (f"{stem}.{language}{ending}" for language in languages for ending in OPENERS)
    return any(map(os.path.lexists, names))


class TextPairs:
    """Random access to the lines of two files: `pairs[i]` is (source, target), both stripped.

    Plain files are memory-mapped, compressed ones unpacked once into `cache_dir`; only line offsets are held.

    Raises:
      UserError: a file is missing, empty or not UTF-8, or the line counts differ.
    """

    def __init__(self, stem: str, languages: Sequence[str], cache_dir: str):
        self._sides = [_open_side(stem, language, cache_dir) for language in languages]
        _check_counts(*self._sides)

    def __len__(self):
        return len(self._sides[0])

    def __getitem__(self, index):
        if isinstance(index, slice):
            for side in self._sides:
                side.check_unchanged()
            pairs = [self[i] for i in range(*index.indices(len(self)))]
            for side in self._sides:
                side.check_unchanged()
            return pairs
        source, target = self._sides
        return source[index], target[index]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the content."""
        return "text-" + "-".join(side.sha256() for side in self._sides)


class Lines:
    """The lines of a UTF-8 file, parted by "\\n" alone, without a byte-order mark, stripped.

    Raises:
      UserError: on reading a line that is not UTF-8.

    Attributes:
      shown_as: what error messages call the file.
    """

    def __init__(self, path: str, shown_as: str):
        self.shown_as, self._path = shown_as, path
        with open(path, "rb") as file:
            self._state = os.fstat(file.fileno())
            size = self._state.st_size
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._start = len(BOM) if self._bytes[:3] == BOM else 0
        self._ends = _line_ends(self._bytes)

    def __len__(self):
        return len(self._ends)

    def __getitem__(self, index):
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        begin = self._ends[index - 1] + 1 if index else self._start
        try:
            return self._bytes[begin : self._ends[index]].decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(
                f"Line {index + 1} of {self.shown_as} is not UTF-8 ({error.reason} at its byte "
                f"{error.start}): convert the file to UTF-8."
            ) from None

    def check(self) -> None:
        """Reads the whole file.

        Raises:
          UserError: it is no UTF-8 text with one sentence a line.
        """
        if not len(self):
            raise UserError(f"{self.shown_as} is empty: expected one sentence a line.")
        self._check_characters()
        lengths = np.diff(self._ends, prepend=-1) - 1
        line = int(lengths.argmax())
        if lengths[line] > LONGEST_LINE:
            raise UserError(
                f"Line {line + 1:,} of {self.shown_as} has {lengths[line]:,} bytes: expected one sentence a "
                f"line, of at most {LONGEST_LINE:,} bytes."
            )
        self._check_encoding()

    def check_unchanged(self) -> None:
        """
        Raises:
          UserError: the file was written to after it was opened. One that was deleted or replaced is still
            read as it was.
        """
        try:
            state = os.stat(self._path)
        except OSError:
            return
        if os.path.samestat(state, self._state) and _version(state) != _version(self._state):
            raise UserError(
                f"{self.shown_as} changed while it was read: start again, and replace data files instead of "
                "writing to them while they are in use."
            )

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


def _line_ends(data):
    """Byte offsets of the ends of all lines; a last line needs no newline."""
    ends = [
        np.flatnonzero(np.frombuffer(data[begin : begin + CHUNK], np.uint8) == ord("\n")) + begin
        for begin in range(0, len(data), CHUNK)
    ]
    if len(data) and data[-1:] != b"\n":
        ends.append(np.array([len(data)]))
    return np.concatenate(ends) if ends else np.zeros(0, np.int64)


def _version(state):
    return state.st_size, state.st_mtime_ns


def _open_side(stem, language, cache_dir):
    path = find_file(f"{stem}.{language}")
    return Lines(decompress(path, cache_dir), shown_as=path)


def _check_counts(source, target):
    """
    Raises:
      UserError: a file has no lines, or they have different numbers of them.
    """
    for side in (source, target):
        if not len(side):
            raise UserError(f"{side.shown_as} is empty: expected one sentence a line.")
    if len(source) != len(target):
        raise UserError(
            f"{source.shown_as} has {len(source):,} lines and {target.shown_as} has {len(target):,}: "
            "each line must translate the line of the same number."
        )


def _check_pairs(source, target):
    """
    Raises:
      UserError: the sides are one file, differ in their lines, or have no pair to train on.
    """
    if os.path.samefile(source.shown_as, target.shown_as):
        raise UserError(
            f"{source.shown_as} and {target.shown_as} are the same file: a translation of itself; check the "
            "languages and links. To train on copies, give a copy of the file."
        )
    _check_counts(source, target)
    require_usable(zip(source, target, strict=True), f"{source.shown_as} and {target.shown_as}")


def require_usable(pairs: Iterable[tuple[str, str]], shown_as: str) -> None:
    """Reads pairs up to the first that can be trained on.

    Raises:
      UserError: there is none.
    """
    usable = (
        source and target and max(len(source.encode()), len(target.encode())) <= LONGEST_TEXT
        for source, target in pairs
    )
    if not any(usable):
        raise UserError(
            f"No pair of {shown_as} has text on both sides, of at most {LONGEST_TEXT:,} bytes: expected one "
            "sentence a line."
        )
