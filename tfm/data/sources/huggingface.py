"""Data sets of Hugging Face's `datasets`, saved on disk or loaded by name."""

import os
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from tfm.data.data_errors import MissingFile, damage_error
from tfm.data.source import CHUNK_ROWS, Source, hash_rows
from tfm.data.sources.columns import ListColumns
from tfm.errors import UserError, install_extra
from tfm.io.files import spell_path

# The errors that `datasets` raises for a folder with parts missing, and for JSON files of an unexpected form.
DAMAGE = (OSError, ValueError, LookupError, RuntimeError, AttributeError, TypeError)


def open_dataset(
    name: str,
    directory: str,
    split: str,
    columns: Sequence[str],
    clean: Callable[[str], str],
    labels: Sequence[str] = (),
    lists: ListColumns = MappingProxyType({}),
) -> Source:
    """Returns the texts of a split, whose Arrow files are memory-mapped.

    Args:
      name: name of the data set, with its configuration after a colon: "wmt/wmt14:de-en".
      directory: a folder that `save_to_disk` has written, or a folder that contains such a folder for each
        split. "" loads the data set by its name.
      split: name of the split.
      columns: names of the columns whose texts a row consists of.
      clean: applied to each text.
      labels, lists: see `tfm.data.sources.arrow.find_text_columns`.

    Raises:
      UserError: if `datasets` is not installed, or has no such data set, split or columns.
    """
    from tfm.data.sources.arrow import find_text_columns, read_texts

    shown_as = f"the split '{split}' of {directory or name}"
    loaded = load_split(name, directory, split)
    found = find_text_columns(loaded.features.arrow_schema, columns, shown_as, labels, lists)
    if not len(loaded):
        raise UserError(f"{shown_as} has no rows: expected a text in each column.")
    texts = loaded.select_columns(list(dict.fromkeys(column.path[0] for column in found))).with_format(
        "arrow"
    )

    def read():
        for first in range(0, len(texts), CHUNK_ROWS):
            # Arrow does not check its files, and reading a damaged file by its offsets can end the process.
            try:
                table = texts[first : first + CHUNK_ROWS]
                table.validate(full=True)
            except DAMAGE as error:
                raise damage_error(error, f"{shown_as} is damaged", "save it again") from None
            yield from read_texts(table, found, clean, shown_as)

    return Source(
        read,
        lambda: f"huggingface-{hash_rows(read())}",
        lambda: len(texts),
        locate=lambda row: f"row {row + 1:,} of {shown_as}",
    )


def load_split(name: str, directory: str, split: str) -> Any:
    """Returns a split as a `datasets.Dataset`. For the arguments and errors, see `open_dataset`."""
    if not directory and not name:
        raise UserError("Expected the name or the folder of a data set: set data.name or data.directory.")
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"data.kind=huggingface needs the package datasets: {install_extra('datasets')}."
        ) from None
    return _load_saved(datasets, directory, split) if directory else _load_by_name(datasets, name, split)


def _load_saved(datasets: Any, directory: str, split: str) -> Any:
    """Returns a split of a folder that `save_to_disk` has written."""
    directory = spell_path(directory)
    folder = os.path.join(directory, split)
    has_folders = os.path.isdir(folder)
    try:
        loaded = datasets.load_from_disk(folder if has_folders else directory)
    except DAMAGE as error:
        raise damage_error(
            error,
            f"Expected a data set that save_to_disk has written in {directory}, but it cannot be read",
            "check data.directory and the split's name",
            UserError if has_folders else MissingFile,
        ) from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise MissingFile(f"The data set in {directory} has no split '{split}', but {', '.join(loaded)}.")
        return loaded[split]
    if not has_folders:
        raise MissingFile(
            f"{directory} has one data set without splits: save a DatasetDict, or each split in a folder of "
            "its name."
        )
    return loaded


def _load_by_name(datasets: Any, name: str, split: str) -> Any:
    """Returns a split of a data set that `datasets` finds by its name."""
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, split=split)
    except datasets.exceptions.DatasetGenerationError as error:  # its own text gives no reason
        raise damage_error(
            error.__cause__ or error,
            f"Hugging Face's datasets cannot read the files of {name}",
            "correct the files, or choose another data.name",
        ) from None
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise damage_error(
            error,
            f"Hugging Face's datasets cannot load the split '{split}' of {name}",
            "check data.name, the split's name and the network",
            MissingFile,
        ) from None
