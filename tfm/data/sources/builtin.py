"""Texts that need no file: the built-in language, and the documentation of Python."""

import itertools
from collections.abc import Sequence

from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.data_errors import MissingFile
from tfm.data.source import Row, Source, hash_rows, hold
from tfm.data.sources.tfds import find_parts, make_infos
from tfm.datasets import toy_language
from tfm.errors import UserError

REVERSED = "reversed:"  # before the name of a split whose sides change places


def open_texts(config: PairsConfig | DocumentsConfig, name: str) -> Source:
    """Returns the sentence pairs or documents of a split. Splits of pairs have parts, such as "train[:90%]".

    "reversed:train" has the sources of "train" as targets.

    Raises:
      UserError: if there is no such split or language, or the config names a folder.
    """
    require_no_folder(config)
    if isinstance(config, DocumentsConfig):
        return _open_topics(name)
    split = name.removeprefix(REVERSED)
    columns = config.languages if split == name else config.languages[::-1]
    pairs = _read_columns(split, columns)
    version = f"tfm_language/{toy_language.VERSION}"
    return hold(pairs, f"tfds-{version}-{split}-{len(pairs)}-{'-'.join(columns)}")


def read_feature(split: str, feature: str) -> list[str]:
    """Returns one of "en", "de", "wrong" and "alignment" of each example of a split.

    Raises:
      UserError: if there is no such split or feature.
    """
    return [value for (value,) in _read_columns(split, (feature,))]


def _open_topics(split: str) -> Source:
    from tfm.datasets.pydoc_topics import SPLITS, documents

    if split not in SPLITS:
        raise MissingFile(f"Expected a split out of {', '.join(SPLITS)}, got {split!r}.")
    rows = [(text,) for text in documents(split)]
    return hold(rows, f"documents-{hash_rows(rows)}")


def _read_columns(split: str, columns: Sequence[str]) -> list[Row]:
    """Returns some columns of a split of the language, such as ("en", "de")."""
    known = toy_language.Example._fields
    for column in columns:
        if column not in known:
            raise UserError(f"The built-in language has no {column!r}, but {', '.join(known)}.")
    parts = [(split, slice(None))]
    if split not in toy_language.SIZES:
        parts = find_parts(split, make_infos(toy_language.SIZES), "The built-in language")
    examples = itertools.chain.from_iterable(toy_language.read_examples(name)[part] for name, part in parts)
    return [tuple(getattr(example, column) for column in columns) for example in examples]


def require_no_folder(config: PairsConfig | DocumentsConfig) -> None:
    """Raises a UserError for a folder. A user who gives a folder has probably forgotten `data.kind`."""
    if config.directory:
        raise UserError(
            f"data.kind is {config.kind!r}, whose texts come with tfm, and data.directory is "
            f"{config.directory}: set data.kind=text or another kind to read the folder, or leave "
            "data.directory out."
        )
