"""A run's work directory: config.json, vocabulary, checkpoints, metrics."""

import os
from typing import Any, NamedTuple

import jax

from tfm import config, tasks
from tfm.errors import UserError
from tfm.training.checkpoints import average
from tfm.training.loop import open_checkpoints

CONFIG_FILE = "config.json"


class Run(NamedTuple):
    """A trained model: its task, parameters and the steps of the checkpoints these are the mean of."""

    task: Any
    params: Any
    steps: list[int]


def load(workdir, *, checkpoint="best", average_last=1, chosen=None):
    """Restores a run for use.

    Args:
      workdir: folder of the run, or what `tfm.artefact.save` made of one.
      checkpoint: "best" by validation (the last where none was measured), "last", or a step.
      average_last: above 1, the mean of so many checkpoints up to the last one instead (section 6.1).
      chosen: config to use in place of the run's own, such as one with another beam size.

    Raises:
      UserError: no run there, no such checkpoint, too few to average, or one of another model; for an export
        a checkpoint that was asked for, or what `tfm.artefact.load` says.
    """
    from tfm import artefact  # which makes a Run, so it imports this module

    if artefact.is_artefact(workdir):
        if checkpoint != "best" or average_last != 1:
            raise UserError(f"{workdir} is an export, with no checkpoints to choose from or to average.")
        return artefact.load(workdir, chosen)
    chosen = chosen or read_config(workdir)
    task = tasks.find(chosen.task).create(chosen, workdir, new=False)
    checkpoints = open_checkpoints(task, chosen.training, workdir)
    steps = _steps(checkpoints, checkpoint, average_last)
    like = jax.eval_shape(task.init, jax.random.key(0))
    restored = (checkpoints.restore_params(like, step) for step in steps)
    params = next(restored) if len(steps) == 1 else jax.device_put(average(restored))
    checkpoints.close()
    return Run(task, params, steps)


def read_config(workdir):
    """The config of the run in `workdir`, as the frozen dataclass of its task.

    Raises:
      UserError: there is none, or it does not fit this version.
    """
    if not os.path.isdir(workdir):
        raise UserError(f"Expected the folder of a run at {workdir}, but there is none: check --workdir.")
    return parse_config(config.load(config_path(workdir)))


def parse_config(mapping):
    """A mapping -> the frozen dataclass of the task that it names."""
    if "task" not in mapping:
        raise UserError(f"A config must have the field 'task'; this one has {', '.join(mapping)}.")
    return config.from_mapping(tasks.find(mapping["task"]).Config, mapping)


def config_path(workdir):
    """Where a run of the work directory keeps its config."""
    return os.path.join(workdir, CONFIG_FILE)


def _steps(checkpoints, checkpoint, average_last):
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"Expected a checkpoint in {checkpoints.directory}, but there is none: train first.")
    if average_last > 1:
        if len(steps) < average_last:
            raise UserError(
                f"Cannot average {average_last} checkpoints: {checkpoints.directory} has {steps}."
            )
        return steps[-average_last:]
    if checkpoint == "best":
        return [checkpoints.best() or steps[-1]]
    if checkpoint == "last":
        return [steps[-1]]
    if not str(checkpoint).isdigit() or int(checkpoint) not in steps:
        raise UserError(
            f"The checkpoint must be 'best', 'last' or one of the steps {steps}, got {checkpoint!r}."
        )
    return [int(checkpoint)]
