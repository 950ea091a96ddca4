"""Weights & Biases. WANDB_MODE, WANDB_PROJECT and its other variables of the environment count."""

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.training.trackers.run_ids import read_id, write_id

NAME = "wandb"
PROJECT = "tfm"  # where WANDB_PROJECT names none
STEP = "step"  # the horizontal axis of all charts


class WandbTracker:
    """Writes to one run of Weights & Biases; a `tfm.training.trackers.Tracker`.

    The step is a value like others: a step of Weights & Biases never goes back, but a run that resumes from a
    checkpoint does.
    """

    def __init__(self, workdir: str):
        import wandb  # takes seconds

        self._wandb = wandb
        run_id = read_id(workdir, NAME)
        resumes = run_id is not None and os.environ.get("WANDB_MODE") != "offline"
        run_id = run_id or uuid.uuid4().hex[:8]
        write_id(workdir, NAME, run_id)
        self._run = wandb.init(
            project=None if os.environ.get("WANDB_PROJECT") else PROJECT,
            name=None if os.environ.get("WANDB_NAME") else os.path.basename(os.path.abspath(workdir)),
            dir=None if os.environ.get("WANDB_DIR") else workdir,
            id=run_id,
            resume="allow" if resumes else None,  # offline, `wandb sync` joins what has the same id
            settings=wandb.Settings(console="off"),  # the log of the run stays where it is
        )
        for group in ("train", "validation", "samples"):
            self._run.define_metric(f"{group}/*", step_metric=STEP)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """The config of the run; of a resumed one, what changed."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """A point of each chart."""
        self._run.log({STEP: step, **scalars})

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """A table of the step."""
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({STEP: step, "samples/table": table})

    def log_picture(self, step: int, name: str, path: str) -> None:
        """The picture of the step."""
        self._run.log({STEP: step, f"samples/{name}": self._wandb.Image(path)})

    def close(self) -> None:
        """Ends the run and sends what is left."""
        self._run.finish()


make_tracker = WandbTracker
