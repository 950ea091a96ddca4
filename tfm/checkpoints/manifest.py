"""The manifest of a checkpoint or an export: size and SHA-256 of its files, so that damage is found in time.

Its first line is the checksum of its second, which is JSON: {path below the folder: [size, checksum]}.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable

FILE = "manifest"
ITEM = "progress"  # every checkpoint with a manifest has this item, and no older one has
HEADER = "_CHECKPOINT_METADATA"
LATER = (HEADER, "commit_success.txt")  # Orbax writes these two behind the manifest
SMALL = 1 << 20
DAMAGE = (errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)  # what a damaged disk or copy answers
LARGEST = 1 << 24  # bytes of a manifest; that of a checkpoint with 10,000 files takes less than two million


class Damaged(Exception):
    """How a checkpoint or an export differs from what was written; part of an error message."""


def write(folder: str, *, names: Iterable[str] | None = None) -> None:
    """Writes the manifest of a folder, which gets its own name afterwards.

    Args:
      folder: of a step, or an export.
      names: of the files to list; all of a step when None.
    """
    names = _names(folder) if names is None else sorted(names)
    entries = {name: _entry(os.path.join(folder, name)) for name in names}
    body = json.dumps(entries).encode()
    with open(os.path.join(folder, FILE), "wb") as file:
        file.write(_checksum(body) + b"\n" + body)


def check(folder: str, *, whole: bool = True) -> bool:
    """Compares the files of a step with its manifest.

    Args:
      folder: of the step.
      whole: False takes files above `SMALL` bytes at their size.

    Returns:
      True; False where the step is from before there were manifests, and cannot be verified.

    Raises:
      Damaged: a file is missing, added or another one.
      OSError: the files cannot be read, which is no damage of theirs.
    """
    with _missing_is_damage(folder):
        items = _items(folder)
        if not os.path.exists(os.path.join(folder, FILE)) and ITEM not in items:
            return False
        expected = _read(folder)
        names = _names(folder)
        if set(names) != set(expected):
            name = min(set(names) ^ set(expected))
            raise Damaged(f"{name} is missing" if name in expected else f"{name} does not belong to it")
        _compare(folder, expected, whole)
    return True


def check_listed(folder: str) -> None:
    """Compares the files that the manifest of an export lists with it; beside them there may be others.

    Raises:
      Damaged: one is missing or another one, or there is no manifest.
      OSError: as `check`.
    """
    with _missing_is_damage(folder):
        expected = _read(folder)
        for name in expected:
            if os.path.basename(name) != name:  # an export may be a stranger's, and has no folders
                raise Damaged(f"{FILE} names a file elsewhere, {name}")
        _compare(folder, expected, whole=True)


@contextlib.contextmanager
def _missing_is_damage(folder):
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(f"{os.path.relpath(error.filename, folder)} is missing") from None
    except OSError as error:
        # Any other error, such as too many open files, says nothing about the file.
        if error.errno not in DAMAGE:
            raise
        raise Damaged(f"{error.filename} cannot be read: {error.strerror}") from None


def _compare(folder, expected, whole):
    for name, (size, checksum) in expected.items():
        path = os.path.join(folder, name)
        if os.path.getsize(path) != size:
            raise Damaged(f"{name} has {os.path.getsize(path):,} bytes of {size:,}")
        if (whole or size <= SMALL) and _entry(path) != [size, checksum]:
            raise Damaged(f"{name} has another checksum")


def _names(folder):
    """Returns the paths of all files of a step except the manifest and the files that are written after it.

    Raises:
      OSError: if a folder cannot be listed.
    """
    found = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder, onerror=_raise)
        for name in names
    ]
    return sorted(set(found) - {FILE, *LATER})


def _raise(error):
    raise error


def _entry(path):
    with _open(path) as file:
        return [os.path.getsize(path), hashlib.file_digest(file, "sha256").hexdigest()]


def _open(path):
    """Opens a file to read; to open a pipe would wait for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Damaged(f"{os.path.basename(path)} is no file")
    return open(path, "rb")


def _checksum(content):
    return hashlib.sha256(content).hexdigest().encode()


def _read(folder):
    """The entries of a manifest, whose first line is the checksum of the rest."""
    with _open(os.path.join(folder, FILE)) as file:
        content = file.read(LARGEST + 1)
    checksum, _, body = content.partition(b"\n")
    if len(content) > LARGEST or checksum != _checksum(body):
        raise Damaged(f"{FILE} does not have its own checksum")
    try:
        entries = json.loads(body)
        return {str(name): [int(size), str(checksum)] for name, (size, checksum) in entries.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):  # not written by `write`
        raise Damaged(f"{FILE} does not list files") from None


def _items(folder):
    """The names of a step's items, as Orbax's header tells; it is in no manifest, so it is read with care."""
    with _open(os.path.join(folder, HEADER)) as file:
        content = file.read()
    try:
        header = json.loads(content)
        times = header["init_timestamp_nsecs"], header["commit_timestamp_nsecs"]
        items = list(header["item_handlers"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{HEADER} does not parse") from None
    if not all(type(time) is int and 0 < time < 1 << 63 for time in times):
        raise Damaged(f"{HEADER} does not tell when it was written")
    return items
