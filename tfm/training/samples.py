"""Writes and reads the samples of a run: examples of the model's outputs at each evaluation."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tfm.errors import UserError
from tfm.io import markdown
from tfm.io.files import append_json_line, read_json_lines, writing
from tfm.training.hooks import Hook
from tfm.training.run_log import RESUMED, drop_repeated
from tfm.training.task import Samples

SAMPLES_FILE = "samples.jsonl"
SAMPLES_FOLDER = "samples"  # contains the pictures


class StepSamples(NamedTuple):
    """The samples of one evaluation.

    Attributes:
      step: step of the evaluation.
      rows: see `tfm.training.task.Samples`.
      pictures: {name: path of the PNG file}, only for files that exist.
    """

    step: int
    rows: list[dict[str, str]]
    pictures: dict[str, str]


class SamplesWriter(Hook):
    """A hook that writes the samples of each evaluation into the work directory.

    Each line of samples.jsonl is a JSON object: {"step": int, "time": seconds since the epoch, "rows":
    [{name: text}], "pictures": [name]}. The pictures are PNG files in the folder samples. A line with
    "resumed" marks a restart, as in metrics.jsonl.

    Raises:
      UserError: from any method, if an I/O operation fails.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir
        self._path = os.path.join(workdir, SAMPLES_FILE)

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Marks the restart in a file that exists."""
        if os.path.exists(self._path):
            append_json_line(self._path, {"step": step, RESUMED: 1})

    def on_samples(self, step: int, samples: Samples) -> None:
        """Draws the pictures, then writes a line."""
        with writing(self._path):
            if samples.pictures and not os.path.isdir(folder := os.path.join(self._workdir, SAMPLES_FOLDER)):
                os.mkdir(folder)  # `os.makedirs` would create a deleted work directory again
            for name, draw in samples.pictures.items():
                draw(picture_path(self._workdir, step, name))
        line = {"step": step, "time": round(time.time(), 3), "rows": samples.rows}
        append_json_line(self._path, line | {"pictures": list(samples.pictures)})


def read_samples(workdir: str) -> list[StepSamples]:
    """Returns the samples of a run, sorted by step.

    A resumed run repeats the steps after its checkpoint. The samples that it wrote for these steps before the
    restart are left out, and so is a line that a kill has cut. If a step has two lines, the later line
    counts.

    Raises:
      UserError: if the run has no samples.
    """
    path = os.path.join(workdir, SAMPLES_FILE)
    lines_by_step = {line["step"]: line for line in drop_repeated(read_json_lines(path, {"step": int}))}
    if not lines_by_step:
        raise UserError(
            f"Expected samples of a run at {path}, but none exist. Set validation_samples above 0 if the "
            "task has this field."
        )
    return [_open_line(workdir, line) for _, line in sorted(lines_by_step.items())]


def picture_path(workdir: str, step: int, name: str) -> str:
    """Returns the path of a picture of a step."""
    return os.path.join(workdir, SAMPLES_FOLDER, f"{step_name(step)}-{name}.png")


def step_name(step: int) -> str:
    """Returns the name of a step for file names, with leading zeros so that files sort by step."""
    return f"step-{step:010}"


def format_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns rows with the same names as a table in Markdown."""
    return markdown.format_table(list(rows[0]), [list(row.values()) for row in rows])


def _open_line(workdir: str, line: dict[str, Any]) -> StepSamples:
    """Returns the samples of a line, with the paths of its pictures."""
    paths = {name: picture_path(workdir, line["step"], name) for name in line["pictures"]}
    existing = {name: path for name, path in paths.items() if os.path.isfile(path)}
    return StepSamples(line["step"], line["rows"], existing)
