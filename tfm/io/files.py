"""Atomic files and folders, locks of files, and error messages for I/O errors."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from tfm.errors import UserError

ELSEWHERE = "make it writable, or choose another folder"
CHECK_PATH = "check the path, and whether something moved or deleted it"
ADVICE = {
    errno.ENOSPC: "free some space there and start again",
    errno.EDQUOT: "free some of your quota there and start again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and start again",
    errno.EROFS: ELSEWHERE,
    errno.EACCES: "check the permissions, or choose another folder",
    errno.EPERM: "check the permissions, or choose another folder",
    errno.ENOENT: CHECK_PATH,
    errno.ENOTDIR: CHECK_PATH,
    errno.EISDIR: CHECK_PATH,
    errno.EEXIST: CHECK_PATH,
    errno.ENOTEMPTY: CHECK_PATH,
    errno.ELOOP: CHECK_PATH,
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.EIO: "check the disk",
    errno.ESTALE: "check that the network drive is there",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs",
}
# TensorStore, under Orbax, and array_record put the system's answer into the text of another error.
PATH_IN_MESSAGE = re.compile(r'(?:local file "|; writing )(/[^";]*)')
TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{12}\.tmp$")  # the end of a name that `_temporary_path` makes
log = logging.getLogger(__name__)


def user_cache() -> str:
    """The user's own cache folder of tfm, which may not be there yet.

    Raises:
      UserError: the user has no home folder, as many have none in a container.
    """
    chosen, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(chosen):  # a relative one is to be ignored (XDG Base Directory Specification)
        return os.path.join(chosen, "tfm")
    if not os.path.isabs(home):  # a folder called "~" where the command was started
        raise UserError("There is no home folder for caches: set HOME, XDG_CACHE_HOME, or data.cache_dir.")
    return os.path.join(home, ".cache", "tfm")


def io_error_message(error: BaseException) -> str | None:
    """The error message for an I/O error, or for an error that one caused; None for any other error."""
    code, path = _error_code(error), getattr(error, "filename", None)
    if code not in ADVICE:
        return None
    told = PATH_IN_MESSAGE.search(str(error))
    path = path or (told and told[1]) or "a file or the output"
    return f"Cannot read or write {os.fsdecode(path)}: {os.strerror(code)}; {ADVICE[code]}."


def read_limited(path: str, most: int) -> bytes:
    """The bytes of a file of at most `most` bytes; the size is checked before any is read.

    Raises:
      UserError: it is larger.
      OSError: as `open` raises it.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, which is more than tfm writes ({most:,}): check it.")
        return file.read(size + 1)  # a buffer of `most` bytes would be made at once


def check_entries(folder: str) -> None:
    """Checks that a folder has only files and folders: reading a named pipe would wait for ever.

    Raises:
      UserError: there is something else in it.
    """
    for name in os.listdir(folder):
        check_no_pipe(os.path.join(folder, name))


def check_no_pipe(path: str) -> None:
    """Raises a UserError for a path at which there is neither a file nor a folder nor nothing."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(f"{path} is a pipe, a socket or a device, not a file: move it away.")


def require_space(folder: str, size: int) -> None:
    """Checks the free space before a large write, which may otherwise fail half way with a less clear error.

    Raises:
      UserError: it has fewer than `size` bytes left.
    """
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"Cannot write {size:,} bytes to {folder}: {free:,} are left; {ADVICE[errno.ENOSPC]}."
        )


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns an I/O error inside into an error message that names `path`, as a failed write does not say it.

    Raises:
      UserError: an I/O error.
    """
    try:
        yield
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, ELSEWHERE)
        raise UserError(f"Cannot write {path}: {error.strerror or error}; {advice}.") from error


def open_locked(path: str, flag: str, shown_as: str | None = None) -> BinaryIO:
    """Opens a file to append, made when absent, that no other process has open through this function.

    Args:
      path: of the file. It may be renamed or deleted while it is open, never by another process.
      flag: the option of the command that chooses another file, for the error messages.
      shown_as: path to name in the error messages; `path` when None.

    Returns:
      The binary file. The lock ends when it is closed, however the process ends.

    Raises:
      UserError: another process has it open, it is no file, or an I/O error.
    """
    shown_as = shown_as or path
    check_no_pipe(path)
    while True:
        try:
            file = open(path, "ab")  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            advice = ADVICE.get(error.errno or 0, ELSEWHERE)
            raise UserError(f"Cannot write {shown_as}: {error.strerror}; {advice} ({flag}).") from error
        if not _lock(file):
            file.close()
            raise UserError(
                f"Another process is writing {shown_as}: wait for it, or choose another path ({flag})."
            )
        if _is_same_file(file, path):
            return file
        file.close()  # its last writer renamed or deleted it after it was opened here


@contextlib.contextmanager
def only_writer(path: str, flag: str) -> Iterator[None]:
    """Inside, no other process can use this function for `path`.

    The folder of `path` is made if it does not exist. Inside, there is a file `path`.lock.

    Args:
      path: what is written within, in any way.
      flag: the option of the command that chooses another path, for the error messages.

    Raises:
      UserError: there is another writer, `path` is a folder that is not empty, or its own cannot be written.
    """
    if os.path.isdir(path) and os.listdir(path):
        raise UserError(f"{path} is a folder that is not empty: move it away, or choose another ({flag}).")
    lock = f"{os.path.abspath(path)}.lock"
    with writing(path):
        os.makedirs(os.path.dirname(lock), exist_ok=True)
    with open_locked(lock, flag, shown_as=path):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(lock)


def _lock(file):
    """Whether this process has the lock of an open file now; where there are no locks, a warning and True."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # some network file systems have no locks
        log.warning("Cannot lock %s (%s): make sure that nothing else writes it", file.name, error.strerror)
    return True


def _is_same_file(file, path):
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "wb") -> Iterator[IO]:
    """Yields a file to write, which replaces `path` if the context ends without an error.

    Otherwise it is removed.

    Raises:
      UserError: an I/O error.
    """
    temporary = _temporary_path(path)
    try:
        with writing(path):
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # some file systems tell of a full disk only here
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yields the path of a new folder, which becomes `path` if the context ends without an error.

    Otherwise it is removed. Its files are synced to the disk before it is renamed, so that a loss of power
    cannot leave the name without the content.

    Raises:
      OSError: an I/O error, or something stands at `path` that is no empty folder.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = _temporary_path(path)
    try:
        os.mkdir(temporary)
        yield temporary
        _sync(temporary)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_json_lines(path: str) -> Iterator[Any]:
    """The values of the lines of a file, without those that are no JSON, as one that a kill cut short."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def end_last_line(path: str) -> None:
    """Ends a last line that a kill truncated, so that the next line does not continue it."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


@contextlib.contextmanager
def clean_folder(folder: str) -> Iterator[None]:
    """A context in which to write into `folder`; first it removes the temporary files of killed processes.

    Nothing is removed while another process is in such a context, or if the file system has no locks. The
    folder is made if it does not exist.

    Raises:
      OSError: an I/O error.
    """
    os.makedirs(folder, exist_ok=True)
    # Beside, and never deleted: two processes could then lock two files of one name.
    descriptor = os.open(f"{os.path.abspath(folder)}.lock", os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_temporary(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_temporary(folder: str) -> None:
    """Removes the temporary files and folders of killed processes from a folder that has no other writer."""
    for entry in os.scandir(folder):
        if not TEMPORARY_NAME.search(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def _sync(folder):
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        descriptor = os.open(parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # not every file system does this for folders
            os.fsync(descriptor)
        os.close(descriptor)


def _temporary_path(path):
    """A name for what becomes `path`, in the same folder, that no other process uses."""
    return f"{os.path.abspath(path)}.{uuid.uuid4().hex[:12]}.tmp"


def _error_code(error):
    if isinstance(error, OSError):
        return error.errno
    return next((code for code in ADVICE if os.strerror(code) in str(error)), None)
