"""Formats of other projects that systems add to `tfm export` and `tfm import`.

A system that has such formats defines them in its module `foreign`:

    EXPORTS    {format: (task, parameters, folder) -> Python code that loads the folder}; writes the files
    IMPORTS    {format: (path) -> (config, {name: array}, {file name: content of an asset})}
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfm.export.importing import write_import
from tfm.family import find_parts

PART = "foreign"  # module of a system
Exporter = Callable[[Any, dict[str, np.ndarray], str], str]
Importer = Callable[[str], tuple[Any, Mapping[str, np.ndarray], Mapping[str, bytes]]]


def find_exporters() -> dict[str, Exporter]:
    """Returns {format: function that writes it} of all systems."""
    return {name: function for part in find_parts(PART) for name, function in part.EXPORTS.items()}


def find_importers() -> dict[str, Importer]:
    """Returns {format: function that reads it} of all systems."""
    return {name: function for part in find_parts(PART) for name, function in part.IMPORTS.items()}


def import_file(path: str, folder: str, *, format: str) -> None:
    """Writes a file of another project as an export.

    Args:
      path: the file.
      folder: the folder to write. It must be empty or not exist.
      format: a format of `find_importers`.

    Raises:
      UserError: if the file is missing or damaged, or the folder cannot be written.
    """
    config, arrays, assets = find_importers()[format](path)
    write_import(config, lambda _: arrays, folder, assets=assets)
