"""Files of word vectors in the text and binary form of word2vec, and in the text form of GloVe.

    word2vec, text      a header line "V D", then V lines "word x1 ... xD"
    word2vec, binary    the same header, then for each word its text, a space, D float32 values, a line feed
    GloVe, text         lines "word x1 ... xD" without a header

The words of word2vec's files are ordered by their frequency.
"""

import codecs
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from tfm.data.sources.text_files import TextFile
from tfm.errors import UserError

EXPECTED = "word vectors in the form of word2vec (text or binary) or GloVe (text)"
HEADER = re.compile(rb"\s*(\d{1,10}) (\d{1,7})\s*")
MAX_ROW_BYTES = 1 << 24
MAX_WORD_BYTES = 1 << 12  # in a binary file
log = logging.getLogger(__name__)


class WordVectorsFile(NamedTuple):
    """The content of a file.

    Attributes:
      words: V different words.
      vectors: float32 [V, D].
    """

    words: list[str]
    vectors: np.ndarray


def write_text(path: str, words: Sequence[str], vectors: np.ndarray, *, header: bool) -> None:
    """Writes vectors as text, in the form of word2vec with a header, or of GloVe without one.

    Nine digits are enough to read the same float32 values again.
    """
    row = " ".join(["%s", *["%.9g"] * vectors.shape[1]]) + "\n"
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        if header:
            file.write(f"{vectors.shape[0]} {vectors.shape[1]}\n")
        for word, vector in zip(words, vectors, strict=True):
            file.write(row % (word, *vector.tolist()))


def write_binary(path: str, words: Sequence[str], vectors: np.ndarray) -> None:
    """Writes vectors in the binary form of word2vec."""
    with open(path, "wb") as file:
        file.write(f"{vectors.shape[0]} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, np.asarray(vectors, "<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")


def read_vectors(path: str) -> WordVectorsFile:
    """Returns the words and vectors of a file, whose form its content decides. It may be compressed.

    The first of several equal words counts. Empty words are left out, and a warning counts what was left out.
    A word may have white space other than spaces and line feeds. In the text form, a word may also have
    spaces if the file has a header or the first word has none. Bytes that are not UTF-8 become U+FFFD.

    Raises:
      UserError: if the file has another form, or a value is not finite. The message has the number of the
        line or the row.
    """
    file = TextFile(path, EXPECTED)
    with file.open() as content:
        first = content.readline(MAX_ROW_BYTES).removeprefix(codecs.BOM_UTF8)
        header = HEADER.fullmatch(first)
        if header:
            count, width = int(header[1]), int(header[2])
            if not count or not width:
                raise file.error(1, f"announces {count:,} words of {width:,} values: expected at least one")
            start = content.readline(MAX_ROW_BYTES)
            if _is_text_row(start, width):
                lines = itertools.chain([start], _read_lines(content))
                return _collect(file, _parse_rows(file, lines, 2, width), width, count)
            rows = _read_binary(file, content, start, width, count)
            return _collect(file, rows, width, count)
        width = len(first.split()) - 1
        if width < 1 or not _is_text_row(first, width):
            raise file.error(1, f"is no header and no word with its values: expected {EXPECTED}")
        lines = itertools.chain([first], _read_lines(content))
        return _collect(file, _parse_rows(file, lines, 1, width), width, None)


def _is_text_row(line: bytes, width: int) -> bool:
    """Returns whether a line has a word and then `width` numbers."""
    fields = line.rstrip().split(b" ")
    try:
        return len(fields) > width and bool(list(map(float, fields[-width:])))
    except ValueError:
        return False


def _read_lines(content: BinaryIO) -> Iterator[bytes]:
    while line := content.readline(MAX_ROW_BYTES):
        yield line


def _parse_rows(
    file: TextFile, lines: Iterator[bytes], first: int, width: int
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yields the word and the vector of each line of text."""
    for number, line in enumerate(lines, first):
        fields = line.rstrip(b" \t\r\n").split(b" ")
        if fields == [b""]:
            continue
        if len(fields) <= width:
            raise file.error(number, f"has {len(fields) - 1:,} values: expected a word and {width:,} numbers")
        try:
            vector = np.array(list(map(float, fields[-width:])), np.float32)
        except ValueError:
            raise file.error(
                number, f"has a value that is no number: expected a word and {width:,} numbers"
            ) from None
        yield b" ".join(fields[:-width]), vector


def _read_binary(
    file: TextFile, content: BinaryIO, unread: bytes, width: int, count: int
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yields the word and the vector of each row of a binary file after its header.

    Args:
      file, content: the file.
      unread: the bytes after the header that were read already.
      width: values of a vector, D.
      count: number of rows.
    """
    size = 4 * width
    position = 0  # of the next row; a slice of the rest for each row would take hours for large files
    for number in range(1, count + 1):
        while (space := unread.find(b" ", position)) < 0 or len(unread) < space + 1 + size:
            block = content.read(max(MAX_ROW_BYTES, size))
            if not block or (space < 0 and len(unread) - position > MAX_WORD_BYTES):
                raise UserError(
                    f"Row {number:,} of {file.path} is damaged or cut short: the header announces {count:,} "
                    f"words of {width:,} values. Fetch the file again."
                )
            unread = unread[position:] + block
            position = 0
        end = space + 1 + size
        yield unread[position:space].lstrip(b"\n"), np.frombuffer(unread[space + 1 : end], "<f4")
        position = end


def _collect(
    file: TextFile, rows: Iterator[tuple[bytes, np.ndarray]], width: int, count: int | None
) -> WordVectorsFile:
    """Returns the words and vectors of all rows. Leaves out empty words and words that occur again."""
    numbers: dict[str, int] = {}
    vectors, row_count = [], 0
    for content, vector in rows:
        row_count += 1
        if not np.isfinite(vector).all():
            raise UserError(f"Row {row_count:,} of {file.path} has a value that is not finite: {content!r}.")
        word = content.decode("utf-8", "replace")
        if word and word not in numbers:
            numbers[word] = len(numbers)
            vectors.append(vector)
    if count is not None and row_count != count:
        raise UserError(
            f"The header of {file.path} announces {count:,} words, but the file has {row_count:,}. Fetch the "
            "file again."
        )
    if row_count > len(vectors):
        log.warning(
            "Left out %s of %s rows, whose word is empty or equals an earlier word",
            f"{row_count - len(vectors):,}",
            f"{row_count:,}",
        )
    return WordVectorsFile(list(numbers), np.array(vectors, np.float32).reshape(-1, width))
