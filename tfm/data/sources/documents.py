"""Texts of one language: from files, tables, Hugging Face, TFDS or the standard library."""

import re
from collections.abc import Iterator, Sequence

from tfm.data.config import SPLITS, DocumentsConfig
from tfm.data.data_errors import MissingFile, raise_all
from tfm.data.source import Row, Source, hash_rows, hold
from tfm.data.sources import huggingface, tables, tfds
from tfm.data.sources.splits import find_name, find_split_problems
from tfm.data.sources.tables import TableOptions
from tfm.data.sources.text_files import OPENERS, TextFile, expand_names, find_file
from tfm.errors import UserError

ADVICE = "check data.directory and the name of the split"


def open_documents(config: DocumentsConfig, split: str) -> Source:
    """Returns the documents of a split, as rows of one text.

    Args:
      config: where the documents are.
      split: "train", "validation" or "test", for the name in the config; any other name is taken as it is.

    Raises:
      UserError: if the documents are missing, unusable or have no text.
    """
    name = find_name(config, split)
    documents = _open(config, name)
    if not any(text for (text,) in documents):
        raise UserError(f"The split '{name}' of the data has no text: check the data.")
    return documents


def check_documents(config: DocumentsConfig, splits: Sequence[str] = SPLITS) -> None:
    """Opens all splits, before work is put into one; a test split by its default name may be missing.

    Raises:
      UserError: its message lists all problems.
    """
    problems = []
    if config.kind == "builtin" and config.directory:
        problems.append(
            "data.kind is 'builtin', whose texts come with Python, and data.directory is "
            f"{config.directory}: set data.kind=text or another to read it, or leave data.directory out."
        )
    raise_all([*problems, *find_split_problems(config, splits, _find_problems)])


def _find_problems(config: DocumentsConfig, split: str) -> list[str]:
    open_documents(config, split)
    return []


def _open(config: DocumentsConfig, name: str) -> Source:
    columns = (config.feature,)
    if config.kind == "table":
        return tables.open_tables(config.directory, name, TableOptions(columns, config.format, str.strip))
    if config.kind == "huggingface":
        return huggingface.open_dataset(config.name, config.directory, name, columns, str.strip)
    if config.kind == "tfds":
        return tfds.open_records(config.name, config.directory, name, columns)
    if config.kind == "builtin":
        return _open_builtin(config.name, name)
    return _open_files(config, name)


def _open_builtin(name, split):
    from tfm.datasets.pydoc_topics import SPLITS, documents

    if split not in SPLITS:
        raise MissingFile(f"The builtin data set {name} has the splits {', '.join(SPLITS)}, got {split!r}.")
    rows = [(text,) for text in documents(split)]
    return hold(rows, f"documents-{hash_rows(rows)}")


def _open_files(config: DocumentsConfig, name: str) -> Source:
    """Opens the documents of text files. One file is in memory at a time."""
    paths = expand_names(config.directory, name, list(OPENERS))
    files = [TextFile(find_file(path, ADVICE), "text") for path in paths]

    def read() -> Iterator[Row]:
        for file in files:
            if not file.content.lines:
                continue
            file.require_text()
            yield from ((text,) for text in _split(_read_text(file), config.documents))

    return Source(read, lambda: f"documents-{hash_rows(read())}")


def _read_text(file: TextFile) -> str:
    with file.open() as opened:
        content = opened.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file.path} is not UTF-8 ({error.reason} at byte {error.start:,}): convert it to UTF-8."
        ) from None


def _split(text: str, kind: str) -> list[str]:
    """Returns the documents of a file, without those that are blank."""
    if kind == "file":
        return [text] if text.strip() else []
    parts = text.split("\n") if kind == "line" else re.split(r"\n\s*\n", text)
    return [part.strip("\r\n") for part in parts if part.strip()]
