"""Tests of the processes of a sweep: order, failures, parallel runs and cleanup."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.support.processes import LIMIT
from tests.support.sweeps import planned
from tfm.sweep import processes

# Replaces tfm and records its arguments. It fails if the name of the folder contains "bad", and `train` waits
# for a signal if the name contains "slow".
PROGRAM = """
import os, signal, sys, time
command, workdir = sys.argv[1], next(each for each in sys.argv if each.startswith("--workdir="))
with open("calls", "a") as file:
    file.write(" ".join([os.environ["JAX_COMPILATION_CACHE_DIR"], *sys.argv[1:]]) + "\\n")
print("first line", flush=True)
if "warned" in workdir:
    from tfm.commands import console
    console.start_logging()
    __import__("logging").getLogger("tfm").warning("The %s is high", "rate")
if "bad" in workdir:
    print("error: the reason\\n", file=sys.stderr)
    sys.exit(2)
if "slow" in workdir and command == "train":
    signal.signal(signal.SIGTERM, lambda *_: (open("saved", "w").close(), sys.exit(143)))
    open("ready", "w").close()
    time.sleep(60)
"""


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Returns a function that executes runs and returns (failures, names of the finished runs, calls)."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "program.py"))
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)

    def execute(*names, jobs=1):
        runs = [planned(name)._replace(arguments=[f"--config={name}"]) for name in names]
        finished = []
        failures = processes.execute_runs(
            runs, ["--split=validation"], "sweep", jobs, lambda run: finished.append(run.variant.name)
        )
        return failures, finished, (tmp_path / "calls").read_text().splitlines()

    return execute


@pytest.mark.long
def test_processes_import_no_file_of_the_current_folder_in_place_of_a_library(tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    lifeline, end = os.pipe()  # the process ends when the other end is closed
    command = [*processes.COMMAND, "list", str(tmp_path)]
    options = {"stdin": lifeline, "capture_output": True, "text": True, "check": False, "timeout": LIMIT}
    result = subprocess.run(command, cwd=tmp_path, **options)
    os.close(lifeline)
    os.close(end)
    assert result.returncode == 2
    assert f"There is no run in {tmp_path}" in result.stderr


def test_every_run_is_trained_and_then_evaluated(execute):
    failures, finished, calls = execute("a", "b")
    programs = os.path.abspath("sweep/compiled")
    assert (failures, finished) == ([], ["a", "b"])
    assert calls == [
        f"{programs} {arguments}"
        for arguments in (
            "train --config=a --workdir=sweep/a/seed_0",
            "evaluate --workdir=sweep/a/seed_0 --split=validation",
            "train --config=b --workdir=sweep/b/seed_0",
            "evaluate --workdir=sweep/b/seed_0 --split=validation",
        )
    ]


def test_runs_of_a_sweep_do_not_share_a_run_of_a_tracker(execute, monkeypatch, caplog):
    """Each run has its own id in its folder, as a single run without these variables."""
    for name in ("WANDB_RUN_ID", "MLFLOW_RUN_ID"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("WANDB_PROJECT", "sweep")
    names = ("WANDB_RUN_ID", "MLFLOW_RUN_ID", "WANDB_PROJECT")
    code = f"import os; print([name for name in {names} if name in os.environ])"
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "-c", code))
    runs = [planned("a")]
    assert processes.execute_runs(runs, [], "sweep", 1, lambda run: None) == []
    lines = set((pathlib.Path(runs[0].workdir) / processes.LOG_FILE).read_text().splitlines())
    assert lines == {"['WANDB_PROJECT']"}
    assert "WANDB_RUN_ID and MLFLOW_RUN_ID" in caplog.text


def test_environment_may_set_the_folder_of_compiled_programs(execute, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    calls = execute("a")[2]
    assert [call.partition(" ")[0] for call in calls] == ["mine", "mine"]


def test_failure_is_reported_and_the_other_runs_finish(execute):
    failures, finished, calls = execute("bad", "b", jobs=2)
    assert finished == ["b"]
    assert len(calls) == 3  # the failed run is not evaluated
    (failure,) = failures
    assert str(failure) == "bad seed 0 ended with exit code 2: error: the reason"


def test_warnings_of_runs_are_logged_once(execute, caplog):
    execute("warned_a", "warned_b", "quiet")
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "warned_a seed 0: The rate is high"
    ]


def test_interrupt_ends_the_processes_of_the_runs(execute, monkeypatch):
    def interrupt(*_):
        if os.path.exists("ready"):
            raise KeyboardInterrupt

    monkeypatch.setattr(processes, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(processes, "report_progress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        execute("slow")
    assert os.path.exists("saved")


def test_progress_reports_the_number_of_finished_runs(execute, monkeypatch, caplog):
    monkeypatch.setattr(processes, "REPORT_SECONDS", 0.0)
    with caplog.at_level("INFO", "tfm.sweep"):
        execute("a", "b")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("a seed 0: starts; 0 of 2 runs done")
    assert any("1 of 2 runs done" in line for line in lines)


def test_progress_reports_the_step_and_the_loss_of_a_run(tmp_path, caplog):
    run = planned("a")._replace(workdir=str(tmp_path / "a"))
    os.mkdir(run.workdir)
    with open(f"{run.workdir}/metrics.jsonl", "w") as file:
        file.write('{"step": 20000, "train/loss": 2.5}\n')
    running = processes.RunProcess(run, [], "programs")
    with caplog.at_level("INFO", "tfm.sweep"):
        processes.report_progress([run, run], [], [running])
    assert "a seed 0: step 20,000/100,000 loss 2.5000; 1 of 2 runs done" in caplog.text


CHILD = """
import sys
from tfm.commands import child_process
child_process.main = lambda arguments: exec(arguments[0])
child_process.run_with_parent(["import time; print('runs', flush=True); time.sleep(60)"])
"""


def test_process_of_a_sweep_ends_when_the_sweep_is_killed():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"runs\n"
        assert child.poll() is None
        child.stdin.close()  # as the system does when the parent has ended
        assert child.wait(LIMIT) == -signal.SIGTERM
