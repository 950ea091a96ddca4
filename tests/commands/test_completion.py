"""Tests of the scripts of `tfm completion` in real shells."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import time

import pytest

from tests.support.processes import LIMIT
from tfm.commands import completion, config, plot
from tfm.commands.config_files import shipped_configs
from tfm.commands.options import OPTIONS
from tfm.errors import UserError


def needs(program):
    """Returns a mark that skips a test if the program is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module")
def commands():
    return completion.describe_commands()


@pytest.fixture(scope="module")
def scripts(commands, tmp_path_factory):
    """Returns {shell: path of its script}."""
    folder = tmp_path_factory.mktemp("scripts")
    paths = {shell: folder / f"tfm.{shell}" for shell in completion.SHELLS}
    for shell, path in paths.items():
        path.write_text("\n".join(completion.SHELLS[shell](commands)) + "\n")
    return paths


def test_zsh_offers_only_repeatable_flags_again(scripts):
    script = scripts["zsh"].read_text()
    assert "*--import=" in script
    assert "*--workdir=" not in script


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


def complete_in_fish(script, line, cwd=None):
    """Returns the completions of fish at the end of a line, without their descriptions."""
    rows = output_of("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'", cwd=cwd)
    return {row.partition("\t")[0].removeprefix(f"{line.split()[-1].partition('=')[0]}=") for row in rows}


SHELLS = [
    pytest.param("bash", complete_in_bash, marks=needs("bash")),
    pytest.param("fish", complete_in_fish, marks=needs("fish")),
]


@pytest.mark.parametrize(("shell", "complete"), SHELLS)
def test_shell_completes_flags_and_values(shell, complete, scripts, tmp_path):
    (tmp_path / "mine.py").touch()

    def offers(line):
        return complete(scripts[shell], line, cwd=tmp_path)

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
    assert offers("tfm plot po") == {"positions"}
    assert offers("tfm config d") == {"diff"}
    assert offers("tfm status mi") == {"mine.py"}


@needs("bash")
def test_bash_completes_the_word_at_the_cursor(scripts):
    assert complete_in_bash(scripts["bash"], "tfm plot positions --outp") == {"--output="}
    assert complete_in_bash(scripts["bash"], "tfm plot positions mas") == set()  # only one kind is allowed


@needs("shellcheck")
def test_script_for_bash_passes_shellcheck(scripts):
    assert not output_of("shellcheck", "--shell=bash", str(scripts["bash"]))


def type_into_zsh(setup, keys, expected, folder):
    """Types keys into zsh on a terminal. Returns its output once it contains `expected` or time is up."""
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "dumb", "ZDOTDIR": str(folder), "HOME": str(folder)}
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=folder
    )
    os.close(terminal)
    os.set_blocking(controller, False)
    written = ""
    try:
        os.write(controller, f"PS1=; autoload -U compinit; {setup}; print re''ady\n".encode())
        for text, wanted in ((None, "ready"), (keys, expected)):
            os.write(controller, (text or "").encode())
            deadline = time.monotonic() + 30
            while wanted not in written and time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    written += os.read(controller, 65536).decode(errors="replace")
                time.sleep(0.01)
    finally:
        shell.kill()
        shell.wait()
        os.close(controller)
    return written


@needs("zsh")
@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tfm qui", "tfm quickstart"),
        ("tfm train --dry", "--dry_run"),
        ("tfm train --config.training.st", "--config.training.steps="),
        ("tfm train --config=multi", "--config=multi30k_en_de"),
        ("tfm config d", "tfm config diff"),
    ],
)
def test_zsh_completes_words_and_values(typed, expected, scripts, tmp_path):
    (tmp_path / "_tfm").write_text(scripts["zsh"].read_text())
    setup = f"fpath=({tmp_path} $fpath); compinit -u -D"
    assert expected in type_into_zsh(setup, f"{typed}\t", expected, tmp_path)


@needs("zsh")
@pytest.mark.long
def test_zsh_completes_after_sourcing_the_script(scripts, tmp_path):
    setup = f"compinit -u -D; source {scripts['zsh']}"
    expected = "tfm quickstart"
    assert expected in type_into_zsh(setup, "tfm qui\t", expected, tmp_path)


def test_description_has_every_command_with_its_flags(commands):
    described = {each.name: each for each in commands}
    assert list(described) == list(OPTIONS)
    assert described["plot"].words == tuple(plot.KINDS)
    assert described["config"].words == tuple(config.ACTIONS)
    assert set(described["sweep"].words) == {"table3", "table3_small", "wmt14"}  # the others have no variants
    options = {each.name: {option.name: option for option in each.options} for each in commands}
    assert options["train"]["config"].words == tuple(shipped_configs())
    assert options["train"]["dry_run"].is_switch
    assert options["train"]["allow_change"].repeats
    assert options["sweep"]["checkpoint"].words == ("last", "best")
    assert "config.training.steps" in options["sweep"]
    assert "config.model.patch_size" in options["train"]  # of another task than translation
    assert "config.decoding.beam_size" in options["translate"]
    assert "config.training.steps" not in options["translate"]


def test_command_prints_the_script(capsys, scripts):
    completion.main(["fish"])
    assert capsys.readouterr().out == scripts["fish"].read_text()


def test_unknown_shell_is_an_error():
    with pytest.raises(UserError, match=r"Expected one of bash, zsh, fish, got 'tcsh'"):
        completion.main(["tcsh"])


def test_scripts_complete_files_only_where_a_file_is_allowed(scripts):
    lines = scripts["fish"].read_text().splitlines()
    fish = [line for line in lines if "__fish_seen_subcommand_from translate'" in line]
    (format_line,), (input_line,), (switch,) = (
        [line for line in fish if f" -l {name} " in line] for name in ("format", "input", "alignments")
    )
    assert " -x -a 'text jsonl' " in format_line
    assert " -r -d " in input_line
    assert " -l alignments -d " in switch
    (zsh,) = [line for line in scripts["zsh"].read_text().splitlines() if line.startswith("  translate)")]
    assert ":value:(text jsonl)" in zsh
    assert re.search(r"--input=\[[^]]*\]:value:_files", zsh)
