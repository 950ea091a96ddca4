"""Observers of the training section and of optimizers, by the tiny regression."""

import contextlib
import dataclasses
import logging
import os
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support import tiny_regression
from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.observers import list_numbers, trace
from tfm.testing.tasks import rows_without_times
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import SGD, Adafactor, Adam, AdamW, Muon, make_optimizer
from tfm.training.setup import Setup, open_checkpoints
from tfm.workdir.train import train

TRAINING = TrainingConfig(
    steps=6, warmup_steps=3, log_every=2, eval_every=3, checkpoint_every=2, keep=9, trackers=()
)
IMPATIENT = {"eval_every": 1, "peak_learning_rate": 9.0, "patience": 1}
SGD_CONFIG = SGD(momentum=0.5, weight_decay=0.1)
NOT_FINITE_STEP = 4


class RisingLoss(tiny_regression.Regression):
    """A regression whose loss rises and is not finite in the fourth step."""

    def loss(self, variables, batch, context):
        """Adds 100 in each step to the loss, which is not a number in step `NOT_FINITE_STEP`."""
        output = super().loss(variables, batch, context)
        total, count = output.terms["loss"]
        step = batch["serial"].max() if context.train else 0
        rising = jnp.where(step == NOT_FINITE_STEP, jnp.nan, total + 100 * step)
        return output._replace(terms={"loss": (rising, count)})


class Messages(logging.Handler):
    """A handler that collects the texts of warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record):
        """Adds the text of a record."""
        self.texts.append(record.getMessage())


def observe_setup(training: TrainingConfig) -> Observation:
    """Traces the training step, and observes its keys, its devices and which checkpoints are kept."""
    task = tiny_regression.create(tiny_regression.Config(training=training), "")
    setup = Setup(task, training)
    batch = task.open_data().example()
    placed = setup.partitioner.place_batch(batch)
    with (
        tempfile.TemporaryDirectory() as workdir,
        contextlib.closing(open_checkpoints(task, training, workdir)) as store,
    ):
        retention = store.retention
    return {
        "step": trace(setup.step, setup.state, batch)[0],
        "state": str(setup.state),
        "keys": list(map(list_numbers, (setup.init_key, setup.step_key))),
        "batch": {name: (x.shape, type(x.sharding).__name__) for name, x in placed.items()},
        "retention": retention,
    }


def observe_training(training: TrainingConfig) -> Observation:
    """Trains the regression whose loss rises."""
    messages, logger = Messages(), logging.getLogger("tfm")
    logger.addHandler(messages)
    try:
        with tempfile.TemporaryDirectory() as workdir:
            train(RisingLoss(tiny_regression.Config(training=training)), training, workdir)
            return {
                "metrics": str(rows_without_times(pathlib.Path(workdir))),  # in a text, NaN equals NaN
                "checkpoints": sorted(os.listdir(os.path.join(workdir, "checkpoints"))),
                "files": sorted(os.listdir(workdir)),
                "warnings": messages.texts,
            }
    finally:
        logger.removeHandler(messages)


def observe_optimizer(optimizer: Any) -> Observation:
    """Traces an update of an optimizer."""
    transformation = make_optimizer(optimizer, lambda step: 0.1)
    params = {"slope": {"kernel": np.zeros((4, 3), np.float32)}, "offset": np.zeros(3, np.float32)}
    state = jax.eval_shape(transformation.init, params)
    return {"update": trace(transformation.update, params, state, params)[0]}


CASES = [
    *make_cases(
        TRAINING,
        observe_setup,
        {"schedule": "cosine_decay"},
        {"optimizer": SGD(weight_decay=0.1)},
    ),
    *make_cases(dataclasses.replace(TRAINING, on_non_finite="skip"), observe_training, IMPATIENT),
    *(Case(optimizer, observe_optimizer) for optimizer in (SGD_CONFIG, Adam(), AdamW(), Adafactor(), Muon())),
]
VALUES = {
    TrainingConfig: {
        "freeze": ("offset",),
        "learning_rate_factors": ("offset=0.5",),
        "weight_decay_factors": ("slope=2",),
        "trackers": ("tensorboard",),
        "best_by": "max:loss",
    },
    AdamW: {"not_decayed": ("offset",)},
    SGD: {"not_decayed": ("offset",)},
}
