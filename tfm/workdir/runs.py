"""The folder of a run or an export, opened in one way: its config, and its parameters as a `Run`."""

import contextlib
import dataclasses
import itertools
import logging
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ml_collections import config_dict

from tfm import config as configs
from tfm import tasks
from tfm.checkpoints.store import CheckpointDeleted, CheckpointStore
from tfm.checkpoints.trees import average_trees
from tfm.config import OnResume, changes
from tfm.devices.memory import check_parameters_fit, host_memory
from tfm.errors import UserError, check_count
from tfm.io.files import last_part
from tfm.io.remote import is_url
from tfm.training.partitioning import Partitioner, make_evaluation_partitioner
from tfm.training.setup import has_checkpoint, open_checkpoints
from tfm.training.task import Task, Variables, parameters_of, variable_shapes
from tfm.workdir import working_copies
from tfm.workdir.bundle import is_bundle, read_bundle
from tfm.workdir.own_code import warn_of_other_modules
from tfm.workdir.starts import check_recorded_config, last_start

CONFIG_FILE = "config.json"
REQUIRED_MEMBERS = ("model.name", "data", "training", "output_suffix", "without_paths")  # of every config
ATTEMPTS = 10  # training may delete the chosen checkpoint before it is read
AVERAGE_COPIES = 5  # float32 copies in memory: a checkpoint, the mean, and the float64 sum (2 each)

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
    """The checkpoints to load, see `ModelFolder.load`."""

    checkpoint: str | int | None = None
    average: int = 1
    ensemble: int = 1


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """The folder of a run or an export, see `open_folder`.

    Attributes:
      path: path of the folder.
      config: config of the run, the frozen dataclass of its task.
      is_export: whether the folder is an export, which has a single set of parameters and no checkpoints.
    """

    path: str
    config: Any
    is_export: ClassVar[bool]

    def load(
        self,
        *,
        checkpoint: str | int | None = None,
        average: int = 1,
        ensemble: int = 1,
        config: Any = None,
    ) -> Run:
        """Loads the trained model.

        The devices divide its variables as in training, see `make_evaluation_partitioner`.

        Args:
          checkpoint: "best", "last", or a step. "best" is the best by validation, or the last if none was
            evaluated. Both skip damaged checkpoints. None means "best". For an average or an ensemble:
            "last", or a step after which no checkpoint is used; None means "last".
          average: number of checkpoints whose mean to load (section 6.1), see `spaced_steps`. 1 averages
            nothing.
          ensemble: number of checkpoints to load as an ensemble. The probabilities of its models are averaged
            at every token. 1 loads a single model.
          config: config to use instead of the config of the run, for example with another beam size.

        Raises:
          UserError: if there is no such checkpoint, if the checkpoints are damaged, belong to a different
            model, or are too few or unequally spaced to average, if the model does not fit into the memory,
            or if `config` has a different model. For an export, if a checkpoint is chosen, or if
            `read_bundle` raises.
        """
        config = self.config if config is None else config
        fixed = [str(change) for change in changes(self.config, config) if change.rule == OnResume.FIXED]
        if fixed:  # even with parameters of equal shapes
            raise UserError(
                f"The parameters of the run belong to another model: {'; '.join(fixed)}. Leave these fields "
                "as they were."
            )
        task = tasks.find(config.task).create(config, self.path, new=False)
        partitioner = make_evaluation_partitioner(config.training, task.init)
        return Run(task, *self._read(task, partitioner, Choice(checkpoint, average, ensemble)))

    def _read(self, task: Task, partitioner: Partitioner, choice: Choice) -> tuple[Any, list[int]]:
        """Returns (placed variables, steps of their checkpoints)."""
        raise NotImplementedError


class ExportFolder(ModelFolder):
    """A folder that `tfm.export` wrote."""

    is_export = True

    def _read(self, task: Task, partitioner: Partitioner, choice: Choice) -> tuple[Any, list[int]]:
        if choice != Choice():
            raise UserError(f"{self.path} is an export and has no checkpoints to choose from or to average.")
        variables, steps = read_bundle(self.path, task)
        return partitioner.fetch_variables(partitioner.place(variables)), steps


class RunFolder(ModelFolder):
    """A folder that `tfm train` wrote."""

    is_export = False

    def _read(self, task: Task, partitioner: Partitioner, choice: Choice) -> tuple[Any, list[int]]:
        check_count("average", choice.average, "checkpoint")
        check_count("ensemble", choice.ensemble, "checkpoint")
        if choice.average > 1 and choice.ensemble > 1:
            raise UserError("Checkpoints are either averaged or an ensemble. Choose one of the two.")
        if choice.ensemble > 1 and not task.averages_models:
            raise UserError(
                f"The task {task.config.task} cannot evaluate an ensemble. Omit --ensemble, or use --average."
            )
        warn_of_other_modules(self.path, last_start(self.path).get("modules", {}), task.config)
        like = variable_shapes(task)
        check_parameters_fit(like["params"], choice.ensemble, sharers=partitioner.parameter_shards)
        if choice.average > 1:
            check_parameters_fit(like["params"], AVERAGE_COPIES, available=host_memory())
        for attempt in itertools.count(1):
            try:
                return self._restore(task, partitioner, like, choice)
            except CheckpointDeleted as error:
                if attempt == ATTEMPTS or choice.checkpoint not in (None, "best", "last"):
                    raise
                log.info("Choosing another checkpoint: %s", error)
        raise AssertionError

    def _restore(
        self, task: Task, partitioner: Partitioner, like: Variables, choice: Choice
    ) -> tuple[Any, list[int]]:
        """Returns (placed variables, steps), or raises `CheckpointDeleted` if training deleted a step."""
        training = task.config.training
        with contextlib.closing(open_checkpoints(task, training, self.path)) as checkpoints:
            steps = choose_steps(checkpoints, choice, training.checkpoint_every)
            placed = partitioner.like(like)
            restored = (
                partitioner.fetch_variables(checkpoints.restore_variables(step, placed)) for step in steps
            )
            if choice.ensemble > 1:
                return tuple(restored), steps
            return average_trees(restored) if choice.average > 1 else next(restored), steps


def open_folder(path: str) -> ModelFolder:
    """Opens the folder of a run or an export. The path may be a URL, such as gs://BUCKET/run.

    Raises:
      UserError: if there is no run, this version cannot read its config, the config of a run has changed
        since its last start, or the config of an export contains paths of files.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"Expected the path of a run's folder as workdir, got {path!r}.")
    if is_url(path):
        path = working_copies.copy_until_exit(path)
    if not os.path.isdir(path):
        raise UserError(f"Expected the folder of a run at {path}, but there is none. Check the path.")
    mapping = configs.load(config_path(path))
    if has_checkpoint(path):  # before, a start that fails may have written another config
        check_recorded_config(path, mapping, config_path(path))
    try:
        config = parse_config(mapping)
    except UserError as error:
        raise UserError(f"{config_path(path)}: {error}") from None
    if not is_bundle(path):
        return RunFolder(path, config)
    if config != config.without_paths():
        raise UserError(
            f"The config in {path} contains paths of files, so tfm export did not write it. "
            "Export the run again."
        )
    return ExportFolder(path, config)


def load(workdir: str, **options: Any) -> Run:
    """Opens a run or an export, and loads its model. `options` such as `average`: see `ModelFolder.load`."""
    return open_folder(workdir).load(**options)


def require_translation(config: Any, what: str) -> None:
    """Raises a UserError if a run does not translate.

    Args:
      config: config of the run.
      what: subject of the error message, such as "tfm translate".
    """
    if not hasattr(getattr(config, "data", None), "target_language"):
        raise UserError(f"{what} needs a run that translates, but this run has the task '{config.task}'.")


def require_bleu(config: Any, what: str) -> None:
    """Raises a UserError if a run has no BLEU. The arguments are as for `require_translation`."""
    require_translation(config, what)
    if not getattr(config, "SCORED_BY_BLEU", True):
        raise UserError(
            f"{what} scores translations by BLEU, but the task of this run, '{config.task}', has other "
            "scores. Read the scores that tfm evaluate wrote."
        )


def single_model_variables(run: Run) -> Variables:
    """Returns the variables of a run of a single model.

    Raises:
      UserError: if the run is an ensemble.
    """
    if isinstance(run.variables, tuple):
        raise UserError(
            "An ensemble is several models. Load one checkpoint or the average of several instead."
        )
    return run.variables


def parse_config(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> Any:
    """Converts a mapping to the frozen config dataclass of the task that it names.

    Raises:
      UserError: if a field or its value is wrong, or if the task's dataclass lacks one of `REQUIRED_MEMBERS`.
    """
    config = configs.from_mapping(config_class(mapping), mapping)
    for path in REQUIRED_MEMBERS:
        try:
            operator.attrgetter(path)(config)
        except AttributeError:
            raise UserError(
                f"Expected the config of the task {config.task!r} to have {', '.join(REQUIRED_MEMBERS)}, but "
                f"{type(config).__qualname__} has no {path}. Define it."
            ) from None
    return config


def config_class(mapping: Mapping[str, Any] | config_dict.ConfigDict) -> type:
    """Returns the config class of the task that a mapping names.

    Raises:
      UserError: if the mapping names no task, or an unknown task.
    """
    if "task" not in mapping:
        names = ", ".join(mapping) or "no fields"
        raise UserError(f"A config must have the field 'task', but this config has {names}.")
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
    return os.path.join(workdir, f"{name or last_part(split)}.{language}")


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
      The steps in ascending order, or [] if there are not `count` steps at equal distances.
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


def choose_steps(checkpoints: CheckpointStore, choice: Choice, every: int) -> list[int]:
    """Returns the steps of the checkpoints to load.

    Args:
      checkpoints: the `CheckpointStore` of the run.
      choice: see `ModelFolder.load`.
      every: `training.checkpoint_every`.

    Raises:
      UserError: if there is no such checkpoint, or there are too few at equal distances.
    """
    steps, asked = checkpoints.steps(), choice.checkpoint
    if not steps:
        raise UserError(f"Expected a checkpoint in {checkpoints.folder}, but there is none. Train first.")
    several = max(choice.average, choice.ensemble)
    if several == 1:
        return [_choose_step(checkpoints, steps, asked)]
    if asked in (None, "last"):
        newest = steps[-1]
    else:
        newest = _find_step(asked, steps, "The checkpoint of an average or an ensemble must be 'last'")
    up_to = [step for step in steps if 0 < step <= newest]  # a warm start saves the untrained step 0
    chosen = spaced_steps(up_to, several, every)
    if not chosen:
        raise UserError(
            f"Expected {several} checkpoints at equal distances, such as every {every:,} steps, in "
            f"{checkpoints.folder}, but there are {up_to}. Use fewer, or train for more steps with a larger "
            "training.keep."
        )
    return chosen


def _choose_step(checkpoints: CheckpointStore, steps: Sequence[int], asked: str | int | None) -> int:
    """Returns the step of a single checkpoint. `steps` are all steps, and the others are as in `Choice`."""
    if asked in (None, "best") and (best := checkpoints.best()) is not None:
        return best
    if asked in (None, "best", "last"):
        latest = checkpoints.latest()
        assert latest is not None, "there are checkpoints"
        return latest
    return _find_step(asked, steps, "The checkpoint must be 'best', 'last'")


def _find_step(asked: str | int | None, steps: Sequence[int], expectation: str) -> int:
    """Returns the step that a text or a number names, or raises a UserError that begins as `expectation`."""
    step = next((step for step in steps if str(step) == str(asked)), None)
    if step is None:
        raise UserError(f"{expectation} or one of the steps {steps}, got {asked!r}.")
    return step
