"""Tests of the status that is read from a run folder."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.commands import run_command
from tests.support.records import write_record
from tests.support.workdirs import logged, make_workdir, validated, write_metrics
from tfm.errors import UserError
from tfm.io.lock import lock_workdir
from tfm.training.scores import Scores
from tfm.training.task import Best
from tfm.workdir import status


@pytest.fixture
def workdir(tmp_path):
    return make_workdir(tmp_path / "run")


def test_run_without_any_step_is_not_started(workdir):
    found = status.read_status(str(workdir))
    assert (found.step, found.training, found.validation, found.best) == (0, {}, {}, None)
    assert (found.checkpoints, found.start, found.evaluations, found.holder) == ([], {}, {}, "")
    assert found.state == "not started"
    assert found.disk == ((workdir / "config.json").stat().st_size, 0)


def test_folder_with_evaluations_of_another_run_says_so(workdir):
    write_record(workdir / "test.de.scores.json")
    assert status.read_status(str(workdir)).state == "evaluations"


def test_running_run_has_process_and_time_left(workdir):
    write_metrics(workdir, logged(10, 100.0), validated(10, 0.5), logged(30, 140.0))
    with lock_workdir(str(workdir)):
        found = status.read_status(str(workdir))
    assert found.holder.startswith("process ")
    assert (found.step, found.unit, found.training["train/points_per_second"]) == (30, "points", 3.0)
    assert found.seconds_left == pytest.approx(2.0 * 70)
    after = status.read_status(str(workdir))
    assert (after.holder, after.seconds_left) == ("", None)


def test_reading_the_status_does_not_take_the_lock(workdir):
    with lock_workdir(str(workdir)):
        status.read_status(str(workdir))
        with pytest.raises(UserError, match=f"{workdir} .*{os.getpid()}"), lock_workdir(str(workdir)):
            pass


@pytest.mark.parametrize(("last", "state"), [(-1.0, "stopped"), (-9.0, "finished")])
def test_run_that_was_ended_by_its_patience_is_finished(tmp_path, last, state):
    workdir = make_workdir(tmp_path / "run", patience=1)
    write_metrics(workdir, logged(20, 100.0))
    scores = Scores(str(workdir), Best("validation/score"))
    for step, score in [(10, -3.0), (20, last)]:
        scores.add(step, {"validation/error": -score, "validation/score": score})
    assert status.read_status(str(workdir)).state == state


def test_best_step_is_the_newest_step_with_the_best_score_of_the_task(workdir):
    scores = [(10, -3.0), (20, -1.0), (30, -1.0), (40, -2.0), (50, float("nan"))]
    write_metrics(workdir, *(validated(*each) for each in scores))
    found = status.read_status(str(workdir))
    assert (found.best_metric, found.best) == ("validation/score", (30, -1.0))
    assert found.validation["step"] == 50


def test_checkpoints_count_as_steps(workdir):
    write_metrics(workdir, logged(60, 1.0))
    for name, size in (("90", 7), ("100", 5), ("100.orbax-checkpoint-tmp", 9), ("007", 1)):
        (workdir / "checkpoints" / name).mkdir(parents=True)
        (workdir / "checkpoints" / name / "data").write_bytes(b"x" * size)
    found = status.read_status(str(workdir))
    assert found.checkpoints == [90, 100]
    assert (found.step, found.state) == (100, "finished")


def test_unreadable_evaluations_are_left_out(workdir):
    record = write_record(workdir / "test.de.scores.json", checkpoints=[3])
    (workdir / "torn.de.scores.json").write_text('{"scores": [')
    assert status.read_status(str(workdir)).evaluations == {"test.de": record}


HUGE = 10**400  # JSON has integers that no float can hold
FORGED: list[tuple[str, dict[str, Any]]] = [
    ("metrics.jsonl", {"train/loss": HUGE}),
    ("metrics.jsonl", {"train/loss": 1.0, "time": HUGE}),
    ("metrics.jsonl", {"train/loss": 1.0, "train/points_per_second": HUGE}),
    ("metrics.jsonl", {"validation/loss": HUGE}),
    *(("scores.jsonl", {"scores": {"validation/loss": value}}) for value in (HUGE, "1", None, [], {})),
    *(("starts.jsonl", {"config": {}, "code": value}) for value in ("x", None, [], {"commit": 5})),
    *(("starts.jsonl", {"config": {}, name: "x"}) for name in ("modules", "versions", "data", "jax")),
]


@pytest.mark.parametrize(("name", "fields"), FORGED)
def test_status_of_a_run_with_forged_lines_can_be_shown(name, fields, workdir):
    (workdir / name).write_text(json.dumps({"step": 1} | fields) + "\n")
    assert run_command("status", workdir).code == 0
    assert run_command("list", workdir).code == 0


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "scores.jsonl", "starts.jsonl"])
def test_pipe_in_place_of_a_file_is_not_read(name, workdir):
    os.mkfifo(workdir / name)
    assert run_command("status", workdir).code == 0


@pytest.mark.parametrize("name", ["metrics.jsonl", "scores.jsonl", "starts.jsonl"])
def test_line_without_an_end_is_not_read(name, workdir):
    """The file takes no space on the disk."""
    with open(workdir / name, "wb") as file:
        file.truncate(1 << 40)
    assert run_command("status", workdir).code in (0, 2)


def test_folders_may_be_nested_to_any_depth(workdir, monkeypatch):
    monkeypatch.chdir(workdir)
    for _ in range(sys.getrecursionlimit()):
        os.mkdir("x")
        os.chdir("x")
    try:
        assert status.measure_folder(str(workdir)) == ((workdir / "config.json").stat().st_size, 0)
    finally:
        subprocess.run(["rm", "-r", workdir / "x"], check=True)  # pytest could not remove it


def test_time_between_two_starts_does_not_count_for_the_speed(workdir):
    rows = [logged(10, 100.0), logged(20, 110.0), logged(30, 9000.0), logged(40, 9010.0)]
    write_metrics(workdir, *rows)
    with lock_workdir(str(workdir)):
        assert status.read_status(str(workdir)).seconds_left == pytest.approx(1.0 * 60)


def test_runs_are_found_below_a_folder(workdir, tmp_path):
    (workdir / "checkpoints").mkdir()
    nested = tmp_path / "sweep" / "a" / "seed_0"
    nested.mkdir(parents=True)
    for folder in (nested, workdir / "inside", tmp_path / ".hidden"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
    assert status.find_runs(str(tmp_path)) == [str(workdir), str(nested)]


def test_config_without_a_run_hides_no_runs_below(workdir, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert status.find_runs(str(tmp_path)) == [str(tmp_path), str(workdir)]
    assert status.find_runs(str(workdir)) == [str(workdir)]
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none"))):
        status.find_runs(str(tmp_path / "none"))


def test_status_of_a_user_defined_model_needs_no_import(workdir):
    saved = json.loads((workdir / "config.json").read_text())
    saved["model"] = {"name": "my_lab.models:gru"}
    (workdir / "config.json").write_text(json.dumps(saved))
    found = status.read_status(str(workdir))
    assert (found.config.model.name, found.config.training.steps) == ("my_lab.models:gru", 100)
    assert (found.best, found.unit) == (None, "")
    for broken in ({"model": 3}, {"training": {"steps": "x"}}):
        (workdir / "config.json").write_text(json.dumps(saved | broken))
        with pytest.raises(UserError):
            status.read_status(str(workdir))
