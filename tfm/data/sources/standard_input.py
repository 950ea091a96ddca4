"""Standard input as a split: kept in a file that is named after its content."""

import dataclasses
import hashlib
import os
import uuid
from typing import Any, BinaryIO

from tfm.data.config import PIPE, SPLITS
from tfm.errors import UserError
from tfm.io.files import atomic_file, clean_folder

CHUNK = 1 << 24
RESUME = (
    "A run that has begun needs --config=WORKDIR/config.json, because this file contains the name of the "
    "file with its rows."
)


def store_pipe(data: Any, stream: BinaryIO) -> Any:
    """Returns a data section whose split "-" is replaced by a file with the content of a stream.

    The file is below `data.cache`, and its name depends only on its content. A run therefore resumes without
    a pipe, and other data give another config. Without a split "-", returns the section itself.

    Args:
      data: a section of any task; its kind must be "table".
      stream: is read to its end.

    Raises:
      UserError: if several splits are "-", the data are no table, the stream is a terminal or empty, or the
        file cannot be written.
    """
    chosen = [split for split in SPLITS if getattr(data, split, None) == PIPE]
    if not chosen:
        return data
    if len(chosen) > 1 or data.kind != "table":
        raise UserError(
            f"data.{chosen[-1]}={PIPE} reads standard input. Expected at most one such split of "
            f"data.kind=table, got {', '.join(chosen)} of data.kind={data.kind}."
        )
    if stream.isatty():
        raise UserError(f"data.{chosen[0]}={PIPE} reads standard input, but it is a terminal. {RESUME}")
    path = _store(stream, os.path.join(data.cache, "pipes"), data.format or "tsv")
    return dataclasses.replace(data, **{chosen[0]: path})


def _store(stream, folder, form):
    """Writes a stream into a file and returns the path of the file."""
    incoming, digest = os.path.join(os.path.abspath(folder), uuid.uuid4().hex), hashlib.sha256()
    with clean_folder(folder):
        with atomic_file(incoming) as file:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
            if not file.tell():
                raise UserError(f"Standard input is empty. Expected the rows of a table. {RESUME}")
        path = os.path.join(os.path.dirname(incoming), f"{digest.hexdigest()[:32]}.{form}")
        os.replace(incoming, path)
    return path
