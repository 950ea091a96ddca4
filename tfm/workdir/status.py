"""The progress of a run. Only reads its work directory, so that a run that trains is not disturbed."""

import contextlib
import functools
import itertools
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tfm import tasks
from tfm.checkpoints.store import list_steps
from tfm.config import dotted_names, load
from tfm.errors import UserError
from tfm.io.lock import find_holder
from tfm.training.run_log import read_metrics
from tfm.training.scores import Scores, find_best
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.training.task import Task
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle
from tfm.workdir.evaluations import EvaluationRecord, read_evaluations
from tfm.workdir.starts import last_start

LINES = 10  # number of log lines that decide the estimate of the time left
DEPTH = 4  # levels of folders to search for runs


class DiskUse(NamedTuple):
    """The size of a folder.

    Attributes:
      bytes: sum of the sizes of all files that were found.
      unreadable_folders: number of folders in it that cannot be listed, so their files are not counted.
    """

    bytes: int
    unreadable_folders: int


class Status(NamedTuple):
    """The progress of a run.

    Attributes:
      workdir: folder of the run.
      config: config of the run.
      is_export: whether the folder is an export. Exports cannot be trained.
      holder: description of the process that trains in the folder, or "".
      step: number of completed updates, from the log and the checkpoints.
      has_ended: whether the run has completed its steps or was ended by its patience.
      training: last training line of the log, {"train/loss": ...}. {} before the first line.
      validation: last validation line of the log, {"validation/bleu": ...}. {} before the first evaluation.
      best: (step, value) of the best evaluation by `best_metric`. None before the first evaluation.
      best_metric: name of the metric that selects the best checkpoint. "" if the task cannot be opened.
      unit: unit of the speed in `training`, such as "tokens". "" if the task cannot be opened.
      seconds_left: estimate from the speed of the last log lines. None if no process trains.
      checkpoints: their steps, in ascending order.
      disk: disk use of the whole folder.
      start: last line of starts.jsonl. {} if there is none.
      evaluations: {file name of an evaluation without its ending: its record}.
    """

    workdir: str
    config: Any
    is_export: bool
    holder: str
    step: int
    has_ended: bool
    training: dict[str, float]
    validation: dict[str, float]
    best: tuple[int, float] | None
    best_metric: str
    unit: str
    seconds_left: float | None
    checkpoints: list[int]
    disk: DiskUse
    start: dict[str, Any]
    evaluations: dict[str, EvaluationRecord]

    @property
    def state(self) -> str:
        """The state in a word or two: training, export, finished, stopped, evaluations, or not started.

        A run has started when it was once ready for its first step. A folder of --output_dir contains only
        evaluations of a run in another folder.
        """
        if self.holder:
            return "training"
        if self.is_export:
            return "export"
        if self.has_ended:
            return "finished"
        if self.step > 0 or self.start:
            return "stopped"
        return "evaluations" if self.evaluations else "not started"


def read_status(workdir: str) -> Status:
    """Reads the `Status` of a run.

    Raises:
      UserError: if there is no run, or this version cannot read its config.
    """
    config, rows = _read_config(workdir), []
    with contextlib.suppress(UserError):  # before its first line, the log does not exist
        rows = read_metrics(workdir)
    training = [row for row in rows if "train/loss" in row]
    validation = [row for row in rows if any(name.startswith("validation/") for name in row)]
    checkpoints, holder = list_steps(os.path.join(workdir, CHECKPOINT_FOLDER)), find_holder(workdir)
    step = max([*checkpoints, *(int(row["step"]) for row in training[-1:])], default=0)
    task = _find_task(config, workdir)
    scores = _open_scores(task, config, workdir)
    seconds = seconds_per_step(training[-LINES:]) if holder else None
    return Status(
        workdir=workdir,
        config=config,
        is_export=is_bundle(workdir),
        holder=holder,
        step=step,
        has_ended=has_ended(config, step, scores),
        training=training[-1] if training else {},
        validation=validation[-1] if validation else {},
        best=scores.best() if scores else None,
        best_metric=find_best(task, config.training).metric if task else "",
        unit=task.unit if task else "",
        seconds_left=None if seconds is None else seconds * (config.training.steps - training[-1]["step"]),
        checkpoints=checkpoints,
        disk=measure_folder(workdir),
        start=last_start(workdir),
        evaluations=dict(read_evaluations(workdir)),
    )


def _read_config(workdir: str) -> Any:
    """Reads the config of a run, or its fields alone if it names modules that may not be imported.

    Raises:
      UserError: if there is no run, or its config cannot be read and names no modules.
    """
    try:
        return runs.open_folder(workdir).config
    except UserError:
        if not os.path.isdir(workdir):
            raise
        mapping = load(runs.config_path(workdir))
        if not dotted_names(mapping):
            raise
        fields = json.loads(json.dumps(mapping), object_hook=lambda section: SimpleNamespace(**section))
        known = (getattr(fields, "task", None), getattr(getattr(fields, "model", None), "name", None))
        steps = getattr(getattr(fields, "training", None), "steps", None)
        if not all(isinstance(name, str) for name in known) or not isinstance(steps, int):
            raise
        return fields


def find_runs(folder: str, unreadable: dict[str, OSError] | None = None) -> list[str]:
    """Returns the sorted work directories of the runs in a folder. The folder itself may be one of them.

    Symbolic links are followed, and each run is returned once. A run that has checkpoints is not searched for
    other runs. Hidden folders, and folders more than `DEPTH` levels below `folder`, are not searched.

    Args:
      folder: Folder of the runs.
      unreadable: Receives the error of each folder that cannot be listed, and in which there may be runs.

    Raises:
      UserError: if the folder does not exist.
    """
    errors: dict[str, OSError] = {} if unreadable is None else unreadable

    def add_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the folder was deleted during the search
            errors[error.filename] = error

    if not os.path.isdir(folder):
        raise UserError(f"Expected a folder of runs at {folder}, but there is none: check the path.")
    folders, root, visited = [], os.path.abspath(folder).count(os.sep), set()
    for path, names, files in os.walk(folder, onerror=add_error, followlinks=True):
        if (real := os.path.realpath(path)) in visited:
            names.clear()
            continue
        visited.add(real)
        if runs.CONFIG_FILE in files:
            folders.append(path)
            if CHECKPOINT_FOLDER in names:  # otherwise, the config may not belong to a run
                names.clear()
        elif os.path.abspath(path).count(os.sep) - root >= DEPTH:
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]
    return sorted(folders)


def measure_folder(folder: str) -> DiskUse:
    """Returns the sum of the sizes of all files below a folder, and the number of folders it could not read.

    Skips files that training deletes during the count. A folder that does not exist has 0 bytes. Symbolic
    links inside the folder are not followed.
    """
    total, unreadable = 0, 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            pass
        except OSError:
            unreadable += 1
    return DiskUse(total, unreadable)


def open_scores(config: Any, workdir: str) -> Scores | None:
    """Returns the scores of the evaluations during training, or None if the task cannot be opened."""
    return _open_scores(_find_task(config, workdir), config, workdir)


def _open_scores(task: Task | None, config: Any, workdir: str) -> Scores | None:
    return Scores(workdir, find_best(task, config.training), task.validation_loss) if task else None


def has_ended(config: Any, step: int, scores: Scores | None) -> bool:
    """Returns whether a run has completed all training steps at a step, or was ended by its patience.

    Args:
      config: config of the run.
      step: number of completed steps.
      scores: see `open_scores`.
    """
    if step >= config.training.steps:
        return True
    return scores is not None and bool(scores.describe_end(step, config.training))


def _find_task(config: Any, workdir: str) -> Task | None:
    """Returns the task, or None if it cannot be opened, for example because its tokenizer is missing."""
    if isinstance(config, SimpleNamespace):
        return None
    module = tasks.find(config.task)
    # A planned task does not load the tokenizer, which takes most of the time of `tfm list`.
    for make in (getattr(module, "plan", None), functools.partial(module.create, workdir=workdir, new=False)):
        with contextlib.suppress(UserError):
            if make is not None:
                task: Task = make(config)
                return task
    return None


def seconds_per_step(rows: Sequence[Mapping[str, float]]) -> float | None:
    """Returns the median seconds for a step between training lines of the log, or None below two lines.

    The median ignores evaluations and the pause between two starts of a run.
    """
    pairs = itertools.pairwise(row for row in rows if "train/loss" in row)
    seconds = [(new["time"] - old["time"]) / (new["step"] - old["step"]) for old, new in pairs]
    return statistics.median(seconds) if seconds else None
