"""Paths for Orbax, in which every character is literal, `*` and `[` too."""

import glob
import os

from etils import epath

from tfm.errors import UserError


class _LiteralPath(type(epath.Path())):  # type: ignore[misc]  # etils chooses the class when it runs
    """A path of etils whose own characters are no pattern.

    Orbax merges the files of each process, which it finds by `path.glob("ocdbt.process_*")`; etils joins that
    to the path and gives it to `glob.glob` unescaped. Below a folder named "t[x]" it finds none, and Orbax
    warns and finishes without a merge; below "t*" it finds those of other folders, too.
    """

    def glob(self, pattern):
        for found in glob.glob(os.path.join(glob.escape(os.fspath(self)), pattern)):
            yield type(self)(found)


def orbax_path(folder: str | os.PathLike) -> epath.Path:
    """The path to give to Orbax for `folder`; the paths that Orbax makes from it are literal, too.

    Raises:
      UserError: Orbax would take it for another place, as it reads /gs/NAME as the address of a bucket; or
        TensorStore, below it, cannot take it, as it is not UTF-8 by itself or for Python's locale.
    """
    folder = os.path.abspath(folder)
    try:
        folder.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(
            f"Checkpoints need a path of UTF-8 characters, got {folder!a}: choose another folder, or "
            "set a locale of UTF-8, as by LC_ALL=C.UTF-8."
        ) from None
    path = epath.Path(_LiteralPath(folder))
    if os.fspath(path) != folder:
        raise UserError(f"Orbax would use {os.fspath(path)} in place of {folder}: choose another folder.")
    return path
