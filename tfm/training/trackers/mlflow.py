"""MLflow. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables of the environment count."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.training.samples import format_table, step_name
from tfm.training.trackers.run_ids import read_id, write_id

NAME = "mlflow"
EXPERIMENT = "tfm"  # where MLFLOW_EXPERIMENT_NAME names none
LONGEST_VALUE = 500  # characters of a parameter that every store takes
MOST_PARAMETERS = 100  # of a request
NOT_IN_NAMES = re.compile(r"[^\w\-./ ]", re.ASCII)
FOLDER = "samples"  # of the artifacts


class MLflowTracker:
    """Writes to one run of MLflow; a `tfm.training.trackers.Tracker`."""

    def __init__(self, workdir: str):
        from mlflow import MlflowClient  # takes seconds

        self._client = MlflowClient()
        run_id = read_id(workdir, NAME)
        if run_id is None:
            name = os.path.basename(os.path.abspath(workdir))
            run_id = self._client.create_run(self._find_experiment(), run_name=name).info.run_id
            write_id(workdir, NAME, run_id)
        else:
            self._client.update_run(run_id, status="RUNNING")
        self._id = run_id

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Each field as a parameter, and all as config.json.

        A parameter of MLflow never changes: where a resumed run changed a field, config.json alone says so.
        """
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        params = [
            Param(name, str(value)[:LONGEST_VALUE])
            for name, value in flatten(config).items()
            if name not in known
        ]
        for first in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=params[first : first + MOST_PARAMETERS])
        self._client.log_dict(self._id, dict(config), "config.json")

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """A point of each metric."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        metrics = [Metric(NOT_IN_NAMES.sub("_", name), x, now, step) for name, x in scalars.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """A table in Markdown among the artifacts, a file for each step."""
        self._client.log_text(self._id, format_table(rows), f"{FOLDER}/{step_name(step)}.md")

    def log_picture(self, step: int, name: str, path: str) -> None:
        """The picture among the artifacts."""
        del step, name  # are in the name of the file
        self._client.log_artifact(self._id, path, FOLDER)

    def close(self) -> None:
        """Ends the run."""
        self._client.set_terminated(self._id)

    def _find_experiment(self):
        """The id of the experiment, which is made where it is not there."""
        if known := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"training.steps": value} of a mapping of sections."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


make_tracker = MLflowTracker
