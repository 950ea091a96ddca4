"""The manifest of a checkpoint or an export: what it is, and the size and SHA-256 of each of its files.

The first line of a manifest is the SHA-256 of its second line, a JSON object. Its field "files" is
{path in the folder: [bytes, SHA-256]}.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfm.io.files import check_no_pipe, hash_file, is_inner_path, naming_errors, writing

FILE = "manifest"
MAX_BYTES = 1 << 28
# Orbax writes these two files after the manifest. Nothing reads them.
WRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")
# Errors that describe the folder's content. All others, for example EIO, EACCES and EMFILE, describe the
# file system or the process, and the files may be intact.
DAMAGE_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Damaged(Exception):
    """A folder differs from its manifest. The text is a part of an error message."""


def write(folder: str, content: Mapping[str, Any], names: Collection[str] | None = None) -> None:
    """Writes the manifest of a folder to its file `FILE`, durably. Replaces an older manifest.

    Args:
      folder: a checkpoint or an export.
      content: fields of the manifest, for JSON.
      names: files to list, as paths in the folder. None lists all files except `FILE` and `WRITTEN_LATER`.

    Raises:
      UserError: if the manifest cannot be written.
      OSError: if a file of the folder cannot be read.
    """
    names = sorted(_list_files(folder) if names is None else names)
    paths = {name: os.path.join(folder, name) for name in names}
    files = {name: [os.stat(path).st_size, hash_file(path)] for name, path in paths.items()}
    body = json.dumps({**content, "files": files}).encode()
    path = os.path.join(folder, FILE)
    with writing(path), open(path, "wb") as file:
        file.write(_checksum(body) + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())


def read(folder: str) -> dict[str, Any]:
    """Returns the fields of a manifest, including "files". The files that it lists are not read.

    Raises:
      Damaged: if the manifest is missing, differs from its checksum, or has another form. The names of its
        files lead to places in the folder only.
      UserError: if the manifest is a pipe or a device.
      OSError: if the manifest cannot be read.
    """
    path = os.path.join(folder, FILE)
    check_no_pipe(path)
    with _missing_is_damage(folder), naming_errors(path), open(path, "rb") as file:
        checksum, _, body = file.read(MAX_BYTES).partition(b"\n")
    if checksum != _checksum(body):
        raise Damaged(f"{FILE} does not have its own checksum")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not _are_files(content.get("files")):
        raise Damaged(f"{FILE} has a form that tfm does not write")
    return content


def _are_files(files: Any) -> bool:
    """Returns whether a value maps paths in the folder to [bytes, SHA-256]."""
    return isinstance(files, dict) and all(
        is_inner_path(name) and isinstance(entry, list) and [*map(type, entry)] == [int, str]
        for name, entry in files.items()
    )


def check(folder: str, *, exact: bool = True) -> dict[str, Any]:
    """Compares the files of a folder with its manifest.

    Args:
      folder: a checkpoint or an export.
      exact: whether a file that the manifest does not list is damage. The manifest and the files in
        `WRITTEN_LATER` are never damage.

    Returns:
      The fields of the manifest, including "files".

    Raises:
      Damaged: if a file is missing, different or unexpected, or the manifest is damaged.
      UserError: if a file is a pipe or a device.
      OSError: if the files cannot be read. They may be intact.
    """
    content = read(folder)
    expected = content["files"]
    with _missing_is_damage(folder):
        if exact and (differences := _list_files(folder) ^ expected.keys()):
            name = min(differences)
            raise Damaged(f"{name} is missing" if name in expected else f"{name} does not belong to it")
        for name, (size, checksum) in expected.items():
            path = os.path.join(folder, name)
            actual_size = os.stat(path).st_size  # before the file is read, which takes longer
            if actual_size != size:
                raise Damaged(f"{name} has {actual_size:,} bytes instead of {size:,}")
            if hash_file(path) != checksum:
                raise Damaged(f"{name} has another checksum")
    return content


@contextlib.contextmanager
def _missing_is_damage(folder: str) -> Iterator[None]:
    """Raises `Damaged` for one of `DAMAGE_ERRORS` inside."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        name = os.path.relpath(error.filename or folder, folder)
        is_missing = isinstance(error, FileNotFoundError)
        reason = "is missing" if is_missing else f"cannot be read ({error.strerror})"
        raise Damaged(f"{name} {reason}") from None


def _list_files(folder: str) -> set[str]:
    """Returns the paths of all files except the manifest and the files that are written after it.

    Raises:
      OSError: if a folder cannot be listed.
    """
    paths = (
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder, onerror=_raise)
        for name in names
    )
    return set(paths) - {FILE, *WRITTEN_LATER}


def _raise(error: OSError) -> None:
    raise error


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
