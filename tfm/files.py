"""Files that are written whole or not at all, and what the machine refuses, as a sentence."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid

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
TOLD_PATH = re.compile(r'(?:local file "|; writing )(/[^";]*)')
HALF_MADE = re.compile(r"\.[0-9a-f]{12}\.tmp$")  # the end of a name that `_beside` makes


def user_cache():
    """The user's own cache folder of tfm, which may not be there yet."""
    default = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(default, "tfm")


def refusal(error):
    """The sentence for an error by which the machine refused a file; None for any other error."""
    code, path = _code(error), getattr(error, "filename", None)
    if code not in ADVICE:
        return None
    told = TOLD_PATH.search(str(error))
    path = path or (told and told[1]) or "a file or the output"
    return f"Cannot read or write {os.fsdecode(path)}: {os.strerror(code)}; {ADVICE[code]}."


def read_whole(path, most):
    """The bytes of a file of at most `most`; a larger one is refused before any is read.

    Raises:
      UserError: it is larger.
      OSError: as `open` raises it.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, which is more than tfm writes ({most:,}): check it.")
        return file.read(most)


def require_space(folder, size):
    """Asks the disk of a folder before a large write, which may otherwise fail half way and less clearly.

    Raises:
      UserError: it has fewer than `size` bytes left.
    """
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"Cannot write {size:,} bytes to {folder}: {free:,} are left; {ADVICE[errno.ENOSPC]}."
        )


@contextlib.contextmanager
def writing(path):
    """Names `path` in the sentence for what goes wrong inside: a write that fails has no path of its own.

    Raises:
      UserError: the machine refuses.
    """
    try:
        yield
    except OSError as error:
        advice = ADVICE.get(error.errno, ELSEWHERE)
        raise UserError(f"Cannot write {path}: {error.strerror or error}; {advice}.") from error


@contextlib.contextmanager
def whole_file(path, mode="wb"):
    """A file to write that takes the place of `path` when the context ends well; else nothing is left of it.

    Raises:
      UserError: the machine refuses.
    """
    temporary = _beside(path)
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
def whole_folder(path):
    """A new folder, its path given, that becomes `path` when the context ends well; else nothing is left.

    Its files are on the disk before it has its name, which may outlive a loss of power that they would not.

    Raises:
      OSError: the machine refuses, or something stands at `path` that is no empty folder.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = _beside(path)
    try:
        os.mkdir(temporary)
        yield temporary
        _sync(temporary)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def swept(folder):
    """To make whole files and folders in `folder`, from which what killed processes left half made goes.

    Nothing is removed while another process is in such a context, nor where the file system has no locks.
    The folder is made where there is none.

    Raises:
      OSError: the machine refuses.
    """
    os.makedirs(folder, exist_ok=True)
    # Beside, and never deleted: two processes could then lock two files of one name.
    descriptor = os.open(f"{os.path.abspath(folder)}.lock", os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_half_made(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _remove_half_made(folder):
    for entry in os.scandir(folder):
        if not HALF_MADE.search(entry.name):
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


def _beside(path):
    """A name for what becomes `path`, in the same folder, that no other process uses."""
    return f"{os.path.abspath(path)}.{uuid.uuid4().hex[:12]}.tmp"


def _code(error):
    if isinstance(error, OSError):
        return error.errno
    return next((code for code in ADVICE if os.strerror(code) in str(error)), None)
