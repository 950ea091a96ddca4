"""The ledger of a sweep: a line of JSON for each finished run, with its scores, config and environment."""

import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from tfm.config import from_mapping
from tfm.errors import UserError
from tfm.fields import changes
from tfm.io.files import end_last_line, read_json_lines
from tfm.io.provenance import last_start
from tfm.sweep.plan import PlannedRun
from tfm.training.run_log import read_metrics

LEDGER_FILE = "ledger.jsonl"
PACKAGES = ("python", "tfm", "jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "sacrebleu")
FIELDS = {"variant": str, "seed": int, "config": dict, "scores": list}


def read_ledger(workdir: str) -> list[dict[str, Any]]:
    """Reads the rows of the ledger in the order in which their runs finished. Returns [] without a ledger.

    Skips an incomplete line that a kill left. The run of that line is evaluated again.
    """
    path = os.path.join(workdir, LEDGER_FILE)
    if not os.path.isfile(path):
        return []
    return [row for row in read_json_lines(path) if _is_row(row)]


def _is_row(row: Any) -> bool:
    """Returns whether a value is a complete row."""
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in FIELDS.items())


def check_ledger(
    rows: Sequence[dict[str, Any]], runs: Sequence[PlannedRun], workdir: str, split: str, checkpoint: str
) -> None:
    """Checks that the finished and the planned runs may be compared in one table.

    Args:
      rows: rows of the ledger.
      runs: the runs as they are planned now. They must include all finished runs.
      workdir: work directory of the sweep.
      split: name of the split to evaluate.
      checkpoint: checkpoint to evaluate, "last" or "best".

    Raises:
      UserError: if finished runs have other configs than the planned runs (the message lists all of them), or
        if a run was evaluated on another split, at another checkpoint, or on other texts than the first run.
    """
    _check_configs(rows, runs, workdir)
    asked = {"split": split, "checkpoint": checkpoint}
    if rows and "texts" in rows[0]:
        asked["texts"] = rows[0]["texts"]
    for row in rows:
        other = [name for name, value in asked.items() if row.get(name, value) != value]
        if other:
            raise UserError(
                f"{workdir} has {row['variant']} seed {row['seed']}, evaluated with another "
                f"{' and '.join(other)} ({', '.join(f'{name} {row[name]}' for name in other)}), and a table "
                "cannot contain both. Give another --workdir, or the same flags as before."
            )


def _check_configs(rows: Sequence[dict[str, Any]], runs: Sequence[PlannedRun], workdir: str) -> None:
    """Raises a UserError that lists all finished runs whose config differs from the planned config."""
    finished = {(row["variant"], row["seed"]): row["config"] for row in rows}
    found = []
    for run in runs:
        config = finished.get((run.variant.name, run.seed))
        if config is None:
            continue
        before = from_mapping(type(run.config), config)  # also adds the fields of later versions
        if before != run.config:
            found.append(f"{run.name} ({'; '.join(map(str, changes(before, run.config)))})")
    if found:
        raise UserError(
            f"{workdir} has finished runs with other configs than the planned ones: {', '.join(found)}. "
            "Give another --workdir, or the same config as before."
        )


def append_row(workdir: str, row: dict[str, Any]) -> None:
    """Appends a row to the ledger. The row is on the disk when this function returns."""
    path = os.path.join(workdir, LEDGER_FILE)
    end_last_line(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def make_row(run: PlannedRun, scores_path: str, checkpoint: str) -> dict[str, Any]:
    """Returns the row of a run that was trained and evaluated.

    Args:
      run: the run.
      scores_path: the file of scores that tfm evaluate wrote.
      checkpoint: the checkpoint that was requested, "last" or "best".

    Raises:
      UserError: if the file cannot be read as scores of tfm evaluate.
    """
    start, evaluation = last_start(run.workdir), _read_scores(scores_path)
    seconds, flops = seconds_per_step(run.workdir), run.count_flops()
    steps = run.config.training.steps
    return {
        "variant": run.variant.name,
        "seed": run.seed,
        "overrides": dict(run.variant.overrides),
        "scores": evaluation["scores"],
        "split": evaluation["split"],
        "texts": evaluation["texts"],
        "checkpoint": checkpoint,
        "checkpoints": evaluation["checkpoints"],
        "parameters": run.count_parameters(),
        "flops": flops,
        "seconds_per_step": seconds,
        "flops_per_second": flops / steps / seconds if flops and seconds else None,
        "finished": time.strftime("%F %T %z"),
        "devices": start.get("devices"),
        "code": start.get("code"),
        "versions": {name: start.get("versions", {}).get(name) for name in PACKAGES},
        "data": start.get("data"),
        "config": dataclasses.asdict(run.config),
    }


def seconds_per_step(workdir: str) -> float | None:
    """Returns the median seconds for a training step, over the intervals between log lines.

    The median ignores evaluations and restarts. Returns None if the log has fewer than two lines.
    """
    rows = [row for row in read_metrics(workdir) if "train/loss" in row]
    pairs = itertools.pairwise(rows)
    found = [(new["time"] - old["time"]) / (new["step"] - old["step"]) for old, new in pairs]
    return statistics.median(found) if found else None


def _read_scores(path: str) -> dict[str, Any]:
    """Reads the fields of the ledger from a file of scores."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {name: found[name] for name in ("scores", "split", "texts", "checkpoints")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected the scores of tfm evaluate at {path}, but cannot read them ({error})."
        ) from None
