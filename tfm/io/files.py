"""Files that are written completely or not at all, locks of files, and messages for I/O errors."""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import unicodedata
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO

from tfm.errors import UserError, first_line

OTHER_FOLDER = "make it writable, or choose another folder"
CHECK_PERMISSIONS = "check the permissions, or choose another folder"
CHECK_PATH = "check the path, and whether something moved or deleted it"
ADVICE = {
    errno.ENOSPC: "free some space there and start again",
    errno.EDQUOT: "free some of your quota there and start again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and start again",
    errno.EROFS: OTHER_FOLDER,
    errno.EACCES: CHECK_PERMISSIONS,
    errno.EPERM: CHECK_PERMISSIONS,
    errno.ENOENT: CHECK_PATH,
    errno.ENOTDIR: CHECK_PATH,
    errno.EISDIR: CHECK_PATH,
    errno.EEXIST: CHECK_PATH,
    errno.ENOTEMPTY: CHECK_PATH,
    errno.ELOOP: "it is a symbolic link, which tfm does not follow there. Replace the link by a file",
    errno.ENODEV: "this file system cannot map files into memory. Copy the folder to another one",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EIO: "check the disk",
    errno.ESTALE: "check that the network drive is connected",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}
# TensorStore (used by Orbax) and array_record write the system's message into the text of another error.
PATH_IN_MESSAGE = re.compile(r'(?:local file "|; writing )(/[^";]*)')
MAX_JSON_LINE = 1 << 24  # characters
TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{12}\.tmp$")  # the end of a name of `_temporary_path`
log = logging.getLogger(__name__)


def user_cache() -> str:
    """Returns the user's cache folder of tfm. The folder may not exist yet.

    Raises:
      UserError: if the user has no home folder, for example in a container.
    """
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(cache):  # the XDG Base Directory Specification ignores relative paths
        return os.path.join(cache, "tfm")
    if not os.path.isabs(home):  # otherwise a folder named "~" would appear in the current folder
        raise UserError("A home folder for caches is missing. Set HOME, XDG_CACHE_HOME, or data.cache_dir.")
    return os.path.join(home, ".cache", "tfm")


def last_part(path: str) -> str:
    """Returns the last part of a path. A shell completes the path of a folder with a slash at its end."""
    return os.path.basename(path.rstrip(os.sep))


# Errors.


def io_error_message(error: BaseException) -> str | None:
    """Returns the message and the advice for an I/O error, or for an error that an I/O error caused.

    Returns None for any other error, and for I/O errors whose code is not in `ADVICE`.
    """
    code, path = _error_code(error), getattr(error, "filename", None)
    if code not in ADVICE:
        return None
    match = PATH_IN_MESSAGE.search(str(error))
    path = path or (match and match[1]) or "a file or the output"
    return f"Cannot read or write {os.fsdecode(path)}: {os.strerror(code)}; {ADVICE[code]}."


def _error_code(error: BaseException) -> int | None:
    """Returns the errno of an OSError, or the errno of the system's message in the text of another error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    return next((code for code in ADVICE if os.strerror(code) in str(error)), None)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns an I/O error inside into a message that names `path`. Errors of writing do not name it.

    Raises:
      UserError: for an I/O error.
    """
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: str, error: OSError, flag: str = "") -> UserError:
    advice = ADVICE.get(error.errno or 0, OTHER_FOLDER) + (f" ({flag})" if flag else "")
    return UserError(f"Cannot write {path}: {error.strerror or error}; {advice}.")


def require_space(folder: str, size: int) -> None:
    """Checks the free space, so that a large write does not fail in the middle.

    Raises:
      UserError: if the disk of the folder has fewer than `size` free bytes.
    """
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"Cannot write {size:,} bytes to {folder}: {free:,} are left; {ADVICE[errno.ENOSPC]}."
        )


def no_link(path: str, flags: int) -> int:
    """Opens a file that tfm creates by name, as the `opener` of `open`. Does not follow a symbolic link.

    In the folder of somebody else, such a link could create or change a file elsewhere.

    Raises:
      OSError: ELOOP if the path is a symbolic link.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


# Reading.


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Adds the path to I/O errors inside that name no file. Python does not name it in errors of reading."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def read_limited(path: str, max_bytes: int) -> bytes:
    """Returns the content of a file, after checking its size.

    Raises:
      UserError: if the file has more than `max_bytes` bytes, or is a pipe, a socket or a device.
      OSError: if the file cannot be read. The error names the file.
    """
    check_no_pipe(path)
    with naming_errors(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise UserError(
                f"Expected at most {max_bytes:,} bytes in {path}, got {size:,}. Check that it is the right "
                "file."
            )
        return file.read()


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits.

    Raises:
      UserError: if the file is a pipe, a socket or a device.
      OSError: if the file cannot be read. The error names the file.
    """
    check_no_pipe(path)
    with naming_errors(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str, max_bytes: int) -> str:
    """Returns the text of a small file in UTF-8, with or without a byte-order mark.

    Raises:
      UserError: see `read_limited`. Or the file has another encoding.
      OSError: if the file cannot be read.
    """
    try:
        return read_limited(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not encoded in UTF-8 ({first_line(error)}). Convert it.") from None


def spell_path(path: str) -> str:
    """Returns the path of a file or folder in the Unicode form that the disk has, or `path` if there is none.

    macOS and some archives write decomposed names, and keyboards composed names.
    """
    if path.isascii() or os.path.lexists(path):
        return path
    folder, name = os.path.split(os.path.normpath(path))
    folder = spell_path(folder)
    if not os.path.isdir(folder or os.curdir):
        return path
    composed = unicodedata.normalize("NFC", name)
    entries = sorted(os.listdir(folder or os.curdir))
    spelled = next((entry for entry in entries if unicodedata.normalize("NFC", entry) == composed), None)
    return path if spelled is None else os.path.join(folder, spelled)


def is_inner_path(name: str) -> bool:
    """Returns whether a name is the path of a file in a folder, without a way out of it.

    Slashes separate its parts on all systems.
    """
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a character
        return False
    return "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def check_no_pipe(path: str) -> None:
    """Raises a UserError for a pipe, a socket or a device. Opening a named pipe would wait forever."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(f"{path} is a pipe, a socket or a device, not a file. Move it away.")


def read_json_lines(path: str, types: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in the lines of a file, or nothing if the file does not exist.

    Skips other lines, for example a line that a kill has cut.

    Args:
      path: path of the file.
      types: {name: type} of the fields that each object must have.

    Raises:
      UserError: if a line is longer than any line that tfm writes.
    """
    if not os.path.isfile(path):
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        while line := file.readline(MAX_JSON_LINE):
            if len(line) == MAX_JSON_LINE:
                raise UserError(
                    f"{path} has a line of more than {MAX_JSON_LINE:,} characters. Move the file away."
                )
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict) and all(type(value.get(x)) is types[x] for x in types):
                    yield value


def is_float(value: Any) -> bool:
    """Returns whether a value in JSON is a number that a float can hold. JSON has integers of any size."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def append_json_line(path: str, line: Any, *, durable: bool = False) -> None:
    """Appends a value to a file as a line of JSON. Ends a last line that a kill has cut.

    Args:
      path: path of the file.
      line: the value.
      durable: whether the line must survive a power failure that follows.

    Raises:
      UserError: if an I/O operation fails.
    """
    with writing(path):
        end_last_line(path)
        with open(path, "a", encoding="utf-8", opener=no_link) as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())


def end_last_line(path: str) -> None:
    """Ends a last line that a kill has cut, so that the next line does not continue it."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, "rb+", opener=no_link) as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


# Locks.


def open_locked(path: str, flag: str, shown_as: str | None = None) -> BinaryIO:
    """Opens a file to append, and locks it against other calls of this function in all processes.

    Args:
      path: path of the file. It is created if missing. Only its owner may rename or delete it.
      flag: the command's flag that chooses another file, for error messages.
      shown_as: path for error messages. None shows `path`.

    Returns:
      The binary file. Closing it ends the lock, and so does the end of the process.

    Raises:
      UserError: if another process has locked the file, if it is not a file, or for an I/O error.
    """
    shown_as = shown_as or path
    check_no_pipe(path)
    while True:
        try:
            file = open(path, "ab", opener=no_link)  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise _write_error(shown_as, error, flag) from error
        if not lock_file(file):
            file.close()
            raise UserError(
                f"Another process is writing {shown_as}. Wait for it, or choose another path ({flag})."
            )
        if _is_same_file(file, path):
            return file
        file.close()  # its previous writer renamed or deleted it after it was opened here


@contextlib.contextmanager
def only_writer(path: str, flag: str) -> Iterator[None]:
    """A context that no other process can enter for the same path.

    Creates the folder of `path`, and removes what killed processes left next to `path`. Inside, the hidden
    file .NAME.tfm-lock exists there. A file such as poetry.lock may belong to the user.

    Args:
      path: what is written inside, in any way.
      flag: the command's flag that chooses another path, for error messages.

    Raises:
      UserError: if another process is inside, `path` is a folder with content, or the lock cannot be written.
    """
    if os.path.isdir(path) and os.listdir(path):
        raise UserError(f"{path} is a folder that is not empty. Move it away, or choose another ({flag}).")
    parent, name = os.path.split(os.path.abspath(path))
    lock = os.path.join(parent, f".{name}.tfm-lock")
    with writing(path):
        os.makedirs(parent, exist_ok=True)
    with open_locked(lock, flag, shown_as=path):
        try:
            remove_temporary(parent, re.escape(name))
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(lock)


def lock_file(file: IO[bytes]) -> bool:
    """Locks an open file and returns whether this worked. Without locks, it warns and returns True."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # some network file systems have no locks
        log.warning("Cannot lock %s (%s): make sure that nothing else writes it", file.name, error.strerror)
    return True


def _is_same_file(file: BinaryIO, path: str) -> bool:
    """Returns whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# Atomic writing.


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "wb") -> Iterator[IO]:
    """Yields a file to write. It replaces `path` if the context ends without an error.

    The folder of `path` must exist. A text file (mode "w") is in UTF-8.

    Raises:
      UserError: for an I/O error.
    """
    temporary = _temporary_path(path)
    try:
        with writing(path):
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # some file systems report a full disk only here
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yields a new folder. It is renamed to `path` if the context ends without an error.

    Its files are synced to the disk before, so that a power failure cannot leave a name without its content.

    Raises:
      OSError: for an I/O error, or if `path` is a file or a folder with content.
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


@contextlib.contextmanager
def clean_folder(folder: str) -> Iterator[None]:
    """A context for writing into `folder`. It first removes the temporary files of killed processes.

    Nothing is removed while another process is in such a context, or if the file system has no locks. The
    folder is created if it is missing. An empty file with the ending .lock is created next to it and stays.

    Raises:
      OSError: for an I/O error.
    """
    os.makedirs(folder, exist_ok=True)
    # The lock file is never deleted. Otherwise, two processes could lock two files of the same name.
    descriptor = no_link(f"{os.path.abspath(folder)}.lock", os.O_RDONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_temporary(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_temporary(folder: str, names: str | re.Pattern[str] = ".*") -> None:
    """Removes the temporary files and folders of killed processes from a folder.

    Args:
      folder: the folder.
      names: regular expression for the names of the files and folders that no other process writes, without
        the ending of temporary files.
    """
    for entry in os.scandir(folder):
        name, is_temporary = TEMPORARY_NAME.subn("", entry.name)
        if not is_temporary or not re.fullmatch(names, name):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def _sync(folder: str) -> None:
    """Writes all files and folders below a folder to the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        descriptor = os.open(parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some file systems cannot sync folders
            os.fsync(descriptor)
        os.close(descriptor)


def _temporary_path(path: str) -> str:
    """Returns a path in the folder of `path` that no other process uses."""
    return f"{os.path.abspath(path)}.{uuid.uuid4().hex[:12]}.tmp"
