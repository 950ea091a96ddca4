"""The processes of a sweep: each run is trained and evaluated by the commands themselves, some at a time."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfm.errors import UserError
from tfm.sweep.plan import PlannedRun
from tfm.training.reporting import format_duration, read_metrics

LOG_FILE = "log.txt"
COMMAND = (sys.executable, "-m", "tfm")
COMPILED_FOLDER = "compiled"
POLL_SECONDS = 0.5
REPORT_SECONDS = 30.0
log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """A run that ended with an error: its name, exit code, and the last line of its log."""

    name: str
    code: int
    message: str

    def __str__(self):
        return f"{self.name} ended with exit code {self.code}: {self.message}"


class RunProcess:
    """The commands of one run, one after the other, their output in its log.

    Attributes:
      run: the `PlannedRun`.
    """

    def __init__(self, run: PlannedRun, evaluate: Sequence[str], programs: str):
        workdir = f"--workdir={run.workdir}"
        self.run = run
        self._left = [["train", *run.arguments, workdir], ["evaluate", workdir, *evaluate]]
        self._environment = {"JAX_COMPILATION_CACHE_DIR": programs} | os.environ
        self._process: subprocess.Popen | None = None
        os.makedirs(run.workdir, exist_ok=True)
        self.log_path = os.path.join(run.workdir, LOG_FILE)
        self._first_step = self._read_step()[0]

    def poll(self) -> int | None:
        """Starts the next command where the last one is done.

        Returns:
          The exit code of the run, None while it runs.
        """
        code = 0 if self._process is None else self._process.poll()
        if code == 0 and self._left:
            self._start(self._left.pop(0))
            return None
        return code

    def stop(self) -> None:
        """Asks the command to save and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Waits for the end of the command."""
        if self._process is not None:
            self._process.wait()

    def last_line(self) -> str:
        """The last line of its log that is not empty."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def describe(self) -> str:
        """Where it is, for the line of progress."""
        if not self._left:
            return f"{self.run.name}: evaluates"
        step, loss = self._read_step()
        if loss is None:
            return f"{self.run.name}: starts"
        return f"{self.run.name}: step {step:,}/{self.run.config.training.steps:,} loss {loss:.4f}"

    def count_steps(self) -> int:
        """Steps that it has made since this object was made."""
        return self._read_step()[0] - self._first_step

    def count_steps_left(self) -> int:
        """Steps that it has still to make."""
        return self.run.config.training.steps - self._read_step()[0]

    def _read_step(self):
        """(newest step, its loss); (0, None) before the first."""
        try:
            row = [row for row in read_metrics(self.run.workdir) if "train/loss" in row][-1]
        except (UserError, IndexError):
            return 0, None
        return row["step"], row["train/loss"]

    def _start(self, arguments):
        command = [*COMMAND, *arguments]
        with open(self.log_path, "ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self._environment
            )


def execute_runs(
    runs: Sequence[PlannedRun],
    evaluate: Sequence[str],
    workdir: str,
    at_once: int,
    on_finished: Callable[[PlannedRun], None],
) -> list[Failure]:
    """Trains and evaluates runs, each in processes of its own, and goes on where one fails.

    However it ends, no process is left: each is asked to save and end.

    Args:
      runs: in the order in which they start.
      evaluate: arguments of `tfm evaluate`.
      workdir: of the sweep; compiled programs are kept in it, as seeds share them.
      at_once: how many runs there are at a time.
      on_finished: called after each run that was trained and evaluated.

    Returns:
      The runs that failed.
    """
    programs = os.path.join(os.path.abspath(workdir), COMPILED_FOLDER)
    waiting, failures = list(runs), []
    running: list[RunProcess] = []
    ended: list[RunProcess] = []
    began = reported = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(RunProcess(waiting.pop(0), evaluate, programs))
            failures += _move_ended(running, ended, on_finished)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                report_progress(waiting, running, ended, reported - began)
            time.sleep(POLL_SECONDS)
    finally:
        for each in running:
            each.stop()
        for each in running:
            each.wait()
    return failures


def _move_ended(running, ended, on_finished):
    """Moves what has ended from the list `running` to the list `ended`, and returns the runs that failed."""
    failures = []
    for each in list(running):
        code = each.poll()
        if code is None:
            continue
        running.remove(each)
        ended.append(each)
        if code == 0:
            on_finished(each.run)
            continue
        failures.append(Failure(each.run.name, code, each.last_line()))
        log.warning("%s; its log is %s", failures[-1], each.log_path)
    return failures


def report_progress(
    waiting: Sequence[PlannedRun], running: Sequence[RunProcess], ended: Sequence[RunProcess], seconds: float
) -> None:
    """Logs what the running processes do, how many runs are done, and the time left.

    Args:
      waiting, running, ended: the runs that have not begun, and the processes.
      seconds: since the first process began.
    """
    where = "; ".join(each.describe() for each in running)
    total = len(waiting) + len(running) + len(ended)
    left = estimate_left(waiting, running, ended, seconds)
    time_left = "time left not known yet" if left is None else f"about {format_duration(left)} left"
    log.info("%s; %s of %s runs done, %s", where, len(ended), total, time_left)


def estimate_left(
    waiting: Sequence[PlannedRun], running: Sequence[RunProcess], ended: Sequence[RunProcess], seconds: float
) -> float | None:
    """Returns the seconds left if each step takes as long as the steps before it, evaluations included.

    Returns None before the first step.
    """
    made = sum(each.count_steps() for each in [*running, *ended])
    if not made:
        return None
    left = sum(run.config.training.steps for run in waiting)
    left += sum(each.count_steps_left() for each in running)
    return seconds / made * left
