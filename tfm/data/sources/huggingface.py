"""Data sets of Hugging Face's `datasets`, saved on disk or loaded by name."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from tfm.data.data_errors import MissingFile
from tfm.data.source import CHUNK_ROWS, Source, hash_rows
from tfm.errors import UserError, install_extra

DAMAGE = (ValueError, LookupError, RuntimeError)  # what `datasets` raises for a folder with parts missing
DAMAGE_OF_INFO = (AttributeError, TypeError)  # the same for JSON files of another form
Clean = Callable[[str], str]


def open_dataset(name: str, directory: str, split: str, columns: Sequence[str], clean: Clean) -> Source:
    """Returns the texts of a split, whose Arrow files are memory-mapped.

    Args:
      name: of the data set, with its configuration after a colon: "wmt/wmt14:de-en".
      directory: a folder that `save_to_disk` has written, or one with such a folder for each split; "" loads
        the data set by its name.
      split: its name.
      columns: the columns of the texts of a row.
      clean: applied to each text.

    Raises:
      UserError: if `datasets` is not installed, or has no such data set, split or columns.
    """
    if not directory and not name:
        raise UserError("Expected the name or the folder of a data set: set data.name or data.directory.")
    if directory:
        dataset, shown_as = _load_saved(directory, split), f"the split '{split}' in {directory}"
    else:
        dataset, shown_as = _load_by_name(name, split), f"the split '{split}' of {name}"
    return read_dataset(dataset, shown_as, columns, clean)


def read_dataset(dataset: Any, name: str, columns: Sequence[str], clean: Clean) -> Source:
    """Returns the texts of a `datasets.Dataset` that error messages call `name`; see `open_dataset`."""
    from tfm.data.sources.arrow import find_text_columns, read_texts

    paths = find_text_columns(dataset.features.arrow_schema, columns, name)
    if not len(dataset):
        raise UserError(f"{name} has no rows: expected a text in each column.")
    dataset = dataset.select_columns(list(dict.fromkeys(path[0] for path in paths))).with_format("arrow")

    def read():
        for first in range(0, len(dataset), CHUNK_ROWS):
            # Arrow does not check its files, and reading a damaged file by its offsets can end the process.
            try:
                table = dataset[first : first + CHUNK_ROWS]
                table.validate(full=True)
            except DAMAGE as error:
                raise UserError(f"{name} is damaged ({_reason(error)}): save it again.") from None
            yield from read_texts(table, paths, clean, name)

    return Source(read, lambda: f"huggingface-{hash_rows(read())}", lambda: len(dataset))


def _load_saved(directory, split):
    datasets = _import_datasets()
    folder = os.path.join(directory, split)
    try:
        loaded = datasets.load_from_disk(folder if os.path.isdir(folder) else directory)
    except (OSError, *DAMAGE, *DAMAGE_OF_INFO) as error:
        if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) is not None:
            raise  # an error of the system; PyArrow's OSErrors for a damaged file have no number
        kind = UserError if os.path.isdir(folder) else MissingFile
        raise kind(
            f"Expected a data set that save_to_disk has written in {directory}, but it cannot be read "
            f"({_reason(error)}): check data.directory and the split's name."
        ) from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise MissingFile(f"The data set in {directory} has no split '{split}', but {', '.join(loaded)}.")
        return loaded[split]
    if not os.path.isdir(folder):
        raise MissingFile(
            f"{directory} has one data set without splits: save a DatasetDict, or each split in a folder of "
            "its name."
        )
    return loaded


def _load_by_name(name, split):
    datasets = _import_datasets()
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # its own errors are among these
        if getattr(error, "errno", None) is not None:
            raise
        raise MissingFile(
            f"Hugging Face's datasets cannot load the split '{split}' of {name} ({_reason(error)}): check "
            "data.name, the split's name and the network."
        ) from None


def _reason(error):
    return str(error).strip().split("\n")[0] or type(error).__name__


def _import_datasets():
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"data.kind=huggingface needs the package datasets: {install_extra('datasets')}."
        ) from None
    return datasets
