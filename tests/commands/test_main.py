"""The console command finds its commands, and refuses others."""

import pytest

from tests.support.paths import ROOT
from tfm.commands import cli, evaluate, main, train
from tfm.errors import EXIT_CODE, UserError


def test_commands_are_the_modules_with_a_main():
    files = (ROOT / "tfm" / "commands").glob("*.py")
    found = {path.stem for path in files if "\ndef main(" in path.read_text(encoding="utf-8")}
    assert found - {"main"} == set(main.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    main.main(arguments)
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in main.COMMANDS)


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["tranlate", "--workdir=x"])
    assert raised.value.code == EXIT_CODE
    assert "got 'tranlate'" in capsys.readouterr().err


def test_a_command_gets_its_arguments(monkeypatch):
    called = []
    monkeypatch.setattr(cli, "run", lambda *each: called.append(each))
    main.main(["train", "--workdir=x", "--config.training.steps=3"])
    assert called == [(train.main, ["--workdir=x", "--config.training.steps=3"])]


@pytest.mark.long
def test_commands_can_be_called_again(tiny_run, capsys, tmp_path):
    """Also in a program with flags of its own."""
    for split in ("validation", "test"):
        folder = str(tmp_path / split)
        evaluate.main([f"--workdir={tiny_run}", f"--split={split}", f"--output_dir={folder}"])
        assert f"wrote {folder}" in capsys.readouterr().out
    with pytest.raises(UserError, match="Unknown command line flag 'splt'"):
        evaluate.main([f"--workdir={tiny_run}", "--splt=test"])
