"""The tracker for Weights & Biases. WANDB_MODE, WANDB_PROJECT and other variables configure it."""

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.training.hooks import Outcome
from tfm.training.trackers.run_ids import read_id, write_id

NAME = "wandb"
PROJECT = "tfm"  # default for WANDB_PROJECT
STEP = "step"  # metric of the horizontal axis of all charts


class WandbTracker:
    """Logs to one run of Weights & Biases. Implements `tfm.training.trackers.Tracker`.

    The step is logged as a metric. The built-in step of Weights & Biases cannot decrease, but the step of a
    run decreases when it resumes from a checkpoint.

    A new object continues the run of WANDB_RUN_ID, the run in WORKDIR/wandb.id, or else begins a new run, and
    writes its id to this file.
    """

    def __init__(self, workdir: str):
        import wandb  # imported here because it takes seconds

        self._wandb = wandb
        known_id = os.environ.get("WANDB_RUN_ID") or read_id(workdir, NAME)
        # The run of a known id may exist. Without `resume`, the tracker would overwrite it.
        resumes = known_id is not None and os.environ.get("WANDB_MODE") != "offline"
        run_id = known_id or uuid.uuid4().hex[:8]
        write_id(workdir, NAME, run_id)
        self._run = wandb.init(
            project=None if os.environ.get("WANDB_PROJECT") else PROJECT,
            name=None if os.environ.get("WANDB_NAME") else os.path.basename(os.path.abspath(workdir)),
            dir=None if os.environ.get("WANDB_DIR") else workdir,
            id=run_id,
            resume="allow"
            if resumes and not os.environ.get("WANDB_RESUME")
            else None,  # offline, `wandb sync` merges runs with the same id
            settings=wandb.Settings(console="off"),  # do not capture the output of the run
        )
        for group in ("train", "validation", "samples"):
            self._run.define_metric(f"{group}/*", step_metric=STEP)

    def log_config(self, step: int, config: Mapping[str, Any]) -> None:
        """Logs the config. A resumed run overwrites the old values."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs a point of each chart."""
        self._run.log({STEP: step, **scalars})

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Logs the samples of a step as a table."""
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({STEP: step, "samples/table": table})

    def log_picture(self, step: int, name: str, path: str) -> None:
        """Logs a picture of a step."""
        self._run.log({STEP: step, f"samples/{name}": self._wandb.Image(path)})

    def close(self, outcome: Outcome) -> None:
        """Sends the remaining data and ends the run of Weights & Biases, as failed unless it has finished."""
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


make_tracker = WandbTracker
