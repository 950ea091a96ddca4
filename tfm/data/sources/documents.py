"""Documents of text files: whole files, paragraphs or lines."""

import json
import logging
import os
from collections.abc import Iterable, Iterator

from tfm.data.source import Row, Source, hash_text
from tfm.data.sources.text_files import TextFile, expand_names, find_file

LARGE_DOCUMENT_BYTES = 1 << 27  # of a file that is one document
MAX_LINE_BYTES = 1 << 26  # as for a row of a table
EXPECTED = "shorter lines, or data.documents=file for a text without line ends"
log = logging.getLogger(__name__)


def open_files(directory: str, name: str, unit: str, separator: str = "") -> Source:
    """Returns the documents of text files. One document and one block of a file are in memory at a time.

    Args:
      directory: folder of the files; "" is the current folder.
      name: the names of the files; see `expand_names`.
      unit: "file", "paragraph", "line" or "each_line". Documents without text are left out, except for
        "each_line".
      separator: text between two documents. If it is not empty, `unit` is ignored.

    Raises:
      UserError: if a file is missing. Reading the source raises it for a file that is not UTF-8 text.
    """
    files = [
        TextFile(find_file(path), EXPECTED, MAX_LINE_BYTES, may_be_empty=True)
        for path in expand_names(directory, name)
    ]
    if unit == "file" and not separator:
        _warn_of_large_files(files)

    def read() -> Iterator[Row]:
        for file in files:
            yield from ((text,) for text in _split(file, unit, separator))

    def compute_fingerprint() -> str:
        identity = [unit, separator, *(file.content.sha256 for file in files)]
        return f"documents-{hash_text(json.dumps(identity))}"

    return Source(read, compute_fingerprint)


def _split(file: TextFile, unit: str, separator: str) -> Iterator[str]:
    """Yields the documents of a file."""
    if separator:
        texts = _split_at(separator, file.blocks())
    elif unit == "file":
        texts = iter([file.decode()])
    elif unit == "paragraph":
        texts = _join_paragraphs(file)
    else:
        texts = (line.strip("\r\n") for line in file)
    return texts if unit == "each_line" and not separator else (text for text in texts if text.strip())


def _split_at(separator: str, blocks: Iterable[str]) -> Iterator[str]:
    """Yields the parts of a text between separators, without line ends around them."""
    parts: list[str] = []  # of the current document, because joining it for each block would take long
    tail = ""  # the end of the text so far, in which a separator may have begun
    for block in blocks:
        first, *others = (tail + block).split(separator)
        if others:
            yield "".join([*parts, first]).strip("\r\n")
            yield from (text.strip("\r\n") for text in others[:-1])
            parts, first = [], others[-1]
        keep = min(len(separator) - 1, len(first))
        parts.append(first[: len(first) - keep])
        tail = first[len(first) - keep :]
    yield "".join([*parts, tail]).strip("\r\n")


def _join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields the paragraphs of a text. Blank lines separate them."""
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph).strip("\r\n")
            paragraph = []
    yield "\n".join(paragraph).strip("\r\n")


def _warn_of_large_files(files: Iterable[TextFile]) -> None:
    """Warns of files that are so large that nobody wants them to be one document."""
    for file in files:
        size = os.path.getsize(file.path)
        if size > LARGE_DOCUMENT_BYTES:
            log.warning(
                "%s (%s MB) is read as a single document, which needs many times its size of memory. Set "
                "data.documents to line, each_line or paragraph, or data.separator, to read it in parts.",
                file.path,
                f"{size / 1e6:,.0f}",
            )
