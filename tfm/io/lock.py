"""The lock of a run folder, in which only one process trains."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import IO

from tfm.errors import UserError
from tfm.io.files import lock_file, no_link, writing

LOCK_FILE = "lock"
MAX_RECORD_BYTES = 1 << 12
LOCK_SECONDS = 0.2  # `find_holder` in other processes has the lock for some microseconds
log = logging.getLogger(__name__)


class DirectoryGuard:
    """Notices that the folder of a run was deleted, moved or replaced.

    The guard keeps the folder open, so that the kernel cannot give its inode number to a later folder.

    Args:
      path: path of the folder.
      lock: the open lock file in the folder, or None if this process has not locked it.
    """

    def __init__(self, path: str | os.PathLike, lock: IO | None = None):
        self.path = os.path.abspath(path)
        self._files = {self.path: os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)}
        if lock is not None:
            self._files[os.path.join(self.path, LOCK_FILE)] = os.dup(lock.fileno())

    def check(self) -> None:
        """Checks that the folder and the lock file, if any, were not deleted, moved or replaced.

        Takes a few microseconds.

        Raises:
          UserError: if a path leads to nothing or to another folder or file.
        """
        for path, descriptor in self._files.items():
            try:
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    continue
                change = "was replaced"
            except (FileNotFoundError, NotADirectoryError):
                change = "was deleted or moved"
            raise UserError(
                f"{path} {change} while this run used {self.path}. The run ends and writes nothing more "
                "there. To resume it, move the files back and start it again."
            )

    def close(self) -> None:
        """Closes the folder."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}


@contextlib.contextmanager
def lock_workdir(workdir: str) -> Iterator[DirectoryGuard]:
    """Locks a run folder and yields its guard. The kernel unlocks the folder when the process ends.

    The lock file names the process that has the lock. A process empties the file before it unlocks it.
    Therefore, an unlocked file with content belongs to a killed process, and the log says that its lock is
    taken over. The file is never deleted, because two processes could then lock two files of the same name.

    Raises:
      UserError: if another process has the lock, or the folder was deleted or replaced at this moment, or the
        file cannot be written.
      OSError: if the file cannot be opened, for example because there is no such folder.
    """
    with (
        # Without a buffer, because closing a buffered file would repeat a failed write.
        open(os.path.join(workdir, LOCK_FILE), "ab+", buffering=0, opener=no_link) as file,
        contextlib.closing(DirectoryGuard(workdir, file)) as guard,
    ):
        deadline = time.monotonic() + LOCK_SECONDS
        while not (is_locked := lock_file(file)) and time.monotonic() < deadline:
            time.sleep(LOCK_SECONDS / 100)
        if not is_locked:
            raise UserError(
                f"{workdir} is in use by {_holder(file)}. Wait for it or end it, or give another --workdir."
            )
        guard.check()  # the file may have been replaced before it was locked
        if os.fstat(file.fileno()).st_size:
            log.info("Taking over the lock of %s because that process was killed", _holder(file))
        _write(file, {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T %z")})
        try:
            yield guard
        finally:
            _write(file, None)


def find_holder(workdir: str) -> str:
    """Returns the process that has locked a run folder, as "process 7 on HOST since TIME", or "" if none has.

    Returns "another process" if the lock file does not name it.

    Processes of other hosts are found if the file system has locks between hosts, as NFS has.
    """
    path = os.path.join(workdir, LOCK_FILE)
    if not os.path.isfile(path):  # opening a named pipe would wait forever
        return ""
    try:
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except OSError:  # the file cannot be read, or has no locks
        pass
    return ""


def _holder(file: IO[bytes]) -> str:
    """Returns the owner recorded in the lock file, for messages."""
    file.seek(0)
    try:
        owner = json.loads(file.read(MAX_RECORD_BYTES))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):  # the owner has not written its record yet
        return "another process"


def _write(file: IO[bytes], owner: dict | None) -> None:
    """Replaces the content of the lock file by the record of its owner, or empties it."""
    with writing(file.name):
        file.seek(0)
        file.truncate()
        rest = json.dumps(owner).encode() + b"\n" if owner else b""
        while rest:  # a full disk accepts a part before it raises an error
            rest = rest[file.write(rest) :]
