"""Tests of the help texts of commands."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.commands import help_text
from tfm.commands.command import is_help_asked
from tfm.commands.config_files import read_config_file
from tfm.commands.main import run_command
from tfm.config import save, walk_fields
from tfm.tasks.translation.task import Config

DECODING = "  decoding.beam_size=4 "


def help_of(capsys, name, *arguments):
    """Returns the help text that a command prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as end:
            run_command(name, arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    return out


@pytest.mark.parametrize(
    ("command", "usage", "others"),
    [
        ("evaluate", "usage: tfm evaluate --workdir=WORKDIR [--FLAG", ["  --split=test ", DECODING]),
        ("translate", "usage: tfm translate --workdir", ["  --n_best=1 ", DECODING]),
        ("export", "--workdir=WORKDIR --output=OUTPUT [", ["  --quantization=float32 ", DECODING]),
        ("compare", "tfm compare DIR_A DIR_B [--FLAG=VALUE ...]\n", ["  --sentences=5 "]),
        (
            "visualize",
            "usage: tfm visualize --workdir=WORKDIR [EXAMPLE ...] [--FLAG",
            ["  --layer=LAYER ", "  --words ", DECODING],
        ),
    ],
)
def test_help_shows_usage_flags_and_fields(command, usage, others, capsys):
    shown = help_of(capsys, command, "--help")
    for text in (usage, *others):
        assert text in shown
    assert "  --checkpoint=CHECKPOINT " in shown or "compare" in usage
    assert "verbosity" not in shown  # absl would add this flag


@pytest.mark.long
def test_help_does_not_need_a_device():
    environment = os.environ | {"JAX_PLATFORMS": "no_such_platform", "COLUMNS": "100"}
    command = [sys.executable, "eval.py", "--help"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT)
    assert (result.returncode, result.stderr) == (0, b""), result.stderr.decode()
    assert b"  --split=test " in result.stdout


def test_help_of_train_shows_the_values_of_the_config_and_the_command_line(capsys):
    shown = help_of(capsys, "train", "--config=configs/quickstart.py", "-h", "--config.training.keep=7")
    assert (
        "tfm train --config=FILE --workdir=WORKDIR [--FLAG=VALUE ...] [--config.FIELD=VALUE ...]\n" in shown
    )
    for text in (
        "  --config=FILE  ",
        "  --dry_run  ",
        "* training.keep=7 ",
        "May be repeated.",
        "* training.steps=2600 ",
        "- model.d_model=128 ",
    ):
        assert text in shown
    for leaf in walk_fields(Config()):
        assert f" {leaf.path}=" in shown


@pytest.mark.parametrize("option", ["--help", "-help", "-h", "-?", "--help=true", "--helpshort"])
def test_all_spellings_of_help_are_recognized(option):
    assert is_help_asked(["--workdir=x", option])
    assert not is_help_asked(["--", option])
    assert not is_help_asked(["--workdir=help"])


def test_fields_are_shown_with_their_help_and_range(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = list(help_text.all_fields(Config()))
    assert "* training.warmup_steps" not in "\n".join(lines)
    assert "* training.log_every=100          Steps between two lines of progress." in "\n".join(lines)
    assert "  training.optimizer.b1=0.9       Decay of the first moment. (from 0 to 0.999999)" in lines
    assert "- task=translation                Name of the task." in lines
    assert any(line.startswith("- training.optimizer.name=adam ") for line in lines)
    assert {"model", "data", "training", "training.optimizer", "decoding"} <= set(lines)
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("command", ["evaluate", "export", "visualize"])
def test_help_for_a_run_without_decoding_shows_the_flags(command, tmp_path, capsys):
    save(read_config_file("vit")[0], str(tmp_path / "config.json"))
    shown = help_of(capsys, command, "--help", f"--workdir={tmp_path}")
    assert "--workdir" in shown
    assert DECODING not in shown
