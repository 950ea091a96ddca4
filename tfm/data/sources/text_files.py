"""Text files: found by a name or a pattern, and read line by line.

Files whose names end in .gz, .xz, .bz2 or .zst are unpacked while they are read.
"""

import bz2
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
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from tfm.data.data_errors import MissingFile
from tfm.errors import UserError, install_extra
from tfm.io.files import check_no_pipe, spell_path
from tfm.io.remote import open_object

DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
# The first bytes of compressed files.
ZIP = b"PK\x03\x04"  # the first bytes of an archive
MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"BZh91AY&SY": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
NULS = "has more NUL characters than lines: it is UTF-16 or no text; convert it to UTF-8"
# Expressions that occur more often than line feeds if a file is not text. A CR may precede a line end.
SIGNS = {b"\0": NULS, rb"\r(?=[^\r\n])": "has lines that end in CR; convert them to LF: tr '\\r' '\\n'"}
BLOCK_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 19  # at the beginning of a file, by which all readers decide whether it is text
MAX_UNPACKED_RATIO = 200  # unpacked to packed bytes; texts have less than 20
MAX_SMALL_BYTES = 1 << 28  # that a file of any ratio may have
MAX_LINE_BYTES = 1 << 20  # a longer line is no sentence, and SentencePiece needs 50 times its size
CONVERT = "convert the file, for example with iconv -f LATIN1 -t UTF-8 if its language is Western European"
ADVICE = "check data.directory, the names of the splits and the languages"
# Whatever ends a line for some reader. Output is one line for all readers.
LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


# The first line of test sets of WMT and IWSLT (SGML, XML) and of translation memories (TMX, XLIFF).
MARKUP = re.compile(r"\s*<(\?xml|!doctype|srcset|refset|tstset|mteval|dataset|tmx|xliff)\b", re.IGNORECASE)


@contextlib.contextmanager
def _open_zst(file: BinaryIO) -> Iterator[Any]:
    """The unpacked content of a file that Zstandard compressed.

    Raises:
      UserError: if Python is older than 3.14 and the optional package is missing.
      EOFError: if the file is damaged or cut short.
    """
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UserError(f"A .zst file needs the package backports.zstd: {install_extra('zstd')}.") from None
    try:
        with zstd.open(file) as unpacked:
            yield unpacked
    except zstd.ZstdError as error:
        raise EOFError(str(error)) from None


OPENERS: dict[str, Callable[[Any], Any]] = {
    "": contextlib.nullcontext,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zst,
}


# The endings with which a name of a file is searched.
ENDINGS = (*OPENERS, *(ending.upper() for ending in OPENERS if ending))


def one_line(text: str) -> str:
    """Returns the text on one line: line ends become a space, and blanks at both ends are removed.

    A model that was trained on bytes may write line ends.
    """
    return LINE_ENDS.sub(" ", text).strip()


class Content(NamedTuple):
    """The findings of one pass over a file.

    Attributes:
      lines: number of lines. The last line needs no line end.
      is_clean: False if reading the lines may find an error.
      sha256: hash of the unpacked content.
    """

    lines: int
    is_clean: bool
    sha256: str


# By identity and time of change of the file. A command opens a split to check it, then again to read it.
CONTENTS: dict[tuple[Any, ...], Content] = {}


class TextFile:
    """A UTF-8 file whose lines end in "\\n". Iterating yields the lines, without "\\n" and byte-order mark.

    The file is read several times, for its hash, its check and its tokens. A file that has changed in between
    is an error.

    Args:
      path: the path of the file.
      expected: what a line holds, for error messages.
      max_line_bytes: a longer line is an error.
      may_be_empty: whether a file without any content has no lines. Otherwise it is an error.

    Attributes:
      path: the path of the file.
    """

    def __init__(
        self,
        path: str,
        expected: str = "one sentence a line",
        max_line_bytes: int = MAX_LINE_BYTES,
        *,
        may_be_empty: bool = False,
    ):
        self.path, self._expected, self._max_line_bytes = path, expected, max_line_bytes
        self._may_be_empty = may_be_empty
        check_no_pipe(path)  # the file is read several times
        self._version = _identify(os.stat(path))

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._read_lines())

    def blocks(self) -> Iterator[str]:
        """Yields the text in blocks of whole lines, each with a line end.

        Raises:
          UserError: as for the lines.
        """
        return ("\n".join([*lines, ""]) for lines in self._read_lines())

    def check(self) -> int:
        """Reads the whole file and returns the number of its lines.

        Raises:
          UserError: if the file is empty, not UTF-8 text with line feeds, or has a line that is too long.
        """
        if not self.content.is_clean:
            for _ in self._read_lines():  # raises an error with the number of the line
                pass
        return self.content.lines

    def decode(self) -> str:
        """Returns the whole text, without a byte-order mark.

        Raises:
          UserError: if the file is not UTF-8 text.
        """
        with self.open() as file:
            content = file.read(SAMPLE_BYTES)
            if problem := find_problem(content, {b"\0": NULS}):  # before a large file is in memory
                raise UserError(f"{self.path} {problem}.")
            content += file.read()
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            number = content.count(b"\n", 0, error.start) + 1
            raise self.error(number, f"is not UTF-8 ({error.reason}): {CONVERT}") from None

    @property
    def content(self) -> Content:
        """The findings of one pass over the file. They are kept, so that the file is read once.

        Raises:
          UserError: if the file is damaged or was written to after this object was made.
        """
        key = self.path, *self._version
        if key not in CONTENTS:
            CONTENTS[key] = self._read_content()
        return CONTENTS[key]

    def error(self, number: int, problem: str, unit: str = "line") -> UserError:
        """Returns the error of a line or of another unit of the file, counted from 1."""
        return UserError(f"{unit.capitalize()} {number:,} of {self.path} {problem}.")

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Yields the unpacked file, from its beginning.

        Raises:
          UserError: if the file is damaged, or was written to after this object was made.
        """
        self._check_unchanged()
        with (
            io.BufferedReader(open_object(self.path) or io.FileIO(self.path), BLOCK_BYTES) as content,
            unpack(content, self.path, os.path.getsize(self.path)) as file,
        ):
            yield file
        self._check_unchanged()

    def _read_content(self) -> Content:
        """Reads the file in a way that is several times faster than reading its lines."""
        digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
        line_ends, last, is_clean = 0, b"", False
        with self.open() as file:
            while block := file.read(SAMPLE_BYTES):
                digest.update(block)
                line_ends_of_block = block.count(b"\n")
                is_clean = is_clean if last else not find_problem(block)
                is_clean = is_clean and line_ends_of_block > 0 and _decodes(decoder, block)
                line_ends, last = line_ends + line_ends_of_block, block[-1:]
        is_clean = is_clean and _decodes(decoder, b"", final=True)
        return Content(line_ends + (last not in (b"", b"\n")), is_clean, digest.hexdigest())

    def _read_lines(self) -> Iterator[list[str]]:
        """Yields the lines, many at a time, because decoding and splitting each line takes longer."""
        number = 1  # of the first line that is not yet read
        for block in self._read_blocks():
            try:
                lines = block.decode("utf-8").split("\n")
            except UnicodeDecodeError as error:
                bad_line = number + block.count(b"\n", 0, error.start)
                raise self.error(bad_line, f"is not UTF-8 ({error.reason}): {CONVERT}") from None
            if number == 1:
                lines[0] = lines[0].removeprefix("\ufeff")
            yield lines
            number += len(lines)
        if number == 1 and not self._may_be_empty:
            raise UserError(f"{self.path} is empty: expected {self._expected}.")

    def _read_blocks(self) -> Iterator[bytes]:
        """Yields blocks of whole lines, without the last line end of each block."""
        number, rest = 1, b""
        size = min(BLOCK_BYTES, self._max_line_bytes)  # only the first line of a block can be too long
        with self.open() as file:
            while block := file.read(size):
                if number == 1 and not rest and (problem := find_problem(block[:SAMPLE_BYTES])):
                    raise UserError(f"{self.path} {problem}.")
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
        """Raises a UserError if the file was written to or replaced after this object was made.

        Otherwise, a cache could have the tokens of another content than its fingerprint.
        """
        if _identify(os.stat(self.path)) != self._version:
            raise UserError(
                f"{self.path} changed while it was read: start again, and do not write to data files while "
                "they are in use."
            )


class _Unpacked(io.RawIOBase):
    """A reader of an unpacked file that raises a UserError if the file is far larger than its packed size."""

    def __init__(self, file: Any, path: str, packed: int):
        self._file, self._path, self._packed = file, path, packed
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._count += count
        check_unpacked(self._path, self._count, self._packed)
        return count


def check_unpacked(path: str, unpacked: int, packed: int) -> None:
    """Raises a UserError if a packed file of texts unpacks to much more than any text does.

    Otherwise, a file of some megabytes could keep a command busy for hours.
    """
    if unpacked > max(MAX_SMALL_BYTES, MAX_UNPACKED_RATIO * packed):
        raise UserError(
            f"Expected {path} ({packed:,} bytes) to unpack to at most {MAX_UNPACKED_RATIO} times its size, "
            "got more. Check the file, or unpack it."
        )


def find_problem(block: bytes, signs: Mapping[bytes, str] = SIGNS) -> str:
    """Returns why the first bytes of a file are no text, "" if they may be.

    Args:
      block: the first bytes.
      signs: {expression: the problem if it occurs more often than line feeds}.
    """
    if block.startswith(ZIP):
        return "is a zip archive: unpack it (unzip), and name the files in it"
    for magic, ending in MAGIC.items():
        if block.startswith(magic):
            return f"is a compressed file: add the ending {ending} to its name"
    line_feeds = block.count(b"\n")
    return next((signs[sign] for sign in signs if len(re.findall(sign, block)) > line_feeds), "")


def is_markup(beginning: bytes) -> bool:
    """Returns whether a file begins with a declaration of XML, a doctype, or a root tag in `MARKUP`.

    Args:
      beginning: the first bytes of the file. They may be UTF-16.
    """
    plain = beginning[:SAMPLE_BYTES].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")
    return bool(MARKUP.match(plain.decode("utf-8", errors="replace")))


def find_markup(line: str) -> str:
    """Returns why a file with this first line has no sentences on its lines, "" if it may have."""
    if not MARKUP.match(line):
        return ""
    return (
        "is SGML or XML, whose tags are no text: end its name in .tmx, .xml or .sgm, and give this name with "
        "data.kind=text. Write texts of other forms into a file, one on each line"
    )


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, final: bool = False) -> bool:
    """Returns whether the next bytes of a text are UTF-8."""
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True


def _identify(state: os.stat_result) -> tuple[int, ...]:
    """Returns two numbers that identify a file, and two that change when the file is written to."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


@contextlib.contextmanager
def unpack(content: BinaryIO | io.BufferedReader, path: str, packed: int) -> Iterator[BinaryIO]:
    """Yields the unpacked content of an open file. The ending of its path says how it is compressed.

    Args:
      content: the file.
      path: its path.
      packed: its size in bytes.

    Raises:
      UserError: if the content is damaged, unpacks to far more than its size, or is compressed in another way
        than the ending says.
    """
    start = content.peek(BLOCK_BYTES) if isinstance(content, io.BufferedReader) else b""
    found = next((ending for magic, ending in MAGIC.items() if start.startswith(magic)), "")
    if compression(path) and found and found != compression(path):
        raise UserError(
            f"{path} has the content of a {found} file. Rename it, so that its name ends in {found}."
        )
    try:
        with OPENERS[compression(path)](content) as file:
            limited = io.BufferedReader(_Unpacked(file, path, packed), BLOCK_BYTES)
            yield limited if compression(path) else file
    except (*DAMAGE, OSError) as error:  # bz2 raises an OSError without a number
        if (isinstance(error, OSError) and error.errno) or not compression(path):
            raise
        raise UserError(f"{path} does not unpack ({error}): it may be cut short; fetch it again.") from None


def compression(path: str) -> str:
    """Returns the ending of a compressed file in small letters, such as ".gz", otherwise ""."""
    ending = os.path.splitext(path)[1].lower()
    return ending if ending in OPENERS else ""


def find_file(path: str) -> str:
    """Returns the path of the file of this name, or of its compressed form.

    Args:
      path: the path without the ending of a compressed file. The name may have another Unicode form than on
        the disk.

    Raises:
      MissingFile: if nothing has the name.
      UserError: if a folder, a pipe, a device or a broken link has the name.
      OSError: an error of the system.
    """
    other = ""
    path = find_spelling(path, ENDINGS)
    for name in (path + ending for ending in ENDINGS):
        try:
            if stat.S_ISREG(os.stat(name).st_mode):
                return name
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.islink(name):
                continue
        other = name
    if other:
        raise UserError(f"Expected a file at {other}, got a folder, pipe, device or broken link: {ADVICE}.")
    raise MissingFile(f"Expected the file {path} (or {path}.gz, {path}.xz), but there is none: {ADVICE}.")


def exists(path: str, endings: Sequence[str] = ENDINGS) -> bool:
    """Returns whether something has the name with one of the endings: a file, a folder or a broken link."""
    return any(os.path.lexists(path + ending) for ending in endings)


def find_spelling(path: str, endings: Sequence[str]) -> str:
    """Returns the path in the Unicode form that the disk has, or `path` if there is no file.

    For the names that differ, see `spell_path`.
    """
    folder, name = os.path.split(path)
    folder = spell_path(folder)
    path = os.path.join(folder, name)
    if name.isascii() or exists(path, endings) or not os.path.isdir(folder or os.curdir):
        return path
    composed = unicodedata.normalize("NFC", name)
    for entry in sorted(os.listdir(folder or os.curdir)):
        for ending in endings:
            stem = entry.removesuffix(ending)
            if entry.endswith(ending) and unicodedata.normalize("NFC", stem) == composed:
                return os.path.join(folder, stem)
    return path


def require_folder(directory: str) -> None:
    """Checks that the folder of the data exists; "" is the current folder.

    Raises:
      UserError: if the folder does not exist.
    """
    if directory and not os.path.isdir(directory):
        raise UserError(
            f"Expected a folder of text files at {directory}, but there is none: set data.directory."
        )


def expand_names(directory: str, name: str, endings: Sequence[str] = ENDINGS) -> list[str]:
    """Returns the paths that a split's name stands for, without their endings.

    Only patterns are looked up. The path of any other name is returned whether or not there is such a file.

    Args:
      directory: folder of the files; "" is the current folder.
      name: names or patterns between commas. Patterns have *, ? or [...], and ** matches any number of
        folders. The files of a pattern are in the order of their names. If a file has the whole text, commas
        and all, as its name, it is that file.
      endings: the endings that a file may have, such as ".en.gz".

    Raises:
      UserError: if the folder is missing, a pattern fits no file or searches a folder that cannot be read, or
        a file is named twice.
    """
    directory = spell_path(directory)
    require_folder(directory)
    whole = find_spelling(os.path.join(directory, name), endings)
    if exists(whole, endings):
        return [whole]
    paths: list[str] = []
    for part in map(str.strip, name.split(",")):
        path = find_spelling(os.path.join(directory, part), endings)
        if exists(path, endings) or not glob.has_magic(part):
            paths.append(path)
            continue
        pattern = os.path.join(glob.escape(directory), part)
        patterns = [pattern + ending for ending in endings]
        for each in patterns:
            _check_searched_folders(each)
        matches = (match for each in patterns for match in glob.glob(each, recursive=True))
        files = itertools.filterfalse(os.path.isdir, matches)
        stems = {match.removesuffix(max(filter(match.endswith, endings), key=len)) for match in files}
        if not stems:
            raise UserError(f"No file has a name such as {path}{endings[0]}: {ADVICE}.")
        paths += sorted(stems)
    if len(set(map(os.path.realpath, paths))) < len(paths):  # x.txt and ./x.txt are one file
        raise UserError(f"The split {name!r} has a file that is named more than once: name each file once.")
    return paths


def _check_searched_folders(pattern: str) -> None:
    """Checks that each folder that a pattern searches can be read. `glob` leaves the others out silently.

    Raises:
      UserError: if a folder cannot be read.
    """
    parts = pattern.split(os.sep)
    start = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    for index in range(start, len(parts)):
        end = index + (parts[index] == "**")  # searches the folders that it matches
        folders = os.sep.join([*parts[:end], ""])
        for folder in glob.glob(folders or os.curdir, recursive=True):
            try:
                os.stat(os.path.join(folder, os.curdir))
                if glob.has_magic(parts[index]):
                    os.scandir(folder).close()
            except OSError as error:
                raise UserError(
                    f"The pattern {pattern} searches the folder {folder}, which cannot be read "
                    f"({error.strerror}). Change its permissions, or use a pattern without this folder."
                ) from None
