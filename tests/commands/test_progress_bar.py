"""The live line of progress: what it shows, and that the log stays above it."""

import contextlib
import logging
import os
import pty

from tfm.commands import console, progress_bar


@contextlib.contextmanager
def terminal(monkeypatch):
    """A terminal in the place of standard error; yields a function that returns what it showed.

    Not a fixture: between fixtures and test, pytest sets standard error.
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


def test_a_terminal_gets_a_bar(monkeypatch):
    with terminal(monkeypatch):
        assert progress_bar.is_wanted()
        monkeypatch.setenv("TERM", "dumb")
        assert not progress_bar.is_wanted()


def test_a_file_gets_none(tmp_path, monkeypatch):
    with open(tmp_path / "log", "w") as file:
        monkeypatch.setattr("sys.stderr", file)
        assert not progress_bar.is_wanted()


def test_it_shows_step_loss_speed_and_rate(monkeypatch):
    with terminal(monkeypatch) as read:
        bar = progress_bar.ProgressBar(900, "tokens")
        bar.on_step(301, {"loss": (12.0, 8.0)})
        bar.on_log(350, {"train/learning_rate": 0.001, "train/tokens_per_second": 12345.6})
        bar.on_step(350, {"loss": (9.0, 8.0)})
        bar.close("finished")
        shown = read()
    assert "350/900" in shown
    assert "loss 1.1250  lr 1.00e-03  12,346 tokens/s" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is gone


def test_it_shows_the_rates_of_all_updates(monkeypatch):
    with terminal(monkeypatch) as read:
        bar = progress_bar.ProgressBar(900, "points")
        bar.on_log(350, {"train/generator/learning_rate": 0.001, "train/discriminator/learning_rate": 0.002})
        bar.on_step(351, {"loss": (9.0, 8.0)})
        bar.close("finished")
        shown = read()
    assert "lr 1.00e-03 2.00e-03" in shown


def test_the_log_stays_above_it(monkeypatch):
    with terminal(monkeypatch) as read:
        console.start_logging()
        bar = progress_bar.ProgressBar(9, "tokens")
        bar.on_step(1, {"loss": (1.0, 1.0)})
        logging.getLogger("tfm.test").info("a line of the log")
        bar.close("finished")
        shown = read()
    before, after = shown.split("a line of the log")
    assert before.rpartition("\x1b[2K")[2].count(":") == 2  # on a line that was cleared: the time of day
    assert "1/9" in after  # drawn again below
