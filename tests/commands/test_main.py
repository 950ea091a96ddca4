"""The console command finds its commands, and refuses others."""

import importlib
import os
import subprocess
import sys

import pytest

import tfm
from tests.support.paths import ROOT
from tests.support.processes import LIMIT, run_python
from tfm.commands import evaluate, main, train
from tfm.commands.options import OPTIONS
from tfm.errors import UserError


def test_commands_are_the_modules_with_a_main():
    files = (ROOT / "tfm" / "commands").glob("*.py")
    found = {path.stem for path in files if "\n@command\ndef main(" in path.read_text(encoding="utf-8")}
    assert found == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_has_its_own_options(name):
    assert importlib.import_module(f"tfm.commands.{name}").main.options is OPTIONS[name]


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    main.main(arguments)
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in OPTIONS)


def test_help_with_a_command_shows_the_help_of_the_command(monkeypatch):
    called = []
    monkeypatch.setattr(train, "main", called.append)
    main.main(["help", "train"])
    assert called == [["--help"]]


def test_help_of_an_unknown_command_names_a_similar_command(capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["help", "trian"])
    assert raised.value.code == 2
    assert "'train'" in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["tranlate", "--workdir=x"])
    assert raised.value.code == 2
    assert "'tranlate': did you mean 'translate'?" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    main.main(["--version"])
    assert capsys.readouterr().out == f"tfm {tfm.__version__}\n"


def test_a_command_gets_its_arguments(monkeypatch):
    called = []
    monkeypatch.setattr(train, "main", called.append)
    arguments = ["--config=x", "--workdir=x", "--config.training.steps=3"]
    main.main(["train", *arguments])
    assert called == [arguments]


@pytest.mark.parametrize("arguments", [[], ["--workdir=x", "--no_such_flag"], ["--workdir=x", "stray"]])
def test_a_wrong_flag_is_reported_before_jax_is_imported(arguments):
    code = "import sys; from tfm.commands.main import main\ntry: main(['evaluate', *sys.argv[1:]])\n"
    code += "except SystemExit as end: print(end.code, 'jax' in sys.modules)"
    result = run_python("-c", code, *arguments)
    assert result.stdout.decode().split() == ["2", "False"], result.stderr.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_help_into_a_full_disk_is_an_error_message():
    command = [sys.executable, "-m", "tfm", "help"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=LIMIT
        )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "No space left on device" in result.stderr


@pytest.mark.long
def test_commands_can_be_called_again(tiny_run, capsys, tmp_path):
    """Also in a program with flags of its own."""
    for split in ("validation", "test"):
        folder = str(tmp_path / split)
        evaluate.main([f"--workdir={tiny_run}", f"--split={split}", f"--output_dir={folder}"])
        assert f"wrote {folder}" in capsys.readouterr().out
    with pytest.raises(UserError, match="no flag --splt: did you mean 'split'"):
        evaluate.main([f"--workdir={tiny_run}", "--splt=test"])
