"""The manifest of a checkpoint or an export: what it is, and the size and SHA-256 of each of its files.

The first line of a manifest is the SHA-256 of its second line, a JSON object. Its field "files" is
{path in the folder: [bytes, SHA-256]}.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfm.io.files import writing

FILE = "manifest"
# Orbax writes these two files after the manifest. Nothing reads them.
WRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")
MAX_BYTES = 1 << 26  # the manifest of a checkpoint with 100,000 files has less than 20 million bytes
# Errors that describe the folder's content. All others, for example EIO, EACCES and EMFILE, describe the
# file system or the process, and the files may be intact.
DAMAGE_CODES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Damaged(Exception):
    """A folder differs from its manifest. The text is a part of an error message."""


def write(folder: str, content: Mapping[str, Any], names: Collection[str] | None = None) -> None:
    """Writes the manifest of a folder.

    Args:
      folder: a checkpoint or an export.
      content: fields of the manifest, for JSON.
      names: files to list, as paths in the folder. None lists all files.
    """
    names = sorted(_list_files(folder) if names is None else names)
    files = {name: _describe_file(os.path.join(folder, name)) for name in names}
    body = json.dumps({**content, "files": files}).encode()
    path = os.path.join(folder, FILE)
    with writing(path), open(path, "wb") as file:
        file.write(_checksum(body) + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())


def read(folder: str) -> dict[str, Any]:
    """Returns the fields of a manifest. The files that it lists are not read.

    Raises:
      Damaged: if the manifest is missing, differs from its checksum, or was not written by `write`.
      OSError: if the manifest cannot be read.
    """
    with _missing_is_damage(folder), _open(os.path.join(folder, FILE)) as file:
        text = file.read(MAX_BYTES + 1)
    checksum, _, body = text.partition(b"\n")
    if len(text) > MAX_BYTES or checksum != _checksum(body):
        raise Damaged(f"{FILE} does not have its own checksum")
    try:
        content = json.loads(body)
        entries = list(content["files"].values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Damaged(f"{FILE} does not list files") from None
    if not all(isinstance(entry, list) and [type(x) for x in entry] == [int, str] for entry in entries):
        raise Damaged(f"{FILE} does not list files with their size and checksum")
    return content


def check(folder: str, *, exact: bool = True) -> dict[str, Any]:
    """Compares the files of a folder with its manifest.

    Args:
      folder: a checkpoint or an export.
      exact: whether a file that the manifest does not list is damage.

    Returns:
      The fields of the manifest.

    Raises:
      Damaged: if a file is missing, different or unexpected, or the manifest is damaged.
      OSError: if the files cannot be read. They may be intact.
    """
    content = read(folder)
    expected = content["files"]
    with _missing_is_damage(folder):
        if exact and (differences := _list_files(folder) ^ expected.keys()):
            name = min(differences)
            raise Damaged(f"{name} is missing" if name in expected else f"{name} does not belong to it")
        for name, (size, checksum) in expected.items():
            if os.path.isabs(name) or os.pardir in name.split("/"):
                raise Damaged(f"{FILE} names a file elsewhere, {name}")
            _check_file(folder, name, size, checksum)
    return content


def _check_file(folder: str, name: str, size: int, checksum: str) -> None:
    try:
        actual_size = os.stat(os.path.join(folder, name)).st_size
    except ValueError:  # the name contains a NUL character or is not valid Unicode
        raise Damaged(f"{FILE} lists {name!a}, but a file cannot have this name") from None
    if actual_size != size:
        raise Damaged(f"{name} has {actual_size:,} bytes instead of {size:,}")
    if _describe_file(os.path.join(folder, name)) != [size, checksum]:
        raise Damaged(f"{name} has another checksum")


@contextlib.contextmanager
def _missing_is_damage(folder: str) -> Iterator[None]:
    """Raises `Damaged` for an error of `DAMAGE_CODES` inside."""
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE_CODES:
            raise
        name = os.path.relpath(error.filename or folder, folder)
        reason = "is missing" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
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


def _describe_file(path: str) -> list:
    """Returns [bytes, SHA-256] of a file."""
    with _open(path) as file:
        return [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]


@contextlib.contextmanager
def _open(path: str) -> Iterator[io.BufferedReader]:
    """Opens a regular file. Errors inside name the file. Python names no file in errors of reading."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait forever
        raise Damaged(f"{os.path.basename(path)} is not a regular file")
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        error.filename = error.filename or path
        raise


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
