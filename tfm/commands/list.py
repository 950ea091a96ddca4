"""Lists the runs in folders, one run on each line: tfm list [FOLDER ...]

Searches each folder and the folders below it. The default folder is runs/. The last column shows the first
score of each evaluation that `tfm evaluate` wrote. A folder that cannot be searched has a line with
the error.
"""

import os
from collections.abc import Sequence

from tfm.commands.command import command
from tfm.commands.options import List
from tfm.commands.status import format_disk_use
from tfm.errors import UserError, escape
from tfm.io import local_copies
from tfm.workdir.evaluations import EvaluationRecord
from tfm.workdir.status import find_runs, read_status

FOLDER = "runs"
COLUMNS = ("run", "model", "step", "state", "best", "disk", "scores")


@command
def main(options: List) -> None:
    """Prints a table with one line for each run in the folders, also for a run in several of the folders.

    Raises:
      UserError: if there is no run.
    """
    folders = options.folders or (FOLDER,)
    runs: dict[str, str] = {}
    unreadable: dict[str, OSError] = {}
    for folder in folders:
        for workdir in find_runs(folder, unreadable):
            runs.setdefault(os.path.realpath(workdir), workdir)  # each run once
    rows = [describe(workdir) for workdir in runs.values()]
    rows += [_describe_error(path, error) for path, error in sorted(unreadable.items())]
    if not rows:
        raise UserError(f"There is no run in {', '.join(folders)}. Train a model, or give another folder.")
    print("\n".join(map(escape, format_table([COLUMNS, *rows]))))


def describe(workdir: str) -> tuple[str, ...]:
    """Returns the cells of a run in the order of `COLUMNS`. A run that cannot be read shows the error."""
    try:
        status = read_status(workdir)
    except (UserError, OSError) as error:
        return _describe_error(workdir, error)
    best = "" if status.best is None else f"{status.best_metric.rpartition('/')[2]} {status.best[1]:.4g}"
    return (
        local_copies.show(workdir),
        status.config.model.name,
        "" if status.is_export else f"{status.step:,}/{status.config.training.steps:,}",
        status.state,
        best,
        format_disk_use(status.disk),
        "  ".join(f"{name}: {_first_score(each)}" for name, each in status.evaluations.items()),
    )


def _describe_error(folder: str, error: Exception) -> tuple[str, ...]:
    """Returns the cells of a folder that cannot be read."""
    return (local_copies.show(folder), "", "", "unreadable", "", "", local_copies.show(str(error)))


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _first_score(evaluation: EvaluationRecord) -> str:
    """Returns the first score of an evaluation with its name."""
    if not evaluation.scores:
        return "no score"
    first = evaluation.scores[0]
    return f"{first.name} {first.format_value()}"
