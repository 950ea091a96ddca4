"""The work directory of a run: config.json, tokenizer, checkpoints, metrics."""

import contextlib
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import config_dict

from tfm import config as configs
from tfm import tasks
from tfm.arguments import check_count
from tfm.checkpoints.store import CheckpointDeleted
from tfm.checkpoints.trees import average_trees
from tfm.config import OnResume, changes
from tfm.errors import UserError
from tfm.io.files import check_entries
from tfm.memory import check_parameters_fit, host_memory
from tfm.training.partitioning import Partitioner, make_evaluation_partitioner
from tfm.training.setup import open_checkpoints
from tfm.training.task import Variables, parameters_of, variable_shapes
from tfm.workdir.bundle import is_bundle, read_bundle

CONFIG_FILE = "config.json"
ATTEMPTS = 10  # training may delete the chosen checkpoint before it is read
AVERAGE_COPIES = (
    5  # memory of an average in float32 copies: a checkpoint, the result, the float64 sum (2 each)
)

log = logging.getLogger(__name__)


class Run(NamedTuple):
    """A trained model.

    Attributes:
      task: see `tfm.training.task.Task`.
      variables: variables of the model. A tuple with the variables of each model for an ensemble.
      steps: steps of the checkpoints that the variables come from.
    """

    task: Any
    variables: Any
    steps: list[int]

    @property
    def params(self) -> Any:
        """The parameters of the model. A tuple with the parameters of each model for an ensemble."""
        return parameters_of(self.variables)


class Choice(NamedTuple):
    """The checkpoints to load, see `load`."""

    checkpoint: str | int | None = None
    average: int = 1
    ensemble: int = 1


def load(
    workdir: str,
    *,
    checkpoint: str | int | None = None,
    average: int = 1,
    ensemble: int = 1,
    config: Any = None,
) -> Run:
    """Loads a trained model from the folder of a run or from an export.

    The devices divide its variables as in training, see `make_evaluation_partitioner`.

    Args:
      workdir: folder of the run, or a bundle that `tfm.export` wrote.
      checkpoint: "best", "last", or a step. "best" is the best by validation, or the last if none was
        evaluated. Both skip damaged checkpoints. None means "best". For an average or an ensemble: "last", or
        the step of the last checkpoint to use; None means "last".
      average: number of checkpoints whose mean to load (section 6.1), see `spaced_steps`. 1 averages nothing.
      ensemble: number of checkpoints to load as an ensemble. The probabilities of its models are averaged at
        every token. 1 loads a single model.
      config: config to use instead of the config of the run, for example with another beam size.

    Raises:
      UserError: if there is no run or no such checkpoint, if the checkpoints are damaged, of another model,
        or too few or unequally spaced to average, if the model does not fit into the memory, or if `config`
        has another model. For an export, if a checkpoint is chosen, or if `read_bundle` raises.
    """
    if not isinstance(workdir, (str, os.PathLike)):
        raise UserError(f"Expected the path of a run's folder as workdir, got {workdir!r}.")
    saved = read_config(workdir)
    config = saved if config is None else config
    _check_fixed(saved, config)
    choice = Choice(checkpoint, average, ensemble)
    _check_choice(choice, workdir)
    task = tasks.find(config.task).create(config, workdir, new=False)
    partitioner = make_evaluation_partitioner(config.training, task.init)
    if is_bundle(workdir):
        variables, steps = read_bundle(workdir, task)
        return Run(task, partitioner.fetch_variables(partitioner.place(variables)), steps)
    like = variable_shapes(task)
    check_parameters_fit(like["params"], ensemble, sharers=partitioner.parameter_shards)
    if average > 1:
        check_parameters_fit(like["params"], AVERAGE_COPIES, available=host_memory())
    attempts = itertools.count(1)
    while True:
        try:
            return Run(task, *_restore(task, partitioner, like, workdir, choice))
        except CheckpointDeleted as error:
            if next(attempts) == ATTEMPTS or checkpoint not in (None, "best", "last"):
                raise
            log.info("Choosing another checkpoint: %s", error)


def _check_choice(choice: Choice, workdir: str) -> None:
    """Raises a UserError if a folder cannot have the chosen checkpoints."""
    if is_bundle(workdir):
        if choice != Choice():
            raise UserError(f"{workdir} is an export and has no checkpoints to choose from or to average.")
        return
    check_count("average", choice.average, "checkpoint")
    check_count("ensemble", choice.ensemble, "checkpoint")
    if choice.average > 1 and choice.ensemble > 1:
        raise UserError("Checkpoints are either averaged or an ensemble. Choose one of the two.")


def _check_fixed(saved: Any, config: Any) -> None:
    """Raises a UserError if two configs have different models, even with parameters of equal shapes."""
    fixed = [str(change) for change in changes(saved, config) if change.rule == OnResume.FIXED]
    if fixed:
        raise UserError(
            f"The parameters of the run belong to another model: {'; '.join(fixed)}. Leave these fields as "
            "they were."
        )


def _restore(
    task: Any, partitioner: Partitioner, like: Variables, workdir: str, choice: Choice
) -> tuple[Any, list[int]]:
    """Returns (placed variables, steps of their checkpoints), given the shapes `like` of the variables.

    Raises:
      CheckpointDeleted: if training deleted a chosen checkpoint before it was read.
    """
    training = task.config.training
    with contextlib.closing(open_checkpoints(task, training, workdir)) as checkpoints:
        several = max(choice.average, choice.ensemble)
        steps = _steps(checkpoints, choice.checkpoint, several, training.checkpoint_every)
        placed = partitioner.like(like)
        restored = (
            partitioner.fetch_variables(checkpoints.restore_variables(step, placed)) for step in steps
        )
        if choice.ensemble > 1:
            return tuple(restored), steps
        return average_trees(restored) if choice.average > 1 else next(restored), steps


def require_translation(chosen: Any, what: str) -> None:
    """Raises a UserError if a run does not translate.

    Args:
      chosen: config of the run.
      what: subject of the error message, such as "tfm translate".
    """
    if not hasattr(chosen.data, "target_language"):
        raise UserError(f"{what} needs a run that translates, but this run has the task '{chosen.task}'.")


def require_bleu(chosen: Any, what: str) -> None:
    """Raises a UserError if a run has no BLEU. The arguments are as for `require_translation`."""
    require_translation(chosen, what)
    if not getattr(chosen, "SCORED_BY_BLEU", True):
        raise UserError(
            f"{what} scores translations by BLEU, but the task of this run, '{chosen.task}', has other "
            "scores. Read the scores that tfm evaluate wrote."
        )


def single_model_variables(run: Run) -> Variables:
    """Returns the variables of a run of a single model.

    Raises:
      UserError: if the run is an ensemble.
    """
    if isinstance(run.variables, tuple):
        raise UserError(
            "An ensemble is several models. Give --checkpoint or --average instead of --ensemble."
        )
    return run.variables


def read_config(workdir: str) -> Any:
    """Reads the config of the run or export in `workdir`, as the frozen dataclass of its task.

    Raises:
      UserError: if there is no config, this version cannot read it, or the config of an export contains paths
        of files.
    """
    if not os.path.isdir(workdir):
        raise UserError(f"Expected the folder of a run at {workdir}, but there is none. Check the path.")
    check_entries(workdir)
    path = config_path(workdir)
    mapping = configs.load(path)
    try:
        found = parse_config(mapping)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if is_bundle(workdir) and found != found.without_paths():
        raise UserError(
            f"The config in {workdir} contains paths of files, so tfm export did not write it. "
            "Export the run again."
        )
    return found


def parse_config(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> Any:
    """Converts a mapping to the frozen config dataclass of the task that it names."""
    return configs.from_mapping(config_class(mapping), mapping)


def config_class(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> type:
    """Returns the config class of the task that a mapping names.

    Raises:
      UserError: if the mapping names no task, or an unknown task.
    """
    if "task" not in mapping:
        raise UserError(f"A config must have the field 'task', but this config has {', '.join(mapping)}.")
    return tasks.find(mapping["task"]).Config


def config_path(workdir: str) -> str:
    """Returns the path of the config in a work directory."""
    return os.path.join(workdir, CONFIG_FILE)


def evaluation_stem(workdir: str, split: str, language: str, name: str = "") -> str:
    """Returns the path of the files of an evaluation without their endings `.hypotheses` and `.scores.json`.

    Args:
      workdir: the folder that contains the files.
      split: the split that was evaluated. Only the last part of a path is used.
      language: the language of the hypotheses, or another suffix of the outputs.
      name: the --name of the evaluation. It replaces the name of the split unless it is "".

    Raises:
      UserError: if the name contains a folder.
    """
    if os.path.basename(name) != name:
        raise UserError(f"The name of an evaluation must not contain a folder, got {name!r}.")
    return os.path.join(workdir, f"{name or os.path.basename(split)}.{language}")


def spaced_steps(steps: Sequence[int], count: int, every: int) -> list[int]:
    """Chooses `count` steps at equal distances, whose checkpoints are averaged.

    Takes the newest multiples of `every`. Ignores the checkpoints between them: they were saved at the last
    step of a run, at an evaluation, by a signal, or as the best. If there are too few multiples, because the
    run is short or `every` changed, the steps end with the newest step and have the distance of the newest
    two.

    Args:
      steps: steps of all checkpoints, in ascending order.
      count: number of steps to choose.
      every: `training.checkpoint_every`.

    Returns:
      The steps in ascending order, or [] if there are too few.
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


def _steps(checkpoints: Any, checkpoint: str | int | None, several: int, every: int) -> list[int]:
    """Returns the steps of the checkpoints to load. `several` above 1 asks for an average or an ensemble."""
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"Expected a checkpoint in {checkpoints.folder}, but there is none. Train first.")
    if several > 1:
        which = "The last checkpoint of an average or an ensemble must be 'last'"
        newest = steps[-1] if checkpoint in (None, "last") else _asked(checkpoint, steps, which)
        up_to = [step for step in steps if step <= newest]
        return _last_steps(up_to, several, every, checkpoints.folder)
    if checkpoint in (None, "best"):
        best = checkpoints.best()
        return [checkpoints.latest() if best is None else best]
    if checkpoint == "last":
        return [checkpoints.latest()]
    return [_asked(checkpoint, steps, "The checkpoint must be 'best', 'last'")]


def _asked(checkpoint: str | int, steps: Sequence[int], which: str) -> int:
    """Returns the requested checkpoint as a number, or raises a UserError that begins with `which`."""
    if not str(checkpoint).isdecimal() or int(checkpoint) not in steps:
        raise UserError(f"{which} or one of the steps {steps}, got {checkpoint!r}.")
    return int(checkpoint)


def _last_steps(steps: list[int], last: int, every: int, directory: str) -> list[int]:
    """Returns the steps from `spaced_steps`, or raises a UserError if there are too few."""
    chosen = spaced_steps(steps, last, every)
    if not chosen:
        raise UserError(
            f"Expected {last} checkpoints at equal distances, such as every {every:,} steps, in {directory}, "
            f"but there are {steps}. Use fewer, or train for more steps with a larger training.keep."
        )
    return chosen
