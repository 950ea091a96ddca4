"""A process of a sweep: runs a tfm command, and ends when the sweep ends.

The sweep holds the other end of the standard input. If the sweep is killed, the system closes that end, and
this process sends itself a SIGTERM, with which `tfm train` saves a checkpoint and exits.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence

from tfm.commands.main import main


def run_with_parent(arguments: Sequence[str]) -> None:
    """Runs a tfm command with an empty standard input.

    When the other end of this process's standard input is closed, the process sends SIGTERM to itself.
    """
    lifeline = os.dup(sys.stdin.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    main(arguments)


def _end_with_parent(descriptor: int) -> None:
    """Waits until the other end of a pipe is closed, and sends SIGTERM to this process."""
    os.read(descriptor, 1)  # the sweep never writes
    os.kill(os.getpid(), signal.SIGTERM)
