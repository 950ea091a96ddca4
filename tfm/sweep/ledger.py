"""The ledger of a sweep: a line of JSON for each finished run, with all that its figures depend on."""

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
from tfm.training.reporting import read_metrics

LEDGER_FILE = "ledger.jsonl"
PACKAGES = ("python", "tfm", "jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece", "sacrebleu")
FIELDS = {"variant": str, "seed": int, "config": dict, "scores": list}


def read_ledger(workdir: str) -> list[dict[str, Any]]:
    """The rows in the order in which their runs finished; [] where there are none.

    A line that a kill cut short is left out: its run is evaluated again.
    """
    path = os.path.join(workdir, LEDGER_FILE)
    if not os.path.isfile(path):
        return []
    return [row for row in read_json_lines(path) if _is_row(row)]


def _is_row(row):
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in FIELDS.items())


def check_ledger(
    rows: Sequence[dict[str, Any]], runs: Sequence[PlannedRun], workdir: str, split: str, checkpoint: str
) -> None:
    """Checks that the finished runs can stand in one table, also beside those to come.

    Args:
      rows: of the ledger.
      runs: as they are planned now, all that are finished among them.
      workdir: of the sweep.
      split, checkpoint: to evaluate: the name of a split, and "last" or "best".

    Raises:
      UserError: names all finished runs whose config is not the planned one, or those that were evaluated on
        another split, at another kind of checkpoint, or on other texts than the first.
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
                f"{' and '.join(other)} ({', '.join(f'{name} {row[name]}' for name in other)}): one table "
                "would hold both; give another --workdir, or what was given before."
            )


def _check_configs(rows, runs, workdir):
    finished = {(row["variant"], row["seed"]): row["config"] for row in rows}
    found = []
    for run in runs:
        config = finished.get((run.variant.name, run.seed))
        if config is None:
            continue
        before = from_mapping(type(run.config), config)  # which has the fields of later versions, too
        if before != run.config:
            found.append(f"{run.name} ({'; '.join(map(str, changes(before, run.config)))})")
    if found:
        raise UserError(
            f"{workdir} has finished runs with other configs than the planned ones: {', '.join(found)}. "
            "Give another --workdir, or the config of before."
        )


def append_row(workdir: str, row: dict[str, Any]) -> None:
    """Adds a row to the ledger, on the disk when this returns."""
    path = os.path.join(workdir, LEDGER_FILE)
    end_last_line(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def make_row(run: PlannedRun, scores_path: str, checkpoint: str) -> dict[str, Any]:
    """The row of a run that was trained and evaluated.

    Args:
      run: the run.
      scores_path: the file of scores that eval.py wrote.
      checkpoint: that was asked for, "last" or "best".

    Raises:
      UserError: the file is not what eval.py writes.
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
    """The median over the lines of the log, so that evaluations and restarts do not count.

    None where there are less than two lines.
    """
    rows = [row for row in read_metrics(workdir) if "train/loss" in row]
    pairs = itertools.pairwise(rows)
    found = [(new["time"] - old["time"]) / (new["step"] - old["step"]) for old, new in pairs]
    return statistics.median(found) if found else None


def _read_scores(path):
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {name: found[name] for name in ("scores", "split", "texts", "checkpoints")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected the scores of eval.py at {path}, and cannot read them ({error})."
        ) from None
