"""The work directory of a run: config.json, tokenizer, checkpoints, metrics."""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import config_dict

from tfm import config, tasks
from tfm.arguments import check_count
from tfm.checkpoints.store import CheckpointDeleted
from tfm.checkpoints.trees import average_trees
from tfm.errors import UserError
from tfm.fields import NEVER, changes
from tfm.io.files import check_entries
from tfm.memory import check_weights_fit, host_memory
from tfm.training.setup import open_checkpoints
from tfm.training.task import Variables, parameters_of
from tfm.workdir.bundle import is_bundle, read_bundle

CONFIG_FILE = "config.json"
ATTEMPTS = 10  # to find a checkpoint that training does not delete meanwhile
AVERAGE_COPIES = 5  # of float32: a checkpoint, itself and the sum in float64

log = logging.getLogger(__name__)


class Run(NamedTuple):
    """A trained model.

    Attributes:
      task: see `tfm.training.task.Task`.
      variables: those of the model, or a tuple of those of several models for an ensemble.
      steps: steps of the checkpoints that they come from.
    """

    task: Any
    variables: Any
    steps: list[int]

    @property
    def params(self) -> Any:
        """The parameters among the variables, or a tuple of those of several models."""
        return parameters_of(self.variables)


def load(
    workdir: str,
    *,
    checkpoint: str | int | None = None,
    average_last: int = 1,
    ensemble_last: int = 1,
    chosen: Any = None,
) -> Run:
    """Restores a run for use.

    Args:
      workdir: folder of the run, or a bundle that `tfm.export` made of one.
      checkpoint: "best" by validation (the last where none was measured) or "last", both among the intact
        ones, or a step; "best" when None. Of an average or an ensemble, "last" or the step up to which its
        checkpoints are taken; "last" when None.
      average_last: above 1, the mean of so many of the last checkpoints instead (section 6.1), those of
        `spaced_steps`.
      ensemble_last: above 1, as many of them, each with its own parameters: their probabilities are averaged
        at every token.
      chosen: config to use in place of the run's own, such as one with another beam size.

    Raises:
      UserError: no run there, no such checkpoint, too few or unequally spaced ones to average, none that is
        intact, or one asked for that is damaged or of another model, or a model larger than the memory, found
        before its shapes are traced; `chosen` is of another model; for an export a checkpoint that was asked
        for, or what `read_bundle` says.
    """
    if not isinstance(workdir, (str, os.PathLike)):
        raise UserError(f"Expected the path of a run's folder as workdir, got {workdir!r}.")
    if chosen is None:
        chosen = read_config(workdir)
    else:
        _check_fixed(read_config(workdir), chosen)
    if is_bundle(workdir):
        if (checkpoint, average_last, ensemble_last) != (None, 1, 1):
            raise UserError(f"{workdir} is an export, with no checkpoints to choose from or to average.")
        task = tasks.find(chosen.task).create(chosen, workdir, new=False)
        return Run(task, *read_bundle(workdir, task))
    check_count("average_last", average_last, "checkpoint")
    check_count("ensemble_last", ensemble_last, "checkpoint")
    if average_last > 1 and ensemble_last > 1:
        raise UserError("Checkpoints are either averaged or an ensemble: choose one.")
    task = tasks.find(chosen.task).create(chosen, workdir, new=False)
    check_weights_fit(getattr(task, "model", None), ensemble_last)
    if average_last > 1:
        check_weights_fit(getattr(task, "model", None), AVERAGE_COPIES, host_memory())
    attempts = ATTEMPTS if checkpoint in (None, "best", "last") else 1
    for _ in range(attempts - 1):
        try:
            return Run(task, *_restore(task, workdir, checkpoint, average_last, ensemble_last))
        except CheckpointDeleted as error:
            log.info("Choosing a checkpoint again: %s", error)
    return Run(task, *_restore(task, workdir, checkpoint, average_last, ensemble_last))


def _check_fixed(saved, chosen):
    """Raises a UserError where another model is chosen: it may have the same shapes, and other results."""
    fixed = [str(change) for change in changes(saved, chosen) if change.rule == NEVER]
    if fixed:
        raise UserError(
            f"The weights of the run are those of another model: {'; '.join(fixed)}. Leave it as it was."
        )


def _restore(task, workdir, checkpoint, average_last, ensemble_last):
    """Returns (variables, steps) as `load` gives them.

    Raises:
      Gone: training deleted a step meanwhile; there is a newer one.
    """
    training = task.config.training
    with contextlib.closing(open_checkpoints(task, training, workdir)) as checkpoints:
        last = max(average_last, ensemble_last)
        steps = _steps(checkpoints, checkpoint, last, training.checkpoint_every)
        like = jax.eval_shape(task.init, jax.random.key(0))
        restored = (checkpoints.restore_variables(step, like) for step in steps)
        if ensemble_last > 1:
            return tuple(restored), steps
        if average_last > 1:
            return jax.device_put(average_trees(restored)), steps
        return next(restored), steps


def require_translation(chosen: Any, what: str) -> None:
    """Raises a UserError where `what` is asked of a run that does not translate.

    Args:
      chosen: config of the run.
      what: subject of the error message, such as "tfm translate".
    """
    if not hasattr(chosen.data, "target_language"):
        raise UserError(f"{what} is for runs that translate, and the task of this one is '{chosen.task}'.")


def require_bleu(chosen: Any, what: str) -> None:
    """Raises a UserError where `what` compares translations, and the task of a run has another score."""
    require_translation(chosen, what)
    if not getattr(chosen, "SCORED_BY_BLEU", True):
        raise UserError(
            f"{what} scores translations by BLEU, and the task of this run, '{chosen.task}', has scores of "
            "its own: read those that tfm evaluate wrote."
        )


def single_model_variables(run: Run) -> Variables:
    """Returns the variables of a run of a single model.

    Raises:
      UserError: if the run is an ensemble.
    """
    if isinstance(run.variables, tuple):
        raise UserError("An ensemble is several models: give --checkpoint or --average, not --ensemble.")
    return run.variables


def read_config(workdir: str) -> Any:
    """The config of the run in `workdir`, as the frozen dataclass of its task.

    Raises:
      UserError: there is none, it does not fit this version, or that of an export names folders.
    """
    if not os.path.isdir(workdir):
        raise UserError(f"Expected the folder of a run at {workdir}, but there is none: check the path.")
    check_entries(workdir)
    path = config_path(workdir)
    mapping = config.load(path)
    try:
        found = parse_config(mapping)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if is_bundle(workdir) and found != found.without_paths():
        raise UserError(
            f"The config in {workdir} names files of a machine, as that of an export never does: "
            "it is not what tfm export wrote."
        )
    return found


def parse_config(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> Any:
    """A mapping -> the frozen dataclass of the task that it names."""
    return config.from_mapping(config_class(mapping), mapping)


def config_class(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> type:
    """The config class of the task that a mapping names.

    Raises:
      UserError: it names none, or one that there is not.
    """
    if "task" not in mapping:
        raise UserError(f"A config must have the field 'task'; this one has {', '.join(mapping)}.")
    return tasks.find(mapping["task"]).Config


def config_path(workdir: str) -> str:
    """Where a run of the work directory keeps its config."""
    return os.path.join(workdir, CONFIG_FILE)


def evaluation_stem(workdir: str, split: str, language: str, name: str = "") -> str:
    """The stem of the files of eval.py, before `.hypotheses` and `.scores.json`.

    Args:
      workdir: folder of the run, where they stand.
      split: that was translated; a file stem gives its last name.
      language: of the hypotheses.
      name: in place of that of the split, for a further evaluation of it.

    Raises:
      UserError: a name with a folder in it.
    """
    if os.path.basename(name) != name:
        raise UserError(f"The name of an evaluation must have no folder, got {name!r}: choose another.")
    return os.path.join(workdir, f"{name or os.path.basename(split)}.{language}")


def spaced_steps(steps: Sequence[int], count: int, every: int) -> list[int]:
    """The steps to average: `count` of them at equal distances.

    They are the newest multiples of `every`, passing over what was saved between these: at the run's last
    step, at an evaluation, by a signal, as the best. Where there are too few (a run shorter than that, or one
    that changed `every`), they end with the newest step, at the distance of the newest two.

    Args:
      steps: those of the checkpoints, ascending.
      count: how many are wanted.
      every: `training.checkpoint_every`.

    Returns:
      The steps, ascending; [] where there are no such.
    """
    if count > len(steps):
        return []
    regular = [step for step in steps if step % every == 0]
    ends = [(regular[-1], every)] if regular else []
    if len(steps) > 1:
        ends.append((steps[-1], steps[-1] - steps[-2]))
    for newest, distance in ends:
        chosen = [newest - i * distance for i in reversed(range(count))]
        if set(chosen) <= set(steps):
            return chosen
    return []


def _steps(checkpoints, checkpoint, several, every):
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"Expected a checkpoint in {checkpoints.folder}, but there is none: train first.")
    if several > 1:
        which = "The checkpoint up to which several are taken must be 'last'"
        newest = steps[-1] if checkpoint in (None, "last") else _asked(checkpoint, steps, which)
        up_to = [step for step in steps if step <= newest]
        return _last_steps(up_to, several, every, checkpoints.folder)
    if checkpoint in (None, "best"):
        best = checkpoints.best()
        return [checkpoints.latest() if best is None else best]
    if checkpoint == "last":
        return [checkpoints.latest()]
    return [_asked(checkpoint, steps, "The checkpoint must be 'best', 'last'")]


def _asked(checkpoint, steps, which):
    if not str(checkpoint).isdecimal() or int(checkpoint) not in steps:
        raise UserError(f"{which} or one of the steps {steps}, got {checkpoint!r}.")
    return int(checkpoint)


def _last_steps(steps, last, every, directory):
    chosen = spaced_steps(steps, last, every)
    if not chosen:
        raise UserError(
            f"Expected {last} checkpoints at equal distances, as every {every:,} steps, in {directory}, "
            f"but there are {steps}: take fewer, or train for more steps with a larger training.keep."
        )
    return chosen
