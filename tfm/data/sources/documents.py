"""Documents of text files: whole files, paragraphs or lines."""

import re
from collections.abc import Iterator

from tfm.data.source import Row, Source, hash_rows
from tfm.data.sources.text_files import TextFile, expand_names, find_file


def open_files(directory: str, name: str, unit: str, separator: str = "") -> Source:
    """Returns the documents of text files. One file is in memory at a time.

    Args:
      directory: folder of the files; "" is the current folder.
      name: the names of the files; see `expand_names`.
      unit: "file", "paragraph" or "line". Documents without text are left out.
      separator: text between two documents. If it is not empty, `unit` is ignored.

    Raises:
      UserError: if a file is missing.
    """
    files = [TextFile(find_file(path), "text") for path in expand_names(directory, name)]

    def read() -> Iterator[Row]:
        for file in files:
            yield from ((text,) for text in _split(file.decode(), unit, separator))

    return Source(read, lambda: f"documents-{hash_rows(read())}")


def _split(text: str, unit: str, separator: str) -> list[str]:
    """Returns the documents of a file, without those that are blank."""
    if unit == "file" and not separator:
        return [text] if text.strip() else []
    pattern = re.escape(separator) or {"line": r"\n", "paragraph": r"\n\s*\n"}[unit]
    parts = re.split(pattern, text)
    return [part.strip("\r\n") for part in parts if part.strip()]
