"""Tests of `tfm quickstart`."""

import pytest

from tfm.commands import quickstart
from tfm.errors import UserError


@pytest.fixture
def calls(monkeypatch):
    """Replaces the three commands. Returns the list of (command, arguments)."""
    calls = []
    for name in ("train", "evaluate", "visualize"):
        main = lambda argv, name=name: calls.append((name, *argv))  # noqa: E731
        monkeypatch.setattr(getattr(quickstart, name), "main", main)
    return calls


def test_quickstart_trains_evaluates_and_draws(calls):
    quickstart.main([])
    workdir = "--workdir=runs/quickstart"
    assert calls == [("train", "--config=quickstart", workdir), ("evaluate", workdir), ("visualize", workdir)]


def test_the_next_command_is_ready_for_the_shell(calls, caplog):
    with caplog.at_level("INFO", "tfm"):
        quickstart.main(["--workdir=my runs/first"])
    page = "my runs/first/figures/attention.html"
    assert caplog.messages == [f"Next: tfm translate --workdir='my runs/first', or open {page}"]


def test_workdir_may_be_set_but_not_empty(calls):
    quickstart.main(["--workdir=elsewhere"])
    assert all(call[-1] == "--workdir=elsewhere" for call in calls)
    with pytest.raises(UserError, match="--workdir is empty"):
        quickstart.main(["--workdir="])
    assert len(calls) == 3
