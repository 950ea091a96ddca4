"""The contract of commands, as a pytest class."""

import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import pytest

from tfm.commands import console
from tfm.commands.main import run_command


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

    def exit_code(self, command: str, arguments: list[str]) -> int:
        """Calls a command in this process."""
        with pytest.raises(SystemExit) as stop, console.exit_on_error():
            run_command(command, arguments)
        return int(stop.value.code or 0)

    def test_help_needs_no_device(self, command, monkeypatch, capsys):
        monkeypatch.setattr(jax, "devices", _no_device)
        assert self.exit_code(command, ["--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: tfm {command}")

    def test_an_unknown_flag_is_named(self, command, tmp_path, capsys):
        arguments = [each for each in self.cases[command] if "{" not in each]
        assert self.exit_code(command, [*arguments, "--no_such_flag=1"]) == 2
        self.assert_refused(capsys.readouterr(), "no_such_flag", tmp_path)

    def test_a_missing_run_is_named(self, command, tmp_path, capsys):
        if not any("{run}" in each for each in self.cases[command]):
            pytest.skip("the command reads no run")
        assert self.exit_code(command, self.arguments(command, tmp_path)) == 2
        self.assert_refused(capsys.readouterr(), str(tmp_path / "missing"), tmp_path)

    def assert_refused(self, shown: Any, name: str, folder: pathlib.Path) -> None:
        """Asserts that a command reported a mistake in one message and left no file."""
        assert shown.out == ""
        assert name in shown.err
        assert shown.err.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in shown.err
        assert not [path for path in folder.rglob("*") if path.is_file()]


def _no_device(*_: Any) -> None:
    raise RuntimeError("The help of a command must not look for devices.")
