"""A function that calls a command in this process."""

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfm.commands import console


class CommandResult(NamedTuple):
    """The exit code of a command, and the texts of standard output and standard error."""

    code: int
    output: str
    error: str


def run_command(name: str, *arguments: Any, stdin: str | bytes = "") -> CommandResult:
    """Runs `tfm NAME ARGUMENTS` in this process, with `stdin` as its standard input.

    A UserError becomes exit code 2 and a message, as on the command line. Any other exception is raised.
    """
    main = importlib.import_module(f"tfm.commands.{name}").main
    read = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(content), "utf-8") for content in (read, b"", b"")]
    code = 0
    with _redirect_streams(*streams), _log_to(streams[2]):
        try:
            with console.exit_on_error():
                main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    output, error = (_text_of(stream) for stream in streams[1:])
    return CommandResult(code, output, error)


@contextlib.contextmanager
def _redirect_streams(*streams: io.TextIOWrapper) -> Iterator[None]:
    names = ("stdin", "stdout", "stderr")
    before = [getattr(sys, name) for name in names]
    try:
        for name, stream in zip(names, streams, strict=True):
            setattr(sys, name, stream)
        yield
    finally:
        for name, stream in zip(names, before, strict=True):
            setattr(sys, name, stream)


@contextlib.contextmanager
def _log_to(stream: io.TextIOWrapper) -> Iterator[None]:
    logger, handler = logging.getLogger("tfm"), logging.StreamHandler(stream)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    binary = stream.buffer
    assert isinstance(binary, io.BytesIO)
    return binary.getvalue().decode("utf-8")
