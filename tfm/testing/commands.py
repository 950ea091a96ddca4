"""The contract of commands as a pytest class, and a function that calls a command in this process."""

import contextlib
import importlib
import io
import logging
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import pytest

from tfm.commands import cli


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
            with cli.exit_on_error():
                main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    output, error = (_text_of(stream) for stream in streams[1:])
    return CommandResult(code, output, error)


class CommandContract:
    """The contract of every command.

    Attributes:
      cases: {name of a command: its arguments}. "{run}" stands for the folder of a run and "{out}" for a
        folder that the command may create. A command that reads no run has no "{run}".
    """

    cases: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all commands."""
        if "command" in metafunc.fixturenames:
            metafunc.parametrize("command", self.cases)

    def arguments(self, command: str, folder: pathlib.Path) -> list[str]:
        """Returns the arguments of a command with a run that does not exist."""
        return [each.format(run=folder / "missing", out=folder / "out") for each in self.cases[command]]

    def test_help_needs_no_device(self, command, monkeypatch):
        monkeypatch.setattr(jax, "devices", _no_device)
        result = run_command(command, "--help")
        assert result.code == 0, result.error
        assert result.output.startswith(f"usage: tfm {command}")

    def test_an_unknown_flag_is_named(self, command, tmp_path):
        arguments = [each for each in self.cases[command] if "{" not in each]
        result = run_command(command, *arguments, "--no_such_flag=1")
        self.assert_refused(result, "no_such_flag", tmp_path)

    def test_a_missing_run_is_named(self, command, tmp_path):
        if not any("{run}" in each for each in self.cases[command]):
            pytest.skip("the command reads no run")
        result = run_command(command, *self.arguments(command, tmp_path))
        self.assert_refused(result, str(tmp_path / "missing"), tmp_path)

    def assert_refused(self, result: CommandResult, name: str, folder: pathlib.Path) -> None:
        """Asserts that a command reported a mistake in one message and left no file."""
        assert (result.code, result.output) == (2, "")
        assert name in result.error
        assert result.error.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in result.error
        assert not [path for path in folder.rglob("*") if path.is_file()]


def _no_device(*_: Any) -> None:
    raise RuntimeError("The help of a command must not look for devices.")


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
