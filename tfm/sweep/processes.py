"""The processes of a sweep. They run `tfm train` and `tfm evaluate`, several runs at the same time."""

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tfm
from tfm.errors import WARNING_MARK, UserError
from tfm.io.files import no_link
from tfm.sweep.plan import PlannedRun
from tfm.training.run_log import read_metrics
from tfm.training.trackers.run_ids import RUN_VARIABLES
from tfm.workdir.compiled_programs import COMPILED_FOLDER

LOG_FILE = "log.txt"
WARNING = re.compile(rf"\d\d:\d\d:\d\d {WARNING_MARK}(.*)")  # a line of the log
# Python imports nothing from the current folder in place of a library (-P), and finds tfm in a clone, too.
PROGRAM = (
    f"import sys; sys.path.append({os.path.dirname(os.path.dirname(tfm.__file__))!r}); "
    "from tfm.commands.child_process import run_with_parent; run_with_parent(sys.argv[1:])"
)
COMMAND = (sys.executable, "-P", "-c", PROGRAM)
POLL_SECONDS = 0.5
REPORT_SECONDS = 30.0
log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """A run that ended with an error.

    Attributes:
      name: name of the run.
      code: exit code of its process.
      message: last line of its log.
    """

    name: str
    code: int
    message: str

    def __str__(self):
        return f"{self.name} ended with exit code {self.code}: {self.message}"


def make_environment(programs: str) -> dict[str, str]:
    """Returns the environment variables of the processes of a run.

    Variables that select a run of a tracker are left out, because all runs of the sweep would write into it.

    Args:
      programs: folder of compiled programs, unless the environment sets another folder.
    """
    shared = {name: value for name, value in os.environ.items() if name not in RUN_VARIABLES}
    return {"JAX_COMPILATION_CACHE_DIR": programs} | shared


class RunProcess:
    """The processes of a run: training, then evaluation. Their output goes to the log of the run.

    Attributes:
      run: the `PlannedRun`.
      log_path: the path of the log.
    """

    def __init__(self, run: PlannedRun, evaluate: Sequence[str], programs: str):
        workdir = f"--workdir={run.workdir}"
        self.run = run
        self._left = [["train", *run.arguments, workdir], ["evaluate", workdir, *evaluate]]
        self._environment = make_environment(programs)
        self._process: subprocess.Popen | None = None
        os.makedirs(run.workdir, exist_ok=True)
        self.log_path = os.path.join(run.workdir, LOG_FILE)

    def poll(self) -> int | None:
        """Starts the next command if the previous command has succeeded.

        Returns:
          The exit code of the run, or None while it runs.
        """
        code = 0 if self._process is None else self._process.poll()
        if code != 0 or not self._left:
            return code
        self.wait()
        with open(self.log_path, "ab", opener=no_link) as file:
            # If this process is killed, the pipe ends the command, see `tfm.commands.child_process`.
            self._process = subprocess.Popen(
                [*COMMAND, *self._left.pop(0)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=self._environment,
            )
        return None

    def stop(self) -> None:
        """Sends SIGTERM to the command, so that it saves a checkpoint and exits."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Waits for the end of the command, and closes the pipe to it."""
        if self._process is not None:
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def last_line(self) -> str:
        """Returns the last line of the log that is not empty."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def list_warnings(self) -> list[str]:
        """Returns the warnings in the log, without their times and each text once."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            matches = map(WARNING.match, file)
            return list(dict.fromkeys(match[1] for match in matches if match))

    def describe(self) -> str:
        """Returns the progress of the run for a log message.

        For example, "base seed 1: step 100/1,000 loss 2.1034". Before the first log line, the text after the
        name is "starts". After the training, it is "evaluates".
        """
        if not self._left:
            return f"{self.run.name}: evaluates"
        step, loss = read_step(self.run)
        if loss is None:
            return f"{self.run.name}: starts"
        return f"{self.run.name}: step {step:,}/{self.run.config.training.steps:,} loss {loss:.4f}"


def execute_runs(
    runs: Sequence[PlannedRun],
    evaluate: Sequence[str],
    workdir: str,
    jobs: int,
    on_finished: Callable[[PlannedRun], object],
) -> list[Failure]:
    """Trains and evaluates runs in separate processes. A failed run does not stop the other runs.

    Logs the progress and each run that fails. Logs the warnings of the runs, and a warning that several runs
    have once, with the first of them. If an exception ends this function, it first asks all processes to save
    and exit, and waits for them.

    Args:
      runs: the runs in the order in which they start.
      evaluate: arguments of `tfm evaluate`, without --workdir.
      workdir: work directory of the sweep. It also contains the compiled programs that all seeds share.
      jobs: maximum number of runs at the same time.
      on_finished: function that is called with each run after its training and evaluation.

    Returns:
      The runs that failed.
    """
    programs = os.path.join(os.path.abspath(workdir), COMPILED_FOLDER)
    if ignored := [name for name in RUN_VARIABLES if name in os.environ]:
        log.warning(
            "Ignoring %s, because all runs of the sweep would share one run of the tracker",
            " and ".join(ignored),
        )
    waiting, running = list(runs), list[RunProcess]()
    failures: list[Failure] = []
    shown_warnings = set[str]()
    reported = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(RunProcess(waiting.pop(0), evaluate, programs))
            for process in list(running):
                if (code := process.poll()) is None:
                    continue
                running.remove(process)
                process.wait()
                for warning in process.list_warnings():
                    if warning not in shown_warnings:
                        log.warning("%s: %s", process.run.name, warning)
                    shown_warnings.add(warning)
                if code == 0:
                    on_finished(process.run)
                else:
                    failures.append(Failure(process.run.name, code, process.last_line()))
                    log.warning("%s; its log is %s", failures[-1], process.log_path)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                report_progress(runs, waiting, running)
            time.sleep(POLL_SECONDS)
    finally:
        for process in running:
            process.stop()
        for process in running:
            process.wait()
    return failures


def read_step(run: PlannedRun) -> tuple[int, float | None]:
    """Returns (newest logged step of a run, its loss), or (0, None) before the first."""
    try:
        row = [row for row in read_metrics(run.workdir) if "train/loss" in row][-1]
    except (UserError, IndexError):
        return 0, None
    return int(row["step"]), row["train/loss"]


def report_progress(
    runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun], running: Sequence[RunProcess]
) -> None:
    """Logs the progress of the running processes, and the number of finished runs.

    Args:
      runs: all runs.
      waiting: the runs that have not started.
      running: the processes that run.
    """
    log.info(
        "%s; %s of %s runs done",
        "; ".join(process.describe() for process in running),
        len(runs) - len(waiting) - len(running),
        len(runs),
    )
