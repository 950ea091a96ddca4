"""The tracker for MLflow. MLFLOW_TRACKING_URI and MLflow's other environment variables configure it."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.training.hooks import Outcome
from tfm.training.samples import format_table, step_name
from tfm.training.trackers.run_ids import read_id, write_id

NAME = "mlflow"
EXPERIMENT = "tfm"  # default for MLFLOW_EXPERIMENT_NAME
MAX_PARAMETERS = 100  # that MLflow accepts in one request
NOT_IN_NAMES = re.compile(r"[^\w\-./ ]", re.ASCII)
STATUSES: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflowTracker:
    """Logs to one run of MLflow. Implements `tfm.training.trackers.Tracker`.

    A new object starts the run of MLFLOW_RUN_ID, the run in WORKDIR/mlflow.id, or else a new run, and writes
    its id to this file.
    """

    def __init__(self, workdir: str):
        import mlflow  # imported here because it takes seconds

        self._mlflow = mlflow
        known_id = read_id(workdir, NAME)
        run_id = os.environ.get("MLFLOW_RUN_ID") or known_id
        if run_id is None and not os.environ.get("MLFLOW_EXPERIMENT_ID"):
            mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        self._is_new = known_id is None or run_id != known_id
        name = os.path.basename(os.path.abspath(workdir)) if run_id is None else None
        write_id(workdir, NAME, mlflow.start_run(run_id, run_name=name).info.run_id)

    def log_config(self, step: int, config: Mapping[str, Any]) -> None:
        """Logs each field of a new run as a parameter, which cannot change, and the config as config.json."""
        fields = [(name, str(value)[:500]) for name, value in _flatten(config)] if self._is_new else []
        for start in range(0, len(fields), MAX_PARAMETERS):
            self._mlflow.log_params(dict(fields[start : start + MAX_PARAMETERS]))
        self._mlflow.log_dict(dict(config), "config.json")

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs a point of each metric."""
        self._mlflow.log_metrics({NOT_IN_NAMES.sub("_", name): x for name, x in scalars.items()}, step)

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Logs the samples of a step as an artifact, a file with a table in Markdown."""
        self._mlflow.log_text(format_table(rows), f"samples/{step_name(step)}.md")

    def log_picture(self, step: int, name: str, path: str) -> None:
        """Logs a picture as an artifact. The name of the file contains the step."""
        self._mlflow.log_artifact(path, "samples")

    def close(self, outcome: Outcome) -> None:
        """Ends the run of MLflow."""
        self._mlflow.end_run(STATUSES[outcome])


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of nested sections as ("training.steps", value)."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


make_tracker = MLflowTracker
