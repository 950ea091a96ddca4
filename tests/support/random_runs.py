"""Runs whose checkpoints contain random parameters, so that outputs depend on which checkpoint is read."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tfm import tasks
from tfm.config import save
from tfm.testing.parameters import random_parameters
from tfm.training.scores import Scores
from tfm.training.setup import Setup, open_checkpoints
from tfm.workdir import runs


def write_random_run(
    config: Any, workdir: pathlib.Path, inputs: tuple[Any, ...], scores: Mapping[int, float], seed: int = 0
) -> pathlib.Path:
    """Writes a run that was never trained.

    Args:
      config: the config of the task.
      workdir: folder of the run, which is created.
      inputs: arguments of the model's call, from which the shapes of the parameters follow.
      scores: {step of a checkpoint: its value of the metric that selects the best checkpoint}.
      seed: the checkpoint of step N has parameters of the seed `seed + N`.
    """
    workdir.mkdir()
    save(config, runs.config_path(str(workdir)))
    task = tasks.find(config.task).create(config, str(workdir))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), Setup(task, config.training).state)
    evaluations = Scores(str(workdir), task.best)
    with contextlib.closing(
        open_checkpoints(task, config.training, str(workdir), scores=evaluations)
    ) as checkpoints:
        for step, score in scores.items():
            params = random_parameters(task.model, *inputs, seed=seed + step)
            state = zeros.replace(step=np.int32(step), params=params)
            evaluations.add(step, {task.best.metric: score})
            checkpoints.save(step, state.items())
    return workdir
