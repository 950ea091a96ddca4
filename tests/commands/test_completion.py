"""Tests of the scripts of `tfm completion` in bash."""

import shutil
import subprocess

import pytest

from tests.support.processes import LIMIT
from tfm.commands import completion, config, plot
from tfm.commands.config_files import shipped_configs
from tfm.commands.options import OPTIONS


def needs(program):
    """Returns a mark that skips a test if the program is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module")
def commands():
    return completion.describe_commands()


@pytest.fixture(scope="module")
def script(commands, tmp_path_factory):
    """Returns the path of the script."""
    path = tmp_path_factory.mktemp("scripts") / "tfm.bash"
    path.write_text("\n".join(completion.bash_script(commands)) + "\n")
    return path


def output_of(*command, cwd=None):
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=LIMIT)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.splitlines()


def complete_in_bash(script, line, cwd=None):
    """Returns the completions of bash at the end of a line. Readline treats `=` as a separate word."""
    code = (
        'source "$0"; COMP_LINE=$1; COMP_POINT=${#1}; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' _tfm; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    words = line.replace("=", " = ").split(" ")
    return set(output_of("bash", "-c", code, str(script), line, *words, cwd=cwd)) - {""}


@needs("bash")
def test_shell_completes_flags_and_values(script, tmp_path):
    (tmp_path / "mine.py").touch()

    def offers(line):
        return complete_in_bash(script, line, cwd=tmp_path)

    assert offers("tfm tra") == {"train", "translate"}
    assert {each.rstrip("=") for each in offers("tfm train --d")} == {"--distributed", "--dry_run"}
    assert {each.rstrip("=") for each in offers("tfm evaluate --c")} >= {"--checkpoint"}
    assert {each.rstrip("=") for each in offers("tfm train --config.training.st")} == {
        "--config.training.steps"
    }
    assert offers("tfm train --config=multi") == {"multi30k_en_de"}
    assert offers("tfm train --config=mi") == {"mine.py"}
    assert offers("tfm train --config.training.schedule=co") == {"constant", "cosine_decay"}
    assert offers("tfm translate --format=") == {"text", "jsonl"}  # no files are offered
    assert offers("tfm plot le") == {"lengths"}
    assert offers("tfm config d") == {"diff"}
    assert offers("tfm status mi") == {"mine.py"}


@needs("bash")
def test_bash_completes_the_word_at_the_cursor(script):
    assert complete_in_bash(script, "tfm plot lengths --outp") == {"--output="}
    assert complete_in_bash(script, "tfm plot lengths cur") == set()  # only one kind is allowed


@needs("shellcheck")
def test_script_for_bash_passes_shellcheck(script):
    assert not output_of("shellcheck", "--shell=bash", str(script))


def test_description_has_every_command_with_its_flags(commands):
    described = {each.name: each for each in commands}
    assert list(described) == list(OPTIONS)
    assert described["plot"].words == tuple(plot.KINDS)
    assert described["config"].words == tuple(config.ACTIONS)
    assert set(described["sweep"].words) == {"table3", "table3_small", "wmt14"}  # the others have no variants
    options = {each.name: {option.name: option for option in each.options} for each in commands}
    assert options["train"]["config"].words == tuple(shipped_configs())
    assert options["train"]["dry_run"].is_switch
    assert options["sweep"]["checkpoint"].words == ("last", "best")
    assert "config.training.steps" in options["sweep"]
    assert "config.model.patch_size" in options["train"]  # of another task than translation
    assert "config.decoding.beam_size" in options["translate"]
    assert "config.training.steps" not in options["translate"]


def test_command_prints_the_script(capsys, script):
    completion.main([])
    assert capsys.readouterr().out == script.read_text()
