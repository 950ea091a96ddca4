"""One training process a work directory."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time

from tfm.errors import UserError

LOCK_FILE = "lock"
log = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(workdir):
    """Holds the work directory; the kernel gives it back however the process ends.

    The file says who holds it. It is emptied in good order, so what stands in it while nobody holds it is
    from a process that was killed. It is never deleted: two processes could then hold two files of one name.

    Raises:
      UserError: another process holds it.
    """
    path = os.path.join(workdir, LOCK_FILE)
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{workdir} is in use by {_holder(file)}: wait for it or end it, or give another --workdir."
            ) from None
        except OSError as error:  # some network file systems have no locks
            log.warning("Cannot lock %s (%s): make sure that no other train.py uses it", path, error.strerror)
        if os.path.getsize(path):
            log.info("Taking over from %s, which did not end in good order", _holder(file))
        _write(file, {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T %z")})
        try:
            yield
        finally:
            _write(file, None)


def _holder(file):
    """Who the file says holds it, for a sentence."""
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
