"""Tests of Ctrl-C, and of standard streams that are closed or lack characters."""

import io
import logging
import re
import subprocess
import sys
import time
import types

import jax
import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.commands import compilation, console, main, terminal
from tfm.errors import UserError


@pytest.mark.parametrize("text", ["3 lines are done", ""])
def test_ctrl_c_is_one_line_and_exit_code_130(capsys, monkeypatch, text):
    monkeypatch.setattr(terminal.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as end, console.exit_on_error():
        raise KeyboardInterrupt(text)
    assert end.value.code == 130
    assert capsys.readouterr().err == f"interrupted: {text or terminal.NOTHING_LOST}.\n"


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", '["ä"]'), ("latin-1", '["\\u00e4"]')])
def test_json_is_valid_in_every_encoding_of_standard_output(encoding, expected, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert terminal.to_json(["ä"]) == expected


def test_no_library_crashes_after_ctrl_c():
    code = """
import atexit, os
from tfm.commands import terminal
atexit.register(os.abort)
terminal.end("3 lines are done")
"""
    result = python(code)
    assert (result.returncode, result.stderr) == (130, "interrupted: 3 lines are done.\n")


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend 'x'\nmore"), AssertionError()])
def test_error_without_a_device_names_the_environment_variable(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(compilation.jax, "devices", fail)
    with pytest.raises(UserError, match=r"JAX finds no device to compute on.* JAX_PLATFORMS is"):
        compilation.check_device()


@pytest.mark.parametrize(("limit", "lines"), [(0.0, 1), (1000.0, 0)])
def test_slow_compilation_is_logged_once(monkeypatch, caplog, limit, lines):
    monkeypatch.setattr(compilation, "SLOW_COMPILATION", limit)
    for _ in range(2):  # a process may run several commands
        compilation.check_device()
    caplog.set_level(logging.INFO)
    jax.jit(lambda x: x + limit).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()
    logged = [message for message in caplog.messages if message.startswith("Compiled a program in ")]
    assert len(logged) == lines


class Callback:
    """An object whose destructor is interrupted by Ctrl-C. Python ignores exceptions of destructors."""

    def __del__(self):
        raise KeyboardInterrupt


def test_ctrl_c_in_a_callback_is_not_lost(monkeypatch):
    others = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    terminal.raise_on_interrupt()
    with pytest.raises(KeyboardInterrupt):
        del_callback()
    assert others == []


def del_callback():
    instance = Callback()
    del instance
    time.sleep(5)


def test_other_callback_errors_are_shown():
    shown, other = [], types.SimpleNamespace(exc_type=ValueError)
    terminal.resend_interrupt(shown.append, other)
    assert shown == [other]


def python(code, streams="", **options):
    command = ["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, code]
    options |= {"cwd": ROOT, "capture_output": True, "text": True, "timeout": LIMIT}
    return subprocess.run(command, check=False, **options)


def test_ctrl_c_during_imports_is_one_line():
    code = "import signal; from tfm.commands.terminal import exit_on_interrupt; exit_on_interrupt()"
    code += "; signal.raise_signal(signal.SIGINT)"
    result = python(code)
    assert (result.returncode, result.stderr.count("\n")) == (130, 1)
    assert result.stderr.startswith("interrupted: ")
    ignored = python(f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {code}")
    assert (ignored.returncode, ignored.stderr) == (0, "")


def test_ctrl_c_is_handled_before_slow_imports(monkeypatch):
    seen = []
    monkeypatch.setattr(terminal, "exit_on_interrupt", lambda: seen.append("handled"))
    monkeypatch.setattr(main.importlib, "import_module", lambda name: seen.append(name))
    with pytest.raises(AttributeError):  # the replaced import returns no module
        main.main(["train", "--config=x", "--workdir=x"])
    assert seen == ["handled", "tfm.commands.train"]


def test_console_command_imports_no_slow_packages():
    imported = python(
        "import sys, tfm.commands.main; assert not {'jax', 'numpy', 'ml_collections'} & set(sys.modules)"
    )
    assert imported.returncode == 0, imported.stderr


def test_closed_streams_become_the_null_device(tmp_path):
    code = f"""
import sys; from tfm.commands import terminal
terminal.prepare_streams()
with open({str(tmp_path / "out")!r}, "w") as file:
    print("lost"); print("lost", file=sys.stderr); print(sys.stdin.read(), end="")
    file.write(str(file.fileno()))
for name in ("stdin", "stdout"):
    try:
        terminal.check_open(name, "--it=FILE")
    except Exception as error:
        open({str(tmp_path)!r} + "/" + name, "w").write(str(error))
"""
    assert python(code, "<&- >&- 2>&-").returncode == 0
    assert int((tmp_path / "out").read_text()) > 2
    for name, stream in (("stdin", "Standard input"), ("stdout", "Standard output")):
        assert re.match(rf"{stream}\b.* --it=FILE\b", (tmp_path / name).read_text())


def test_open_streams_are_unchanged():
    terminal.check_open("stdout", "--output=FILE")
    result = python(
        "from tfm.commands import terminal; terminal.prepare_streams(); print(input())", input="größe"
    )
    assert result.stdout == "größe\n"


@pytest.mark.parametrize(
    ("encoding", "errors", "text", "shown"),
    [
        ("ascii", "strict", "größe", rb"gr\xf6\xdfe"),
        ("ascii", "replace", "größe", b"gr??e"),
        ("utf-8", "surrogateescape", "\ud800 ü", r"\ud800 ü".encode()),  # such as in a path
    ],
)
def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch, encoding, errors, text, shown):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.prepare_streams()
    print(text, end="")
    stream.flush()
    assert stream.buffer.getvalue() == shown


def test_codes_of_a_terminal_are_escaped_and_letters_stay():
    text = "\x1b[31mred\u202e \x9b \r\x00\n\tder \u200cنمی\u3000語\xa0é"
    assert terminal.escape_controls(text) == (
        "\\x1b[31mred\\u202e \\x9b \\r\\x00\n\tder \u200cنمی\u3000語\xa0é"
    )
