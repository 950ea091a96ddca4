"""Tests of trackers in a run: what they receive, and that they can neither end nor delay the run."""

import contextlib
import json
import re
import threading

import pytest

from tests.support.tiny_regression import make_config
from tests.support.tracked_regression import NAME, Memory, train_tracked
from tfm.training.hooks import Hooks
from tfm.training.run_log import read_metrics
from tfm.training.samples import read_samples
from tfm.training.trackers import METHODS, hook


@pytest.fixture
def memory(monkeypatch):
    """Returns the class of the tracker without the instances of other tests."""
    monkeypatch.setattr(Memory, "made", [])
    monkeypatch.setattr(Memory, "broken", "")
    return Memory


def warnings_of(caplog):
    return [each.getMessage() for each in caplog.records if "tracker" in each.getMessage().lower()]


@pytest.mark.long
def test_tracker_receives_everything_logged_in_order(memory, tmp_path):
    train_tracked(tmp_path, NAME)
    (tracker,) = memory.made
    assert tracker.workdir == str(tmp_path)
    assert [call[:2] for call in tracker.calls] == [
        ("log_config", 0),
        ("log_scalars", 3),
        ("log_samples", 3),
        ("log_picture", 3),
        ("log_scalars", 4),
        ("log_scalars", 6),
        ("log_scalars", 6),
        ("log_samples", 6),
        ("log_picture", 6),
        ("close", "finished"),
    ]
    assert tracker.calls[0][2]["training"]["trackers"] == (NAME,)
    rows = [{name: row[name] for name in row if "/" in name} for row in read_metrics(str(tmp_path))]
    logged = [call[2] for call in tracker.calls if call[0] == "log_scalars"]
    assert sorted(rows, key=str) == sorted(logged, key=str)
    samples = [(call[1], call[2]) for call in tracker.calls if call[0] == "log_samples"]
    assert samples == [(each.step, each.rows) for each in read_samples(str(tmp_path))]
    for _, step, name, path in (call for call in tracker.calls if call[0] == "log_picture"):
        assert name == "slope"
        assert re.fullmatch(rf"{re.escape(str(tmp_path))}/samples/step-0*{step}-slope\.png", path)
        with open(path, "rb") as file:
            assert file.read(4) == b"\x89PNG"


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "error"),
    [(method, ConnectionError("no route to host")) for method in ("__init__", *METHODS)]
    + [("log_scalars", SystemExit("no route to host"))],
)
def test_error_ends_the_tracker_with_one_warning_but_not_the_run(
    method, error, memory, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(memory, "broken", method)
    monkeypatch.setattr(memory, "error", error)
    train_tracked(tmp_path, NAME, "tensorboard")
    (warning,) = warnings_of(caplog)
    assert f"{type(error).__name__}: no route to host" in warning
    assert NAME in warning
    assert [row["step"] for row in read_metrics(str(tmp_path)) if "train/loss" in row] == [4, 6]
    assert [each.step for each in read_samples(str(tmp_path))] == [3, 6]
    assert list((tmp_path / "tensorboard").iterdir())
    names = [call[0] for each in memory.made for call in each.calls]
    assert names == names[: len({"log_config": [], "log_scalars": [1]}.get(method, names))]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RuntimeError, "failed"), (KeyboardInterrupt, "stopped"), (SystemExit, "stopped"), (None, "finished")],
)
def test_tracker_is_closed_with_the_outcome_of_the_run(error, outcome, memory, tmp_path):
    with (
        contextlib.suppress(BaseException),
        Hooks([hook.TrackerHook(NAME, str(tmp_path), make_config())]) as hooks,
    ):
        hooks.on_start(0, None)
        if error:
            raise error
    assert memory.made[0].calls[-1] == ("close", outcome)


@pytest.mark.long
@pytest.mark.parametrize(("method", "action"), [("__init__", "opened"), ("log_scalars", "closed")])
def test_run_does_not_wait_for_a_hanging_tracker(method, action, memory, tmp_path, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(hook, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(memory, method, lambda *_: released.wait(60) and None)
    train_tracked(tmp_path, NAME)
    (warning,) = warnings_of(caplog)
    released.set()
    assert f"not {action} after a wait of 0.2 s" in warning
    assert read_metrics(str(tmp_path))[-1]["step"] == 6


@pytest.mark.parametrize(
    ("limit", "method", "reason"),
    [("MAX_WAITING_CALLS", "log_scalars", "3 calls wait for it"), ("OPEN_SECONDS", "__init__", "not opened")],
)
def test_slow_tracker_is_ended_with_a_warning(limit, method, reason, memory, tmp_path, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(hook, limit, 3 if limit == "MAX_WAITING_CALLS" else 0)
    monkeypatch.setattr(memory, method, lambda *_: released.wait(60) and None)
    slow = hook.TrackerHook(NAME, str(tmp_path), make_config())
    slow.on_start(0, None)
    for step in range(9):
        slow.on_log(step, {"train/loss": 1.0})
    released.set()
    slow.close("finished")
    (warning,) = warnings_of(caplog)
    assert reason in warning


@pytest.mark.long
def test_samples_survive_a_restart(memory, tmp_path):
    """A repeated step has two lines, and the last line counts."""
    train_tracked(tmp_path, NAME, steps=3)
    path = tmp_path / "samples.jsonl"
    old = json.loads(path.read_text()) | {"rows": [{"prediction": "old"}]}
    path.write_text(json.dumps(old) + "\n" + json.dumps(old)[:30])  # a kill cut the second line short
    (before,) = read_samples(str(tmp_path))
    assert before.rows == [{"prediction": "old"}]
    train_tracked(tmp_path, NAME)
    assert [each.step for each in read_samples(str(tmp_path))] == [3, 6]
    path.write_text(path.read_text() + json.dumps(old | {"rows": []}) + "\n")
    assert [each.rows == [] for each in read_samples(str(tmp_path))] == [True, False]
