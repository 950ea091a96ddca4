"""Handles Ctrl-C and the standard streams of a command. Imports nothing that takes long.

Ctrl-C ends a command with one line that says what is done, and exit code 130. A `KeyboardInterrupt(text)`
carries that line from where it is known.
"""

import contextlib
import functools
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tfm.errors import UserError

EXIT_CODE = 130  # of a process that SIGINT ends
RESEND_SECONDS = 0.05
STREAMS = {"stdin": "Standard input", "stdout": "Standard output"}
NOTHING_DONE = "nothing was begun"
NOTHING_LOST = "no file is left half written; start the command again to repeat it"


def exit_on_interrupt() -> None:
    """Until `raise_on_interrupt` is called, Ctrl-C ends the process. For a command, before its slow imports.

    A process that ignores it, as one in the background of a script does, still does so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """From now on, Ctrl-C raises a KeyboardInterrupt that no callback can swallow."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = functools.partial(resend_interrupt, sys.unraisablehook)


def resend_interrupt(other_hook: Callable[[Any], object], unraisable: Any) -> None:
    """A `sys.unraisablehook` that sends SIGINT again where its KeyboardInterrupt was dropped.

    Python drops what is raised in a callback of the garbage collector, and JAX has one that is called often.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        other_hook(unraisable)
        return
    # A while later: still in the callback, it would be dropped again.
    # To the main thread, so that it also ends a call that waits, as a read or a sleep.
    main = threading.main_thread().ident
    timer = threading.Timer(RESEND_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()


def end(interrupt: str) -> NoReturn:
    """Ends the process after a KeyboardInterrupt, with its text or one that is true of any command.

    Never returns. The interpreter is not shut down: libraries crash in it where Ctrl-C cut a call of theirs
    short, as a restore of Orbax. Every context has ended before, and what was printed is flushed.
    """
    print(f"interrupted: {interrupt or NOTHING_LOST}.", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


def prepare_streams() -> None:
    """Makes the standard streams safe to use, whatever the shell made of them.

    A closed one becomes the null device: no file that is opened later gets its number, into which a library
    might print. A character that the encoding of the terminal lacks is printed as an escape such as \\xfc.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number, that of the stream, goes to the null device
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it stays open to the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def check_open(name: str, instead: str) -> None:
    """Raises a UserError where the shell closed a stream that the command cannot do without.

    Args:
      name: "stdin" or "stdout".
      instead: the option that replaces the stream.
    """
    if getattr(sys, f"__{name}__") is None:
        raise UserError(f"{STREAMS[name]} is closed: give {instead}, or open it.")


def flush_output() -> None:
    """Flushes what was printed; what cannot be is dropped, as the flush at exit would meet the same again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(*_):
    with contextlib.suppress(OSError):  # of a stderr that is closed
        os.write(2, f"interrupted: {NOTHING_DONE}.\n".encode())
    os._exit(EXIT_CODE)
