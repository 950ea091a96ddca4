"""The console command finds its commands, and refuses others."""

import pytest

from tests.helpers.paths import ROOT
from tfm.commands import main


def test_the_commands_are_the_modules_that_have_a_main():
    files = (ROOT / "tfm" / "commands").glob("*.py")
    found = {path.stem for path in files if "__name__ ==" in path.read_text(encoding="utf-8")}
    assert found - {"main"} == set(main.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    main.main(arguments)
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in main.COMMANDS)


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["tranlate", "--workdir=x"])
    assert raised.value.code == main.USER_ERROR
    assert "got 'tranlate'" in capsys.readouterr().err


def test_a_command_gets_its_arguments(monkeypatch):
    called = []
    monkeypatch.setattr(main.runpy, "run_module", lambda name, **_: called.append((name, main.sys.argv[1:])))
    monkeypatch.setattr(main.sys, "argv", ["pytest"])
    main.main(["train", "--workdir=x", "--config.training.steps=3"])
    assert called == [("tfm.commands.train", ["--workdir=x", "--config.training.steps=3"])]
