"""Ctrl-C and the standard streams of a command. This module imports nothing slow.

Ctrl-C ends a command with exit code 130 and one line that reports what is complete. The code that knows this
raises `KeyboardInterrupt(text)` with that text.
"""

import codecs
import contextlib
import functools
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tfm.errors import UserError

EXIT_CODE = 130  # exit code of a process that SIGINT kills
RESEND_SECONDS = 0.05
STREAMS = {"stdin": "Standard input", "stdout": "Standard output"}
# All except line feeds and tabs, and marks that reorder a whole line.
CONTROL_CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NOTHING_DONE = "nothing was started"
NOTHING_LOST = "no file is left half written; start the command again to repeat it"


def to_json(content: Any, **options: Any) -> str:
    """Returns JSON for standard output. Only UTF-8 has no escapes, because parsers read no other encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    return json.dumps(content, ensure_ascii=not is_utf8, **options)


def escape_controls(text: str) -> str:
    """Returns a text in which codes that a terminal would execute are escapes such as \\x1b.

    The texts of other people's data and models may contain such codes. Unlike `tfm.errors.escape`, keeps all
    letters and lines.
    """
    return CONTROL_CODES.sub(lambda code: repr(code[0])[1:-1], text)


def escape_for_terminal(text: str) -> str:
    """Returns the text, by `escape_controls` if standard output is a terminal. A file gets it as it is."""
    return escape_controls(text) if sys.stdout.isatty() else text


def exit_on_interrupt() -> None:
    """Makes Ctrl-C end the process until `raise_on_interrupt` is called.

    A command calls this before its slow imports. If the process ignores SIGINT, as background processes of a
    script do, it continues to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Makes Ctrl-C raise a KeyboardInterrupt. A hook sends it again if a callback loses it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = functools.partial(resend_interrupt, sys.unraisablehook)


def resend_interrupt(other_hook: Callable[[Any], object], unraisable: Any) -> None:
    """A `sys.unraisablehook` that sends SIGINT again if Python dropped its KeyboardInterrupt.

    Python drops exceptions in callbacks of the garbage collector, and JAX has a callback that runs often.

    Args:
      other_hook: the hook for all other exceptions.
      unraisable: the argument of a `sys.unraisablehook`.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        other_hook(unraisable)
        return
    # The signal comes a little later, because Python would drop it again inside the callback. It goes to the
    # main thread, so that it also interrupts a call that waits, such as a read or a sleep.
    main = threading.main_thread().ident
    timer = threading.Timer(RESEND_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()


def end(interrupt: str) -> NoReturn:
    """Ends the process after a KeyboardInterrupt, and prints its text or a general message.

    Skips the shutdown of the interpreter, because libraries crash there if Ctrl-C interrupted them, for
    example during a restore of Orbax. The caller must have left all contexts and flushed the output.
    """
    print(f"interrupted: {interrupt or NOTHING_LOST}.", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


def prepare_streams() -> None:
    """Makes the standard streams safe to use, even if the shell closed them.

    Replaces a closed stream by the null device. Otherwise the next opened file would get its descriptor, and
    libraries could print into it. A character that the encoding of the terminal does not have is printed as
    an escape such as \\xfc.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The null device gets the lowest free descriptor, which is the stream's.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it stays open until the exit)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def check_open(name: str, instead: str) -> None:
    """Raises a UserError if the shell closed a stream that the command needs.

    Args:
      name: "stdin" or "stdout".
      instead: the option that replaces the stream, for the error message.
    """
    if getattr(sys, f"__{name}__") is None:
        raise UserError(f"{STREAMS[name]} is closed. Give {instead}, or open the stream.")


def separate_output() -> None:
    """Sends what libraries write to standard output to standard error. Python's own output stays.

    Gloo, the exchange between several CPU hosts, prints a line for each connection.
    """
    stream = sys.stdout
    stream.flush()
    output = os.fdopen(os.dup(stream.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), stream.fileno())
    sys.stdout = io.TextIOWrapper(
        output, stream.encoding, stream.errors, line_buffering=bool(stream.line_buffering)
    )


def flush_output() -> None:
    """Flushes standard output. Drops output that cannot be written, so that no flush at exit fails again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(*_: object) -> NoReturn:
    """Ends the process at once. This is a signal handler."""
    with contextlib.suppress(OSError):  # if stderr is closed
        os.write(2, f"interrupted: {NOTHING_DONE}.\n".encode())
    os._exit(EXIT_CODE)
