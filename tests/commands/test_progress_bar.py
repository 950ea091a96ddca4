"""Tests of the progress bar of training."""

import contextlib
import logging
import os
import pty

from tfm.commands import console, progress_bar


@contextlib.contextmanager
def terminal(monkeypatch):
    """Replaces standard error by a terminal. Yields a function that returns the shown text.

    This is no fixture, because pytest replaces standard error after the fixtures.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    reader, writer = pty.openpty()
    os.set_blocking(reader, False)
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def read():
        stream.flush()
        parts = []
        with contextlib.suppress(BlockingIOError):
            while True:
                parts.append(os.read(reader, 1 << 16))
        return b"".join(parts).decode()

    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        yield read
    os.close(reader)
    root.handlers[:], root.level = before


def test_bar_is_shown_on_a_terminal(monkeypatch):
    with terminal(monkeypatch):
        assert progress_bar.is_wanted()
        monkeypatch.setenv("TERM", "dumb")
        assert not progress_bar.is_wanted()


def test_no_bar_is_written_to_a_file(tmp_path, monkeypatch):
    with open(tmp_path / "log", "w") as file:
        monkeypatch.setattr("sys.stderr", file)
        assert not progress_bar.is_wanted()


def test_bar_shows_step_loss_rate_and_speed(monkeypatch):
    with terminal(monkeypatch) as read:
        bar = progress_bar.ProgressBar(900, "tokens")
        bar.on_step(301, {"loss": (12.0, 8.0)})
        bar.on_log(350, {"train/learning_rate": 0.001, "train/tokens_per_second": 12345.6})
        bar.on_step(350, {"loss": (9.0, 8.0)})
        bar.close("finished")
        shown = read()
    assert "350/900" in shown
    assert "loss 1.1250  lr 1.00e-03  12,346 tokens/s" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is cleared


def test_bar_shows_the_learning_rates_of_all_updates(monkeypatch):
    with terminal(monkeypatch) as read:
        bar = progress_bar.ProgressBar(900, "points")
        bar.on_log(350, {"train/generator/learning_rate": 0.001, "train/discriminator/learning_rate": 0.002})
        bar.on_step(351, {"loss": (9.0, 8.0)})
        bar.close("finished")
        shown = read()
    assert "lr 1.00e-03 2.00e-03" in shown


def test_log_lines_stay_above_the_bar(monkeypatch):
    with terminal(monkeypatch) as read:
        console.start_logging()
        bar = progress_bar.ProgressBar(9, "tokens")
        bar.on_step(1, {"loss": (1.0, 1.0)})
        logging.getLogger("tfm.test").info("a line of the log")
        bar.close("finished")
        shown = read()
    before, after = shown.split("a line of the log")
    assert before.rpartition("\x1b[2K")[2].count(":") == 2  # the time of day is on a cleared line
    assert "1/9" in after  # the bar is drawn again below the log line
