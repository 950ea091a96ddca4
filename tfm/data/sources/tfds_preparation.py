"""Writes TFDS data sets to disk atomically; several processes may do so at the same time."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def write_data_set(root: str, folder: str) -> Iterator[str]:
    """A new data_dir inside `root`; its data set becomes `folder` when the context ends well.

    Else nothing is left that was not there before. Where another process was first, its data set stays.

    Args:
      root: TFDS's data_dir; made if absent.
      folder: of the data set, below `root`.

    Raises:
      OSError: `root` cannot be written.
    """
    made = _make_folders(root)
    try:
        temporary = tempfile.mkdtemp(prefix="preparing-", dir=root)
        try:
            yield temporary
            _move_into_place(os.path.join(temporary, os.path.relpath(folder, root)), folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    finally:
        for path in reversed(made):  # those that are still empty
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _make_folders(path):
    """Makes a folder and those above it; returns the paths of the new ones, the outermost first."""
    path, absent = os.path.abspath(path), []
    while not os.path.lexists(path):
        absent.append(path)
        path = os.path.dirname(path)
    for each in reversed(absent):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each)
    return absent[::-1]


def _move_into_place(written, folder):
    """Gives a written data set its place, unless another process was first."""
    above = os.path.dirname(folder)
    os.makedirs(above, exist_ok=True)
    settings = os.path.join(os.path.dirname(os.path.dirname(written)), ".config")  # names the default config
    with contextlib.suppress(OSError):
        os.rename(settings, os.path.join(os.path.dirname(above), ".config"))
    try:
        os.rename(written, folder)
    except OSError:
        if not os.path.isdir(folder):
            raise
