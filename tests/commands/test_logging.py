"""Tests of the log lines and errors that commands show."""

import logging
import sys
import types

import absl.logging
import pytest

from tfm.commands import console


@pytest.fixture(autouse=True)
def _as_before():
    """Restores the loggers after a test."""
    loggers = [logging.getLogger(name) for name in (None, "tfm", "absl", "asyncio")]
    before = [(each.level, each.handlers[:], each.filters[:]) for each in loggers]
    yield
    for each, (level, handlers, filters) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:], each.filters[:] = handlers, filters


def test_only_warnings_of_absl_are_shown(capsys):
    console.start_logging()
    absl.logging.info("a file was written")
    absl.logging.warning("Skipping merge of %s", "checkpoints")
    absl.logging.error("what is raised as well")
    logging.getLogger("tfm.training").info("step 1")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["warning: Skipping merge of checkpoints", "step 1"]


def test_late_callbacks_of_tensorstore_are_hidden(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    console.run(lambda: None)
    for text in ("Event loop is closed", "a bug"):
        sys.unraisablehook(types.SimpleNamespace(exc_type=RuntimeError, exc_value=RuntimeError(text)))
    assert [str(each.exc_value) for each in shown] == ["a bug"]


@pytest.mark.long
def test_memory_error_is_an_error_message(capsys):
    with pytest.raises(SystemExit) as end, console.exit_on_error():
        raise MemoryError
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: The process ran out of memory")
