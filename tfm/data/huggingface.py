"""Texts of a data set of Hugging Face's `datasets`, saved on disk or loaded by its name."""

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from tfm.data.text_source import TextSource, iterate
from tfm.errors import UserError, install_extra

DAMAGE = (ValueError, LookupError, RuntimeError)  # what `datasets` raises for a folder with parts missing
DAMAGE_OF_INFO = (AttributeError, TypeError)  # the same for JSON files of another form


class DatasetTexts(TextSource):
    """The rows of a `datasets.Dataset`, whose Arrow files are memory-mapped.

    Args:
      dataset: the data set.
      shown_as: what error messages call it.
      columns: of the texts of a row.
      clean: applied to each text.

    Raises:
      UserError: it has no rows, or not the columns as text.
    """

    def __init__(self, dataset: Any, shown_as: str, columns: Sequence[str], clean: Callable[[str], str]):
        from tfm.data.arrow_tables import find_columns

        self._shown_as, self._clean = shown_as, clean
        self._paths = find_columns(dataset.features.arrow_schema, columns, shown_as)
        if not len(dataset):
            raise UserError(f"{shown_as} has no rows: expected a text in each column.")
        needed = list(dict.fromkeys(path[0] for path in self._paths))
        self._dataset = dataset.select_columns(needed).with_format("arrow")

    def __len__(self):
        return len(self._dataset)

    def read(self, indices: range) -> list[tuple[str, ...]]:
        """The rows of indices that rise."""
        from tfm.data.arrow_tables import read_texts

        # Arrow does not check its files, and reading a damaged file by its offsets can end the process.
        # A slice without a step copies nothing, so it can be checked before it is read.
        try:
            table = self._dataset[indices.start : indices.stop]
            table.validate(full=True)
        except DAMAGE as error:
            raise UserError(f"{self._shown_as} is damaged ({_reason(error)}): save it again.") from None
        rows = read_texts(table, self._paths, range(0, len(table), indices.step), self._shown_as)
        return [tuple(map(self._clean, row)) for row in rows]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identity of the texts, wherever their files are."""
        digest = hashlib.sha256()
        for row in iterate(self):
            for text in row:
                content = text.encode("utf-8")
                digest.update(len(content).to_bytes(8, "little") + content)
        return f"huggingface-{digest.hexdigest()}"


def open_dataset(
    name: str, directory: str, split: str, columns: Sequence[str], clean: Callable[[str], str]
) -> DatasetTexts:
    """The texts of a split.

    Args:
      name: of the data set, with its configuration behind a colon: "wmt/wmt14:de-en".
      directory: a folder that `save_to_disk` has written, or one with such a folder for each split; "" loads
        the data set by its name.
      split: its name.
      columns: of the texts of a row.
      clean: applied to each text.

    Raises:
      UserError: `datasets` is not installed, or it has no such data set, split or columns.
    """
    if not directory and not name:
        raise UserError("Expected the name or the folder of a data set: set data.name or data.directory.")
    if directory:
        dataset, shown_as = _load_saved(directory, split), f"the split '{split}' in {directory}"
    else:
        dataset, shown_as = _load_by_name(name, split), f"the split '{split}' of {name}"
    return DatasetTexts(dataset, shown_as, columns, clean)


def _load_saved(directory, split):
    datasets = _import_datasets()
    folder = os.path.join(directory, split)
    try:
        found = datasets.load_from_disk(folder if os.path.isdir(folder) else directory)
    except (OSError, *DAMAGE, *DAMAGE_OF_INFO) as error:
        if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) is not None:
            raise  # an error of the system; PyArrow's OSErrors for a damaged file have no number
        raise UserError(
            f"Expected a data set that save_to_disk has written in {directory}, but it cannot be read "
            f"({_reason(error)}): check data.directory and the split's name."
        ) from None
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise UserError(f"The data set in {directory} has no split '{split}', but {', '.join(found)}.")
        return found[split]
    if not os.path.isdir(folder):
        raise UserError(
            f"{directory} has one data set without splits: save a DatasetDict, or each split in a folder of "
            "its name."
        )
    return found


def _load_by_name(name, split):
    datasets = _import_datasets()
    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # its own errors are among these
        if getattr(error, "errno", None) is not None:
            raise
        raise UserError(
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
