"""The tracker for MLflow. MLFLOW_TRACKING_URI and MLflow's other environment variables configure it."""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.training.hooks import Outcome
from tfm.training.samples import format_table, step_name
from tfm.training.trackers.run_ids import read_id, write_id

NAME = "mlflow"
EXPERIMENT = "tfm"  # default for MLFLOW_EXPERIMENT_NAME
MAX_VALUE_CHARACTERS = 500  # characters of a parameter's value that all stores of MLflow accept
MAX_REQUEST_PARAMETERS = 100  # parameters that MLflow accepts in one request
NOT_IN_NAMES = re.compile(r"[^\w\-./ ]", re.ASCII)
FOLDER = "samples"  # folder of the artifacts
STATUSES: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class MLflowTracker:
    """Logs to one run of MLflow. Implements `tfm.training.trackers.Tracker`."""

    def __init__(self, workdir: str):
        from mlflow import MlflowClient  # imported here because it takes seconds

        self._client = MlflowClient()
        with _few_retries():
            self._id = read_id(workdir, NAME) or self._create_run(workdir)
            self._client.update_run(self._id, status="RUNNING")

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Logs each field as a parameter, and the whole config as config.json.

        Parameters of MLflow cannot change. If a resumed run changes a field, only config.json has the new
        value.
        """
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        params = [
            Param(name, str(value)[:MAX_VALUE_CHARACTERS])
            for name, value in flatten(config).items()
            if name not in known
        ]
        for start in range(0, len(params), MAX_REQUEST_PARAMETERS):
            self._client.log_batch(self._id, params=params[start : start + MAX_REQUEST_PARAMETERS])
        self._client.log_dict(self._id, dict(config), "config.json")

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs a point of each metric."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        metrics = [Metric(NOT_IN_NAMES.sub("_", name), x, now, step) for name, x in scalars.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Logs the samples of a step as an artifact, a file with a table in Markdown."""
        self._client.log_text(self._id, format_table(rows), f"{FOLDER}/{step_name(step)}.md")

    def log_picture(self, step: int, name: str, path: str) -> None:
        """Logs a picture as an artifact."""
        del step, name  # the name of the file contains both
        self._client.log_artifact(self._id, path, FOLDER)

    def close(self, outcome: Outcome) -> None:
        """Ends the run of MLflow."""
        self._client.set_terminated(self._id, STATUSES[outcome])

    def _create_run(self, workdir: str) -> str:
        """Creates a run of MLflow that is named like the run folder. Returns its id, and stores it there."""
        name = os.path.basename(os.path.abspath(workdir))
        run_id = self._client.create_run(self._find_experiment(), run_name=name).info.run_id
        write_id(workdir, NAME, run_id)
        return run_id

    def _find_experiment(self) -> str:
        """Returns the id of the experiment. Creates the experiment if it does not exist."""
        if known := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)


@contextlib.contextmanager
def _few_retries() -> Iterator[None]:
    """Retries requests once inside, unless the user has set the number of retries.

    By default, MLflow asks a server that refuses connections again for minutes.
    """
    if RETRIES in os.environ:
        yield
        return
    os.environ[RETRIES] = "1"
    try:
        yield
    finally:
        del os.environ[RETRIES]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the fields of nested sections as {"training.steps": value}."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields |= flatten(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


make_tracker = MLflowTracker
