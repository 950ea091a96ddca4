"""Text files: found by a name or a pattern, and read line by line.

Files whose names end in .gz or .xz are unpacked while they are read.
"""

import codecs
import contextlib
import glob
import gzip
import hashlib
import io
import itertools
import lzma
import os
import re
import stat
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from tfm.data.data_errors import MissingFile
from tfm.errors import UserError

OPENERS: dict[str, Callable[[Any], Any]] = {"": contextlib.nullcontext, ".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz"}  # the first bytes of compressed files
BOM = b"\xef\xbb\xbf"
LONE_RETURN = re.compile(rb"\r(?=[^\r\n])")  # not part of "\r\n" or "\r\r\n"
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20  # a longer line is no sentence, and SentencePiece needs 50 times its size
ADVICE = "check data.directory, the split's stem and the languages"
# Whatever ends a line for some reader. Output is one line for all readers.
LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
NO_FILE = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe (it can be read only once)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def one_line(text: str) -> str:
    """Returns the text without line ends. A model that was trained on bytes may write line ends."""
    return LINE_ENDS.sub(" ", text).strip()


class Content(NamedTuple):
    """The findings of one pass over a file.

    Attributes:
      start: the first bytes.
      lines: number of lines. The last line needs no line end.
      nuls, lone_returns: number of NUL characters, and of carriage returns without a line feed.
      is_utf8: whether the bytes are UTF-8.
      has_long_line: whether half of `MAX_LINE_BYTES` follow each other without a line end.
      sha256: hash of the unpacked content.
    """

    start: bytes
    lines: int
    nuls: int
    lone_returns: int
    is_utf8: bool
    has_long_line: bool
    sha256: str


# By identity and time of change of the file. A command opens a split to check it, then again to read it.
CONTENTS: dict[tuple[Any, ...], Content] = {}


class TextFile:
    """A UTF-8 file whose lines end in "\\n". Iterating yields the lines, without "\\n" and byte-order mark.

    The file stays open: a file that is deleted or replaced is read as it was. A file that changes
    while it is read is an error.

    Args:
      path: the path of the file.
      expected: what a line holds, for error messages.
      max_line_bytes: a longer line is an error.

    Attributes:
      path: the path of the file.
    """

    def __init__(
        self, path: str, expected: str = "one sentence a line", max_line_bytes: int = MAX_LINE_BYTES
    ):
        self.path, self._expected, self._max_line_bytes = path, expected, max_line_bytes
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = os.fstat(self._descriptor)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._read_lines())

    def check(self) -> int:
        """Reads the whole file and returns the number of its lines.

        Raises:
          UserError: if the file is empty, no UTF-8 text, or has a line that is too long.
        """
        self.require_text()
        self.require_line_feeds()
        if self.content.has_long_line or not self.content.is_utf8:
            for _ in self._read_lines():  # raises an error with the number of the line
                pass
        return self.content.lines

    def require_text(self) -> None:
        """Finds files that are no text, or text of another kind, by characters that text hardly has.

        Raises:
          UserError: if the file is empty, compressed or UTF-16.
        """
        content = self.content
        if not content.lines:
            raise UserError(f"{self.path} is empty: expected {self._expected}.")
        for magic, ending in MAGIC.items():
            if content.start.startswith(magic):
                raise UserError(f"{self.path} is a compressed file: add the ending {ending} to its name.")
        if content.nuls >= content.lines:
            raise UserError(
                f"{self.path} has a NUL character for every line: it is UTF-16 or no text; "
                "convert it to UTF-8."
            )

    def require_line_feeds(self) -> None:
        """
        Raises:
          UserError: if lines end in CR.
        """
        content = self.content
        if content.lone_returns >= content.lines:
            raise UserError(
                f"{self.path} has {content.lines:,} lines and at least as many carriage returns without a "
                "line feed: its lines end in CR; convert them to LF, as by: tr '\\r' '\\n'"
            )

    @property
    def content(self) -> Content:
        """The findings of one pass over the file. They are kept, so that the file is read once.

        Raises:
          UserError: if the file is damaged or was written to after this object was made.
        """
        key = self.path, self._state.st_dev, self._state.st_ino, *_version(self._state)
        if key not in CONTENTS:
            CONTENTS[key] = self._read_content()
        return CONTENTS[key]

    def _read_content(self) -> Content:
        start, last, line_ends, nuls, lone_returns = b"", b"", 0, 0, 0
        is_utf8, has_long_line = True, False
        digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
        with self.open() as file:
            while block := file.read(MAX_LINE_BYTES // 2):
                start = start or block[:8]
                digest.update(block)
                line_ends_of_block = block.count(b"\n")
                line_ends += line_ends_of_block
                has_long_line |= not line_ends_of_block
                nuls += block.count(b"\0")
                if b"\r" in block or last == b"\r":
                    lone_returns += len(LONE_RETURN.findall(last + block))
                last = block[-1:]
                is_utf8 = is_utf8 and _decodes(decoder, block)
        is_utf8 = is_utf8 and _decodes(decoder, b"", final=True)
        lines = line_ends + (last not in (b"", b"\n"))
        return Content(start, lines, nuls, lone_returns, is_utf8, has_long_line, digest.hexdigest())

    def error(self, number: int, problem: str) -> UserError:
        """Returns the error of a line, counted from 1."""
        return UserError(f"Line {number:,} of {self.path} {problem}.")

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked file, from its beginning.

        Raises:
          UserError: if the file is damaged, or was written to after this object was made.
        """
        content = io.BufferedReader(_Reader(self._descriptor), BLOCK_BYTES)
        self._check_unchanged()
        try:
            with OPENERS[compression(self.path)](content) as file:
                yield file
        except DAMAGE as error:
            raise UserError(
                f"{self.path} does not unpack ({error}): it may be cut short; fetch it again."
            ) from None
        self._check_unchanged()

    def _read_lines(self) -> Iterator[list[str]]:
        """Yields the lines, many at a time, because decoding and splitting each line takes longer."""
        number = 1  # of the first line that is not yet read
        for block in self._read_blocks():
            content = block.removeprefix(BOM) if number == 1 else block
            try:
                lines = content.decode("utf-8").split("\n")
            except UnicodeDecodeError as error:
                bad_line = number + content.count(b"\n", 0, error.start)
                place = error.start - content.rfind(b"\n", 0, error.start) - 1
                reason = f"{error.reason} at its byte {place}"
                raise self.error(bad_line, f"is not UTF-8 ({reason}): convert the file to UTF-8") from None
            yield lines
            number += len(lines)
        if number == 1:
            raise UserError(f"{self.path} is empty: expected {self._expected}.")

    def _read_blocks(self) -> Iterator[bytes]:
        """Yields blocks of whole lines, without the last line end of each block."""
        number, rest = 1, b""
        size = min(BLOCK_BYTES, self._max_line_bytes)  # only the first line of a block can be too long
        with self.open() as file:
            while block := file.read(size):
                first, last = block.find(b"\n"), block.rfind(b"\n")
                if len(rest) + (len(block) if first < 0 else first) > self._max_line_bytes:
                    raise self.error(
                        number, f"has more than {self._max_line_bytes:,} bytes: expected {self._expected}"
                    )
                if last < 0:
                    rest += block
                    continue
                yield rest + block[:last]
                number += block.count(b"\n")
                rest = block[last + 1 :]
        if rest:
            yield rest

    def _check_unchanged(self) -> None:
        """Raises a UserError if the file was written to after this object was made."""
        try:
            now = os.stat(self.path)
        except OSError:
            return
        if os.path.samestat(now, self._state) and _version(now) != _version(self._state):
            raise UserError(
                f"{self.path} changed while it was read: start again, and replace data files instead of "
                "writing to them while they are in use."
            )


class _Reader(io.RawIOBase):
    """A reader of an open file that keeps its own position."""

    def __init__(self, descriptor):
        self._descriptor, self._position = descriptor, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        start = starts[whence] if whence in starts else os.fstat(self._descriptor).st_size
        self._position = start + offset
        return self._position

    def readinto(self, buffer):
        content = os.pread(self._descriptor, len(buffer), self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, final: bool = False) -> bool:
    """Returns whether the next bytes of a text are UTF-8."""
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True


def _version(state: os.stat_result) -> tuple[int, int]:
    """Returns numbers that change when a file is written to."""
    return state.st_size, state.st_mtime_ns


def compression(path: str) -> str:
    """Returns the ending of a compressed file, ".gz" or ".xz", otherwise ""."""
    ending = os.path.splitext(path)[1]
    return ending if ending in OPENERS else ""


def find_file(path: str, advice: str = ADVICE) -> str:
    """Returns the path of the file of this name, or of its compressed form.

    Args:
      path: the path without the ending of a compressed file.
      advice: what to do, the end of the error message.

    Raises:
      MissingFile: if there is no such file.
      UserError: if a folder or another thing has the name.
      OSError: an error of the system.
    """
    error: UserError = MissingFile(
        f"Expected the file {path} (or {path}.gz, {path}.xz), but there is none: {advice}."
    )
    for ending in OPENERS:
        name = path + ending
        try:
            kind = stat.S_IFMT(os.stat(name).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(name):
                error = UserError(
                    f"{name} is a link to {os.readlink(name)}, but there is no such file: {advice}."
                )
            continue
        if kind == stat.S_IFREG:
            return name
        error = UserError(
            f"Expected a text file at {name}, but it is {NO_FILE.get(kind, 'not a file')}: {advice}."
        )
    raise error


def exists(path: str, endings: Sequence[str] = tuple(OPENERS)) -> bool:
    """Returns whether something has the name with one of the endings: a file, a folder or a broken link."""
    return any(os.path.lexists(path + ending) for ending in endings)


def require_folder(directory: str) -> None:
    """
    Raises:
      UserError: if the folder of the data does not exist; "" is the current folder.
    """
    if directory and not os.path.isdir(directory):
        raise UserError(
            f"Expected a folder of text files at {directory}, but there is none: set data.directory."
        )


def expand_names(directory: str, name: str, endings: Sequence[str]) -> list[str]:
    """Returns the paths that a split's name stands for, without their endings.

    Args:
      directory: folder of the files; "" is the current folder.
      name: names or patterns between commas. Patterns have *, ? or [...]; ** is any folders. The
        files of a pattern are in the order of their names. A file with the whole name is that file.
      endings: the endings that a file may have, such as ".en.gz".

    Raises:
      UserError: if the folder is missing, a pattern fits no file, or a file is named twice.
    """
    require_folder(directory)
    if exists(os.path.join(directory, name), endings):
        return [os.path.join(directory, name)]
    paths = []
    for part in map(str.strip, name.split(",")):
        path = os.path.join(directory, part)
        if exists(path, endings) or not glob.has_magic(part):
            paths.append(path)
            continue
        pattern = os.path.join(glob.escape(directory), part)
        matches = (match for ending in endings for match in glob.glob(pattern + ending, recursive=True))
        stems = {match.removesuffix(max(filter(match.endswith, endings), key=len)) for match in matches}
        if not stems:
            expected = " or ".join(path + ending for ending in endings)
            raise UserError(f"No file has a name such as {expected}: check data.directory and the pattern.")
        paths += sorted(stems)
    repeated = [path for path in paths if paths.count(path) > 1]
    if repeated:
        raise UserError(f"{repeated[0]} is named more than once by {name!r}: name each file once.")
    return paths
