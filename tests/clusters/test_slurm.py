"""Tests of clusters/slurm.sh with two real processes. Small programs replace srun and scontrol."""

import json
import os
import re
import signal
import socket
import sys

import pytest

from tests.support.clusters import CLUSTERS, RECORD, SAVED_AT_SIGTERM, calls_in, install, run, start
from tests.support.processes import finish, wait_until
from tests.support.tiny import write_config_file
from tests.support.tiny_regression import make_config
from tfm.training.run_log import read_metrics

TASKS = 2  # processes that the srun of the tests starts

SRUN = f"""
    import os, pathlib, subprocess, sys
    command = sys.argv[1:]
    while command[0].startswith("--"):
        command.pop(0)
    of_all = os.environ | {{"SLURM_NTASKS": "{TASKS}", "SLURM_STEP_NODELIST": "localhost"}}
    tasks = [
        subprocess.Popen(command, env=of_all | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
        for i in range({TASKS})
    ]
    pathlib.Path("tasks").write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""


def free_job():
    """Returns a job number for which the port of JAX is free. JAX derives the port from the number."""
    for job in range(4096):
        with socket.socket() as tried:
            try:
                tried.bind(("localhost", 65535 - 4095 + job))
            except OSError:
                continue
            return str(job)
    raise AssertionError("no port is free")


@pytest.mark.long
def test_stopped_slurm_job_is_queued_again_and_resumes(tmp_path):
    config = make_config(steps=40, eval_every=5, log_every=1, checkpoint_every=1000)
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    job = free_job()
    variables = {
        "CONFIG": str(write_config_file(tmp_path, config)),
        "WORKDIR": str(tmp_path / "run"),
        "TFM": f"{sys.executable} -m tfm",
        "SLURM_JOB_ID": job,
    }
    arguments = ("slurm.sh", tmp_path, "--config.data.pause=0.3")  # the evaluations take at least 2.4 s
    process = start(*arguments, **variables)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"step": 6' in metrics.read_text(), "step 6", process)
    for task in (tmp_path / "tasks").read_text().split():  # like --signal=TERM@180, once for each process
        os.kill(int(task), signal.SIGTERM)
    _, errors = finish(process)
    assert process.returncode == SAVED_AT_SIGTERM, errors[-3000:]
    assert errors.count("the same command resumes") == TASKS
    assert calls_in(tmp_path) == [["requeue", job]]
    code, errors = run(*arguments, **variables)
    assert code == 0, errors[-3000:]
    assert "Resuming from step" in errors
    assert calls_in(tmp_path) == [["requeue", job]]
    starts = (tmp_path / "run" / "starts.jsonl").read_text().splitlines()
    assert [json.loads(start)["processes"] for start in starts] == [TASKS, TASKS]
    steps = [row["step"] for row in read_metrics(str(tmp_path / "run")) if "train/loss" in row]
    assert steps == list(range(1, 41))


@pytest.mark.parametrize("code", [1, 2, 137])
def test_failed_slurm_job_is_not_queued_again(code, tmp_path):
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    install(tmp_path, "fail", f"raise SystemExit({code})")
    assert run("slurm.sh", tmp_path, TFM="fail", SLURM_JOB_ID="7")[0] == code
    assert not calls_in(tmp_path)


def test_cancelled_slurm_job_is_not_queued_again(tmp_path):
    """scancel ends the script and the processes. The processes save, but the job stays cancelled."""
    install(tmp_path, "srun", SRUN)
    install(tmp_path, "scontrol", RECORD)
    install(tmp_path, "save", f"import time; time.sleep(0.5); raise SystemExit({SAVED_AT_SIGTERM})")
    process = start("slurm.sh", tmp_path, TFM="save", SLURM_JOB_ID="7")
    wait_until((tmp_path / "tasks").exists, "the processes", process)
    process.terminate()
    finish(process)  # also waits for the processes, which share its pipes
    assert process.returncode == -signal.SIGTERM
    assert not calls_in(tmp_path)


def test_slurm_sends_sigterm_once_to_every_process():
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert re.fullmatch(r"TERM@\d+", options["signal"])  # "B:" would signal only the script
    assert "requeue" in options
    assert options["open-mode"] == "append"
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "gpus-per-task" not in options
