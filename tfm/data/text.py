"""Sentence pairs from two text files, line i of one the translation of line i of the other."""

import functools
import gzip
import hashlib
import lzma
import mmap
import os
import shutil
import zlib

import numpy as np

from tfm.errors import UserError
from tfm.files import swept, whole_file

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 24


class TextPairs:
    """Random access to the lines of two files: `pairs[i]` is (source, target), both stripped.

    Plain files are memory-mapped, compressed ones unpacked once into `cache_dir`; only line offsets are held.

    Raises:
      UserError: a file is missing, empty or not UTF-8, or the line counts differ.
    """

    def __init__(self, stem, languages, cache_dir):
        files = [_find(f"{stem}.{language}") for language in languages]
        self._sides = [Lines(_plain(path, cache_dir), shown_as=path) for path in files]
        counts = [len(side) for side in self._sides]
        if counts[0] != counts[1]:
            raise UserError(
                f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}: "
                "each line must translate the line of the same number."
            )
        if not counts[0]:
            raise UserError(f"{files[0]} and {files[1]} are empty: expected one sentence a line.")

    def __len__(self):
        return len(self._sides[0])

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        source, target = self._sides
        return source[index], target[index]

    @functools.cached_property
    def fingerprint(self):
        """Identity of the content."""
        return "text-" + "-".join(side.sha256() for side in self._sides)


class Lines:
    """The lines of a UTF-8 file, parted by "\\n" alone, without a byte-order mark, stripped.

    Raises:
      UserError: on reading a line that is not UTF-8.
    """

    def __init__(self, path, shown_as):
        self._shown_as = shown_as
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
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
                f"Line {index + 1} of {self._shown_as} is not UTF-8 ({error.reason} at its byte "
                f"{error.start}): convert the file to UTF-8."
            ) from None

    def sha256(self):
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


def _find(path):
    for ending in OPENERS:
        if os.path.isfile(path + ending):
            return path + ending
    raise UserError(
        f"Expected the file {path} (or {path}.gz, {path}.xz), but there is none: "
        "check data.directory, the split's stem and the languages."
    )


def _plain(path, cache_dir):
    """`path` itself, or an unpacked copy of it, made once for each size and time of change."""
    ending = os.path.splitext(path)[1]
    if ending not in (".gz", ".xz"):
        return path
    status = os.stat(path)
    identity = f"{os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}"
    unpacked = os.path.join(cache_dir, "unpacked", hashlib.sha256(identity.encode()).hexdigest()[:32])
    if os.path.exists(unpacked):
        return unpacked
    with swept(os.path.dirname(unpacked)), whole_file(unpacked) as plain:
        try:
            with OPENERS[ending](path, "rb") as packed:
                shutil.copyfileobj(packed, plain, CHUNK)
        except DAMAGE as error:
            raise UserError(
                f"{path} does not unpack ({error}): it may be cut short; fetch it again."
            ) from None
    return unpacked
