"""Tests of the console command `tfm`: commands, help, version and errors."""

import gc
import importlib
import os
import subprocess
import sys

import pytest

import tfm
from tests.support.paths import ROOT
from tests.support.processes import LIMIT, run_python
from tfm import errors
from tfm.commands import evaluate, main, train
from tfm.commands.options import OPTIONS
from tfm.errors import UserError


def test_commands_are_the_modules_with_a_main():
    files = (ROOT / "tfm" / "commands").glob("*.py")
    found = {path.stem for path in files if "\n@command\ndef main(" in path.read_text(encoding="utf-8")}
    assert found == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_command_has_its_own_options(name):
    assert importlib.import_module(f"tfm.commands.{name}").main.options is OPTIONS[name]


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    main.main(arguments)
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["help", "trian"], "'train'"),
        (["tranlate", "--workdir=x"], "'tranlate': did you mean 'translate'?"),
    ],
)
def test_unknown_command_is_an_error_with_a_suggestion(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", OPTIONS)
def test_command_without_its_packages_names_the_extra(name, monkeypatch, capsys):
    monkeypatch.setattr(errors, "TRAIN_MODULES", ("json", "no_such_module"))
    with pytest.raises(SystemExit) as raised:
        main.main([name, "--help"])
    assert raised.value.code == errors.EXIT_CODE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: tfm {name} needs the extra train, but its package no_such_module ")


def test_version_flag_prints_the_version(capsys):
    main.main(["--version"])
    assert capsys.readouterr().out == f"tfm {tfm.__version__}\n"


TRAIN_FLAGS = ["--config=x", "--workdir=x", "--config.training.steps=3"]


def test_command_receives_its_arguments(monkeypatch):
    called = []
    monkeypatch.setattr(train, "main", called.append)
    main.main(["train", *TRAIN_FLAGS])
    assert called == [TRAIN_FLAGS]


@pytest.mark.parametrize("arguments", [[], ["--workdir=x", "--no_such_flag"], ["--workdir=x", "stray"]])
def test_wrong_flags_are_errors_before_jax_is_imported(arguments):
    code = "import sys; from tfm.commands.main import main\ntry: main(['evaluate', *sys.argv[1:]])\n"
    code += "except SystemExit as end: print(end.code, 'jax' in sys.modules)"
    result = run_python("-c", code, *arguments)
    assert result.stdout.decode().split() == ["2", "False"], result.stderr.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_help_to_a_full_disk_is_an_error():
    command = [sys.executable, "-m", "tfm", "help"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=LIMIT
        )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "No space left on device" in result.stderr


@pytest.mark.long
def test_commands_can_be_called_repeatedly_in_one_process(tiny_run, capsys, tmp_path):
    for split in ("validation", "test"):
        folder = str(tmp_path / split)
        evaluate.main([f"--workdir={tiny_run}", f"--split={split}", f"--output_dir={folder}"])
        assert f"wrote {folder}" in capsys.readouterr().out
    with pytest.raises(UserError, match="no flag --splt: did you mean 'split'"):
        evaluate.main([f"--workdir={tiny_run}", "--splt=test"])


@pytest.mark.long
def test_command_is_imported_without_collecting_garbage():
    code = (
        "import gc, sys; from tfm.commands.main import import_command; phases = []\n"
        "gc.callbacks.append(lambda phase, info: phases.append(phase))\n"
        "module = import_command('translate')\n"
        "print(module.__name__, 'jax' in sys.modules, phases, gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    result = run_python("-c", code)
    shown = result.stdout.decode().strip()
    assert shown == "tfm.commands.translate True [] True True", result.stderr.decode()


def test_garbage_is_collected_after_an_import_that_fails():
    try:
        with pytest.raises(ModuleNotFoundError):
            main.import_command("no_such_command")
        assert gc.isenabled()
    finally:
        gc.unfreeze()
