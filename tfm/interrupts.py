"""Ctrl-C in a command: one line that says what is done, and exit code 130.

`KeyboardInterrupt(text)` carries the line from where it is known. Imports nothing that takes long.
"""

import contextlib
import functools
import os
import signal
import sys
import threading

EXIT_CODE = 130  # as of a process that SIGINT ended
DELIVER_AGAIN_SECONDS = 0.05
NOTHING_DONE = "nothing was begun"
NOTHING_LOST = "no file is left half written; start the command again to repeat it"


def end_at_once():
    """Until `raise_always` is called, Ctrl-C ends the process. For a command, before its slow imports.

    A process that ignores it, as one in the background of a script does, still does so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_always():
    """From now on, Ctrl-C raises a KeyboardInterrupt that no callback can swallow."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = functools.partial(deliver_again, sys.unraisablehook)


def deliver_again(other_hook, unraisable):
    """A `sys.unraisablehook` that sends SIGINT again where its KeyboardInterrupt was dropped.

    Python drops what is raised in a callback of the garbage collector, and JAX has one that is called often.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        other_hook(unraisable)
        return
    # A while later: still in the callback, it would be dropped again.
    timer = threading.Timer(DELIVER_AGAIN_SECONDS, signal.raise_signal, (signal.SIGINT,))
    timer.daemon = True
    timer.start()


def end(interrupt):
    """Ends the process after a KeyboardInterrupt, with its text or one that is true of any command.

    Raises:
      SystemExit: always.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C ends the process at once
    print(f"interrupted: {interrupt or NOTHING_LOST}.", file=sys.stderr)
    sys.exit(EXIT_CODE)


def _end(*_):
    with contextlib.suppress(OSError):  # of a stderr that is closed
        os.write(2, f"interrupted: {NOTHING_DONE}.\n".encode())
    os._exit(EXIT_CODE)
