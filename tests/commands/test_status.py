"""Tests of `tfm status` and `tfm list` for runs in each state."""

import os
from pathlib import Path

import pytest

from tests.support.io_conditions import open_folder, unreadable
from tests.support.records import write_record
from tests.support.workdirs import logged, make_workdir, validated, write_metrics, write_start
from tfm.commands import list as list_command
from tfm.commands import status
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.io.lock import lock_workdir
from tfm.workdir.bundle import PARAMETERS_FILE


@pytest.fixture
def workdir(tmp_path):
    return make_workdir(tmp_path / "run")


def shown(capsys, *argv):
    """Returns {name: text} of the lines that `tfm status` prints."""
    status.main(argv)
    return {line[:16].strip(): line[16:] for line in capsys.readouterr().out.splitlines()}


def test_run_without_any_step_is_not_started(workdir, capsys):
    lines = shown(capsys, str(workdir))
    assert lines["state"].startswith("not started")
    assert lines["step"] == "0 of 100"
    assert lines.keys() == {"run", "state", "step", "disk"}
    list_command.main([str(workdir)])
    assert " not started" in capsys.readouterr().out
    write_start(workdir)
    assert shown(capsys, str(workdir))["state"] == "stopped before its first checkpoint"


def test_status_of_a_finished_run_has_all_lines(workdir, capsys, monkeypatch):
    write_metrics(workdir, logged(10, 100.0), validated(10, 0.5), logged(100, 280.0))
    (workdir / "checkpoints" / "100").mkdir(parents=True)
    (workdir / "checkpoints" / "100" / "data").write_bytes(b"x" * (3 << 20))
    scores = [Score("error", 3.456, "", digits=4)]
    write_record(workdir / "test.values.scores.json", scores=scores, checkpoints=[50, 1000])
    write_start(workdir, time="2026-01-01", host="here", code={"commit": "0123456789", "changed": []})
    monkeypatch.setattr(status.time, "time", lambda: 345.0)
    lines = shown(capsys, str(workdir))
    assert lines["state"] == "finished"
    assert lines["training"] == "loss 0.0100  3 points/s  at step 100, 1:05 ago"
    assert lines["best"] == "score 0.5 at step 10"
    assert lines["last evaluation"] == "step 10: error -0.5  score 0.5"
    assert lines["checkpoints"] == "100 (3.00 MiB)"
    assert lines["test.values"] == "step 50, 1,000: error 3.4560"
    assert lines["last start"] == "2026-01-01 on here 01234567"


def test_control_codes_in_the_files_of_a_run_do_not_reach_the_terminal(workdir, capsys):
    """A run may come from somebody else. A line end would forge a line, and an escape could hide others."""
    hostile = "\x1b[2Jhost\nstate           finished"
    write_start(workdir, time="2026-01-01", host=hostile)
    write_record(
        workdir / "test\x1b[31m.values.scores.json", scores=[Score(f"a{hostile}", 1.0, "", digits=1)]
    )
    for main in (status.main, list_command.main):
        main([str(workdir)])
        lines = capsys.readouterr().out.splitlines()
        assert all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.startswith("state ") and "finished" in line]


@pytest.mark.parametrize("age", [float("nan"), float("inf"), -float("inf")])
def test_time_that_is_not_finite_is_not_shown(age, workdir, capsys):
    write_metrics(workdir, logged(10, 100.0) | {"time": age})
    assert shown(capsys, str(workdir))["training"].endswith("at step 10")


def test_clock_that_was_set_back_yields_no_negative_time(workdir, capsys, monkeypatch):
    write_metrics(workdir, logged(10, 100.0))
    monkeypatch.setattr(status.time, "time", lambda: 40.0)
    assert shown(capsys, str(workdir))["training"].endswith("at step 10, 0:00 ago")


def test_running_training_has_a_process_and_the_time_left(workdir, capsys):
    write_metrics(workdir, logged(10, 100.0), logged(40, 160.0))
    with lock_workdir(str(workdir)):
        lines = shown(capsys, str(workdir))
        list_command.main([str(workdir)])
    assert lines["state"].startswith("training: process ")
    assert lines["state"].endswith(", about 2:00 left")
    assert " training " in capsys.readouterr().out


def test_list_has_a_line_for_each_run(workdir, tmp_path, capsys):
    write_metrics(workdir, logged(40, 160.0), validated(40, 0.25))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    list_command.main([str(tmp_path)])
    header, broken, run = capsys.readouterr().out.splitlines()
    assert header.split() == list(list_command.COLUMNS)
    assert broken.split()[:2] == [str(tmp_path / "broken"), "unreadable"]
    assert run.split()[2:6] == ["40/100", "stopped", "score", "0.25"]
    assert header.index("step") == run.index("40/100")


def test_run_that_is_found_twice_is_listed_once(workdir, capsys):
    link = workdir.parent / "links" / "run"
    link.parent.mkdir()
    link.symlink_to(workdir)
    (link.parent / "loop").symlink_to(workdir.parent)
    list_command.main([str(workdir), str(workdir.parent), str(link)])
    _, run = capsys.readouterr().out.splitlines()
    assert run.split()[0] == str(workdir)
    list_command.main([str(link.parent)])  # both links lead to the run
    _, run = capsys.readouterr().out.splitlines()
    assert run.split()[0] in (str(link), str(link.parent / "loop" / "run"))


def test_folder_that_cannot_be_read_is_named_instead_of_counted_as_empty(capsys):
    with open_folder() as parent:
        run = make_workdir(Path(parent) / "run")
        for name in ("figures", "samples"):
            (run / name).mkdir()
            (run / name / "large").write_bytes(b"1" * 4096)
        before = shown(capsys, str(run))["disk"]
        with unreadable(run / "figures"):
            assert shown(capsys, str(run))["disk"].endswith(" without 1 unreadable folder(s)")
            list_command.main([str(run)])
            assert " without 1 unreadable folder(s)" in capsys.readouterr().out
        assert "without" not in before


def test_export_has_its_own_state(workdir, capsys):
    (workdir / PARAMETERS_FILE).write_bytes(b"")
    lines = shown(capsys, str(workdir))
    assert lines["state"] == "exported model"
    assert "step" not in lines
    list_command.main([str(workdir)])
    _, run = capsys.readouterr().out.splitlines()
    assert run.split()[2] == "export"


def test_run_without_read_permission_is_listed_as_unreadable(workdir, capsys, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(list_command, "read_status", refuse)
    list_command.main([str(workdir)])
    _, run = capsys.readouterr().out.splitlines()
    assert run.split()[:2] == [str(workdir), "unreadable"]
    assert "Permission denied" in run


@pytest.mark.parametrize("closed", [".", "sweep", "sweep/a"])
def test_folder_that_cannot_be_searched_is_listed_as_unreadable(closed, capsys):
    """It may contain runs, so a list without it would be wrong."""
    with open_folder() as folder:
        (Path(folder) / "sweep" / "a" / "seed_0").mkdir(parents=True)
        path = os.path.normpath(os.path.join(folder, closed))
        with unreadable(path):
            list_command.main([folder])
        _, row = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == [path, "unreadable"]
    assert "Permission denied" in row


def test_listing_no_runs_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="There is no run in"):
        list_command.main([str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"\bruns\b"):
        list_command.main([])


def test_long_name_of_an_evaluation_is_separate_from_its_scores(workdir, capsys):
    write_record(
        workdir / "newstest2014.de.beam10.scores.json", scores=[Score("BLEU", 30.0, "")], checkpoints=[]
    )
    status.main([str(workdir)])
    assert "newstest2014.de.beam10 BLEU 30.00" in capsys.readouterr().out
