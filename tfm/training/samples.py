"""Examples of a model's outputs at each evaluation: written beside the metrics, and read back."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfm.errors import UserError
from tfm.io.files import end_last_line, read_json_lines, writing
from tfm.training.hooks import Hook
from tfm.training.task import Samples

SAMPLES_FILE = "samples.jsonl"
SAMPLES_FOLDER = "samples"  # of the pictures


class StepSamples(NamedTuple):
    """The samples of one evaluation, as they were written.

    Attributes:
      step: of the evaluation.
      rows: see `tfm.training.task.Samples`.
      pictures: {name: path of the PNG file}, of those that are there.
    """

    step: int
    rows: list[dict[str, str]]
    pictures: dict[str, str]


class SamplesWriter(Hook):
    """Writes the samples of each evaluation into the work directory.

    samples.jsonl has one object a line: {"step": int, "time": seconds since the epoch, "rows": [{name:
    text}], "pictures": [name]}; the pictures are PNG files in the folder samples.

    Raises:
      UserError: from any method, an I/O error.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir

    def on_samples(self, step: int, samples: Samples) -> None:
        """Draws the pictures, then writes a line."""
        path = os.path.join(self._workdir, SAMPLES_FILE)
        with writing(path):
            if samples.pictures and not os.path.isdir(folder := os.path.join(self._workdir, SAMPLES_FOLDER)):
                os.mkdir(folder)  # never the work directory, which may have been deleted
            for name, draw in samples.pictures.items():
                draw(picture_path(self._workdir, step, name))
            end_last_line(path)
            line = {"step": step, "time": round(time.time(), 3), "rows": samples.rows}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line | {"pictures": list(samples.pictures)}) + "\n")


def read_samples(workdir: str) -> list[StepSamples]:
    """The samples of a run, by ascending step.

    After a restart there can be two lines of a step; the later one counts. Other lines are left out.

    Raises:
      UserError: there are none.
    """
    path = os.path.join(workdir, SAMPLES_FILE)
    lines = read_json_lines(path) if os.path.isfile(path) else ()
    found = {line["step"]: line for line in lines if _is_line(line)}
    if not found:
        raise UserError(
            f"Expected samples of a run at {path}, but there are none: set validation_samples above 0 where "
            "the task has this field."
        )
    return [_open_line(workdir, found[step]) for step in sorted(found)]


def picture_path(workdir: str, step: int, name: str) -> str:
    """The path of a picture of a step."""
    return os.path.join(workdir, SAMPLES_FOLDER, f"{step_name(step)}-{name}.png")


def step_name(step: int) -> str:
    """The name of a step in the names of files, which stand in order."""
    return f"step-{step:010}"


def format_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same names as a table in Markdown."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(map(_format_cell, line))} |" for line in lines)


def format_samples(found: Sequence[StepSamples], folder: str) -> str:
    """A page in Markdown: each example with its texts over the steps, and all pictures.

    Texts that are the same at all steps, such as a source, stand once above the table of the others.

    Args:
      found: as `read_samples` gives them.
      folder: of the page, from which it links the pictures.
    """
    parts = [
        _format_example(number, [(each.step, each.rows[number]) for each in found if number < len(each.rows)])
        for number in range(max(len(each.rows) for each in found))
    ]
    pictures = [
        f"![{name}, step {each.step:,}](<{os.path.relpath(path, folder)}>)"
        for each in found
        for name, path in each.pictures.items()
    ]
    parts += ["## Pictures", *pictures] if pictures else []
    page = "\n\n".join(["# Samples", *parts]) + "\n"
    return page.encode("utf-8", "replace").decode("utf-8")  # JSON may hold halves of characters


def _format_example(number, rows):
    """The part of the page about one example, from its (step, row) pairs."""
    (_, first), *_ = rows
    same = [name for name in first if len(rows) > 1 and len({row.get(name) for _, row in rows}) == 1]
    varying = [name for name in first if name not in same] or same[-1:]
    table = [{"step": f"{step:,}"} | {name: row.get(name, "") for name in varying} for step, row in rows]
    once = [f"{name}: {_format_cell(first[name])}" for name in same if name not in varying]
    return "\n\n".join([f"## {number + 1}", *once, format_table(table)])


def _format_cell(text):
    """Text that stays in its cell: no line ends, and no column ends but its own."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


def _open_line(workdir: str, line: dict[str, Any]) -> StepSamples:
    paths = {name: picture_path(workdir, line["step"], name) for name in line["pictures"]}
    there = {name: path for name, path in paths.items() if os.path.isfile(path)}
    return StepSamples(line["step"], line["rows"], there)


def _is_line(line):
    """Whether a line of the file is one that `SamplesWriter` writes."""
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return False
    rows, pictures = line.get("rows"), line.get("pictures")
    return (
        isinstance(rows, list)
        and all(isinstance(row, dict) and _are_texts(row.values()) for row in rows)
        and isinstance(pictures, list)
        and _are_texts(pictures)
        and not any(os.path.basename(name) != name for name in pictures)
    )


def _are_texts(values):
    return all(isinstance(value, str) for value in values)
