"""Logging, error messages and exit codes of the console.

A mistake of the user or an I/O error prints one error message on stderr and exits with code 2. Any other
exception is a bug and shows its traceback. This module imports nothing slow.
"""

import contextlib
import functools
import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tfm.commands import terminal
from tfm.errors import EXIT_CODE, WARNING_MARK, UserError, first_line
from tfm.io.files import io_error_message
from tfm.io.local_copies import show

BROKEN_PIPE = 141  # exit code of a process that SIGPIPE kills
HOST_LOST_EXIT = 1
# In the errors of XLA, of its libraries for exchanges and of Orbax after a process of another host has ended.
LOST_HOST = re.compile(r"gloo|nccl|unavailable|deadline|heartbeat|barrier|connection", re.IGNORECASE)


def run(action: Callable[[], None]) -> None:
    """Runs an action for the console: prepares streams and log, and exits on errors."""
    terminal.prepare_streams()
    start_logging()
    sys.unraisablehook = functools.partial(_show_unraisable, sys.unraisablehook)
    with exit_on_error():
        action()
        sys.stdout.flush()  # here, because a failure of the flush at exit would print no error message


def start_logging() -> None:
    """Sends the log of tfm, from level INFO on, and the warnings of all libraries to stderr.

    Replaces the handlers that the root logger had.
    """
    handler = _StandardError()
    handler.setFormatter(_LogFormatter("%(asctime)s %(mark)s%(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tfm").setLevel(logging.INFO)
    # Orbax logs every file that it writes, and logs errors with a traceback before it raises them.
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_warning)
    # If several files of a checkpoint fail, Orbax raises the first error, and asyncio would log the others.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


class _LogFormatter(logging.Formatter):
    """A formatter that marks warnings, and names the URL of a working copy instead of its folder."""

    def format(self, record: logging.LogRecord) -> str:
        record.mark = WARNING_MARK if record.levelno >= logging.WARNING else ""
        return show(super().format(record))


class _StandardError(logging.StreamHandler):
    """A log handler that looks up `sys.stderr` at each message.

    A progress bar replaces `sys.stderr` so that its line stays below the log.
    """

    @property
    def stream(self):
        return sys.stderr

    @stream.setter
    def stream(self, _):
        pass


def _is_warning(record: logging.LogRecord) -> bool:
    """Returns whether Orbax's log record is a warning that users should see."""
    return record.levelno == logging.WARNING


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Inside, errors that a user can fix end the process with an error message.

    A UserError, an I/O error or a lack of memory ends it with exit code 2, and a KeyboardInterrupt with 130.
    If the reader of the output closed it, the process ends with 141 and no message. With several hosts, an
    error that says that another host is lost ends it with 1. Other errors pass through.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        terminal.flush_output()
        terminal.end(show(str(interrupt)))
    except BrokenPipeError:
        terminal.flush_output()
        sys.exit(BROKEN_PIPE)
    except UserError as error:
        _end_if_a_host_is_lost(error)
        fail(error)
    except MemoryError:
        fail("The process ran out of memory. Raise its limit (ulimit -v), or close other programs.")
    except (OSError, ValueError, RuntimeError) as error:
        _end_if_a_host_is_lost(error)
        if io_error_message(error) is None:
            raise
        fail(io_error_message(error))


def _show_unraisable(plain: Callable[[Any], object], unraisable: Any) -> None:
    """Passes an exception to the hook `plain`, except for one harmless error.

    When several files fail together, TensorStore calls an event loop that Orbax has closed already.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        plain(unraisable)


def fail(error: object) -> NoReturn:
    """Prints an error message and ends the process with exit code 2."""
    gc.collect()  # otherwise, unfinished operations of Orbax would print warnings after the error message
    terminal.flush_output()
    print(f"error: {show(str(error))}", file=sys.stderr)
    sys.exit(EXIT_CODE)


def _end_if_a_host_is_lost(error: Exception) -> None:
    """Ends the process with a message after a failed exchange with other hosts, without waiting for them."""
    jax = sys.modules.get("jax")  # a command that has not imported JAX has no other hosts
    if jax is None or not (jax.distributed.is_initialized() and LOST_HOST.search(str(error))):
        return
    terminal.flush_output()
    print(
        "error: Another process of this command has ended, or the connection failed "
        f"({first_line(error)}). Start the same command on all hosts again. Training resumes from its last "
        "checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(HOST_LOST_EXIT)
