"""The lock of a work directory: only one process trains in it."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from typing import IO

from tfm.errors import UserError
from tfm.io.files import check_entries

LOCK_FILE = "lock"
log = logging.getLogger(__name__)


class DirectoryGuard:
    """Notices that the work directory of a run was deleted, moved or replaced.

    Open descriptors keep the kernel from reusing the inode numbers for a directory made later.

    Args:
      path: of the directory.
      lock: the open lock file in it, or None where this process holds none.
    """

    def __init__(self, path: str, lock: IO | None = None):
        self.path = os.path.abspath(path)
        self._files = {self.path: os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)}
        if lock is not None:
            self._files[os.path.join(self.path, LOCK_FILE)] = os.dup(lock.fileno())

    def check(self, created: Sequence[str] = ()) -> None:
        """Checks that the path still leads to the run folder. Takes a few microseconds.

        Args:
          created: folders that this process has just created, two levels below the run folder. They are
            removed if the run folder is gone, because TensorStore creates missing folders again.

        Raises:
          UserError: if the path leads to nothing or to another folder.
        """
        for path, descriptor in self._files.items():
            change = _change(path, descriptor)
            if change:
                if created:
                    self._remove(created)
                raise UserError(
                    f"{path} {change} while this run used {self.path}: the run ends and writes nothing more "
                    "there. To resume it, move the files back and start it again."
                )

    def _remove(self, created: Sequence[str]) -> None:
        """Removes folders and their empty parents, unless another run has made a lock file there since."""
        if os.path.exists(os.path.join(self.path, LOCK_FILE)):
            return
        for folder in created:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in [*map(os.path.dirname, created[:1]), self.path]:
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def close(self) -> None:
        """Closes the descriptors."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}


def _change(path, descriptor):
    """What happened to a path since it was opened, for an error message; "" for nothing."""
    try:
        same = os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return "was deleted or moved"
    return "" if same else "was replaced"


@contextlib.contextmanager
def lock_workdir(workdir: str) -> Iterator[DirectoryGuard]:
    """Locks the work directory and yields its `DirectoryGuard`; the kernel unlocks it when the process ends.

    The lock file says which process has the lock. A process empties it before it unlocks it, so an unlocked
    file with content is from a process that was killed. The file is never deleted: two processes could then
    lock two files of one name.

    Raises:
      UserError: another process has the lock, the directory was deleted or replaced at this moment, or
        something in it is neither a file nor a folder.
    """
    check_entries(workdir)
    path = os.path.join(workdir, LOCK_FILE)
    with (
        open(path, "a+", encoding="utf-8") as file,
        contextlib.closing(DirectoryGuard(workdir, file)) as guard,
    ):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{workdir} is in use by {_holder(file)}: wait for it or end it, or give another --workdir."
            ) from None
        except OSError as error:  # some network file systems have no locks
            log.warning("Cannot lock %s (%s): make sure that no other train.py uses it", path, error.strerror)
        guard.check()  # another file may have got the name before this one was locked
        if os.fstat(file.fileno()).st_size:
            log.info("Taking over the lock of %s, which was killed", _holder(file))
        _write(file, {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T %z")})
        try:
            yield guard
        finally:
            _write(file, None)


def find_holder(workdir: str) -> str:
    """The process that has the lock of a work directory, such as "process 7 on host since ..."; "" for none.

    On another host it is seen where the file system has locks between hosts, as NFS has.
    """
    try:
        with open(os.path.join(workdir, LOCK_FILE), encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except OSError:  # no lock file, or no locks
        pass
    return ""


def _holder(file):
    """Who the file says holds it, for an error message."""
    file.seek(0)
    try:
        found = json.loads(file.read())
        return f"process {found['pid']} on {found['host']} since {found['since']}"
    except (ValueError, KeyError, TypeError):  # it has only just begun to write
        return "another process"


def _write(file, holder):
    file.seek(0)
    file.truncate()
    if holder:
        file.write(json.dumps(holder) + "\n")
    file.flush()
