"""What a run has done so far, read from its work directory alone; a run that is training is not disturbed."""

import contextlib
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfm import tasks
from tfm.checkpoints.store import list_steps
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.io.lock import find_holder
from tfm.io.provenance import last_start
from tfm.training.reporting import read_metrics
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle

SCORES_SUFFIX = ".scores.json"
LINES = 10  # of the log, from which the time left is estimated
DEPTH = 4  # folders below the one that is searched for runs


class Evaluation(NamedTuple):
    """An evaluation of a run.

    Attributes:
      scores: as `tfm evaluate` printed them.
      steps: of the checkpoints that were evaluated; [] where the file does not tell.
    """

    scores: list[Score]
    steps: list[int]


class Status(NamedTuple):
    """A run so far.

    Attributes:
      workdir: its folder.
      config: of its task.
      is_export: whether it is an exported model, which is not trained.
      holder: the process that trains in it, "" for none.
      step: updates made, by the log and the checkpoints.
      training: the last line of its log, {"train/loss": ...}; {} before the first.
      validation: the last evaluation, {"validation/bleu": ...}; {} before the first.
      best: (step, value) of the best evaluation by the metric of its task; None before the first.
      best_metric: the name of that metric; "" where the task cannot be opened.
      unit: of what `training` counts a second, such as "tokens".
      seconds_left: at the speed of the last lines of the log, while a process trains; else None.
      checkpoints: {step: bytes}, ascending.
      disk: bytes of the whole folder.
      start: the last line of starts.jsonl; {} for none.
      evaluations: {file name of an evaluation: what `tfm evaluate` left of it}.
    """

    workdir: str
    config: Any
    is_export: bool
    holder: str
    step: int
    training: dict[str, float]
    validation: dict[str, float]
    best: tuple[int, float] | None
    best_metric: str
    unit: str
    seconds_left: float | None
    checkpoints: dict[int, int]
    disk: int
    start: dict[str, Any]
    evaluations: dict[str, Evaluation]

    @property
    def is_finished(self) -> bool:
        """Whether all steps are made."""
        return self.step >= self.config.training.steps


def read_status(workdir: str) -> Status:
    """The `Status` of a run.

    Raises:
      UserError: there is no run, or its config does not fit this version.
    """
    config, rows = runs.read_config(workdir), []
    with contextlib.suppress(UserError):  # before its first line
        rows = read_metrics(workdir)
    training = [row for row in rows if "train/loss" in row]
    validation = [row for row in rows if any(name.startswith("validation/") for name in row)]
    checkpoints, holder = _find_checkpoints(workdir), find_holder(workdir)
    step = max([*checkpoints, *(row["step"] for row in training[-1:])], default=0)
    best, unit = _find_task(config, workdir)
    return Status(
        workdir=workdir,
        config=config,
        is_export=is_bundle(workdir),
        holder=holder,
        step=step,
        training=training[-1] if training else {},
        validation=validation[-1] if validation else {},
        best=_find_best(validation, best) if best else None,
        best_metric=best.metric if best else "",
        unit=unit,
        seconds_left=_seconds_left(training, config.training.steps) if holder else None,
        checkpoints=checkpoints,
        disk=folder_bytes(workdir),
        start=last_start(workdir),
        evaluations=dict(_read_evaluations(workdir)),
    )


def find_runs(folder: str) -> list[str]:
    """The work directories in a folder, itself among them, sorted.

    Raises:
      UserError: there is no such folder.
    """
    if not os.path.isdir(folder):
        raise UserError(f"Expected a folder of runs at {folder}, but there is none: check the path.")
    found, root = [], os.path.abspath(folder).count(os.sep)
    for path, names, files in os.walk(folder):
        if runs.CONFIG_FILE in files:
            found.append(path)
            names.clear()  # what is in a run is no run
        elif os.path.abspath(path).count(os.sep) - root >= DEPTH:
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]
    return sorted(found)


def folder_bytes(folder: str) -> int:
    """Bytes of the files in a folder; one that training deletes meanwhile counts nothing."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def _find_task(config, workdir):
    """(`Best`, unit) of the task; (None, "") where it cannot be opened, as without its tokenizer."""
    try:
        task = tasks.find(config.task).create(config, workdir, new=False)
    except UserError:
        return None, ""
    return task.best, task.unit


def _find_best(rows, best):
    measured = [
        (row["step"], row[best.metric]) for row in rows if not math.isnan(row.get(best.metric, math.nan))
    ]
    choose = max if best.order == "max" else min
    return choose(reversed(measured), key=lambda pair: pair[1], default=None)  # of equals the newest


def _seconds_left(rows, steps):
    """At the median speed of the last lines, so that the time between two starts does not count."""
    pairs = itertools.pairwise(rows[-LINES:])
    seconds = [(new["time"] - old["time"]) / (new["step"] - old["step"]) for old, new in pairs]
    return statistics.median(seconds) * (steps - rows[-1]["step"]) if seconds else None


def _find_checkpoints(workdir):
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return {step: folder_bytes(os.path.join(folder, str(step))) for step in list_steps(folder)}


def _read_evaluations(workdir: str) -> Iterator[tuple[str, Evaluation]]:
    for name in sorted(os.listdir(workdir)):
        if not name.endswith(SCORES_SUFFIX):
            continue
        with contextlib.suppress(OSError, AttributeError, ValueError, KeyError, TypeError):
            with open(os.path.join(workdir, name), encoding="utf-8") as file:
                found = json.load(file)
            scores = list(map(Score.read, found["scores"]))
            steps = list(map(int, found.get("checkpoints", [])))
            yield name.removesuffix(SCORES_SUFFIX), Evaluation(scores, steps)
