"""A new run that begins with parameters of another run, or uses its model without training the model."""

import filecmp
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from tfm import tasks
from tfm.config import changes, to_config_dict, walk_fields
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.io.files import atomic_file
from tfm.training.assets import LABELS_FILE
from tfm.training.frozen import SUFFIX, write_frozen
from tfm.training.parameter_map import Entry, Resize, check_entries, load_tree
from tfm.training.setup import has_checkpoint
from tfm.training.task import RunConfig, Task, Variables, variable_shapes
from tfm.workdir import runs

log = logging.getLogger(__name__)


def check_warm_start(source: str, new_config: RunConfig, workdir: str, entries: Sequence[str] = ()) -> None:
    """Checks that a new run can begin with the parameters of `source`. Changes no file.

    Args:
      source: a run or an export.
      new_config: config of the new run.
      workdir: folder of the new run. If it has a checkpoint, the run has begun and nothing else is checked.
      entries: map of the parameters to take, see `tfm.training.parameter_map.load_tree`. Without a map, the
        new run takes all parameters, so both models must be the same.

    Raises:
      UserError: if `source` is no run, is the run itself, or has a different model and there is no map, or if
        an entry of the map has the wrong form.
    """
    if os.path.realpath(source) == os.path.realpath(workdir):
        raise UserError("--warm_start names the run itself. Give another --workdir for the new run.")
    for entry in entries:
        Entry.parse(entry)
    if has_checkpoint(workdir):
        return
    saved = runs.open_folder(source).config
    changed = [change for change in changes(saved, new_config) if not change.new.info.warm_start]
    if changed and not entries:
        raise UserError(
            f"The run in {source} has another model: {'; '.join(map(str, changed))}. Use its "
            "config.model, or choose the parameters to take with --warm_start_map. "
            "--warm_start_map='*=*' takes all whose shapes fit."
        )


def check_map(source: str, new_config: RunConfig, workdir: str, entries: Sequence[str]) -> None:
    """Checks that each entry of a map takes a parameter, before the data of the new run are read.

    The sizes of a vocabulary are not known yet, so `load_variables` compares the shapes later. A task whose
    data decide its model has no plan, and is checked only then.

    Args:
      source, new_config, workdir, entries: see `check_warm_start`.

    Raises:
      UserError: if the source has no parameter that an entry takes.
    """
    plan = getattr(tasks.find(new_config.task), "plan", None)
    if plan is None or has_checkpoint(workdir):
        return
    folder = runs.open_folder(source)
    other = tasks.find(folder.config.task).create(folder.config, folder.path, new=False)
    ours, theirs = (_join(variable_shapes(task)) for task in (plan(new_config), other))
    check_entries(ours, theirs, entries, source)


def prepare_warm_start(source: str, new_config: RunConfig, workdir: str, entries: Sequence[str] = ()) -> None:
    """Copies the assets of `source`, such as its vocabulary, into the folder of a new run.

    Does nothing if the run has a checkpoint, except that the log says so. Creates the folder. With a map, the
    new run makes its own assets, because its task may be another.

    Args:
      source, new_config, workdir, entries: see `check_warm_start`.

    Raises:
      UserError: if `check_warm_start` raises, or the folder contains other assets.
    """
    check_warm_start(source, new_config, workdir, entries)
    if has_checkpoint(workdir):
        log.info("%s already has a checkpoint, so --warm_start has no effect", workdir)
        return
    os.makedirs(workdir, exist_ok=True)
    if entries:
        return
    saved = runs.open_folder(source).config
    made = [change for change in changes(saved, new_config) if change.new.info.asset]
    if made:
        log.info(
            "The new run takes %s from %s. These changed fields do not change it: %s",
            " and ".join(sorted({change.new.info.asset for change in made})),
            source,
            "; ".join(map(str, made)),
        )
    for name in tasks.find(saved.task).create(saved, source, new=False).assets():
        theirs, own = (os.path.join(folder, name) for folder in (source, workdir))
        if not os.path.exists(own):
            with open(theirs, "rb") as content, atomic_file(own) as file:
                shutil.copyfileobj(content, file)
        elif not filecmp.cmp(theirs, own, shallow=False):
            raise UserError(f"{own} differs from the {name} of {source}. Give a new --workdir.")


def find_initial_variables(
    task: Task, source: str, entries: Sequence[str] = ()
) -> Callable[[Variables], Variables] | None:
    """Returns a function from the random variables of a new run to its initial variables.

    Args:
      task: task of the run.
      source: run or export of --warm_start. "" returns None, because the run begins with random variables.
      entries: see `check_warm_start`.

    The function loads the run when it is called, and then raises a UserError if the run or the entries cannot
    be used. A warning says if assets of both runs differ.
    """
    if not source:
        return None

    def load(initial: Variables) -> Variables:
        run = runs.load(source)
        variables = fetch(runs.single_model_variables(run))
        if not entries:
            return {**initial, **variables}
        _warn_of_other_assets(task, run.task, source)
        resize = getattr(getattr(task, "model", None), "resize_parameter", None)
        return load_variables(initial, variables, entries, source, resize)

    return load


def copy_frozen_models(config: RunConfig, workdir: str) -> None:
    """Writes the model of each field made by `tfm.training.frozen.frozen_field` into the folder of a run.

    A model that exists already stays as it is, so a run that resumes does not need the other run.

    Args:
      config: the config of the run.
      workdir: its folder.

    Raises:
      UserError: if a field names no run or export, or the other run cannot be loaded.
    """
    for leaf in walk_fields(config):
        path = os.path.join(workdir, leaf.info.asset)
        if not leaf.info.asset.endswith(SUFFIX) or not leaf.value or os.path.exists(path):
            continue
        run = runs.load(leaf.value)
        model = to_config_dict(run.task.config.model).to_dict()
        write_frozen(path, model, fetch(runs.single_model_variables(run)))


def load_variables(
    initial: Variables,
    source: Variables,
    entries: Sequence[str],
    what: str,
    resize: Resize | None = None,
) -> dict[str, Any]:
    """Replaces parameters and the state of their modules by the source variables that a map selects.

    The path of a state is the path of the module and its name, followed by its collection in parentheses. For
    the arguments and the errors, see `tfm.training.parameter_map.load_tree`.
    """
    taken = flatten_dict(load_tree(_join(initial), _join(source), entries, what, resize), sep="/")
    return {
        collection: unflatten_dict(
            {path: taken[path + _suffix(collection)] for path in flatten_dict(tree, sep="/")}, sep="/"
        )
        for collection, tree in initial.items()
    }


def _join(variables: Variables) -> dict[str, Any]:
    """Returns {path: array} of all collections."""
    return {
        path + _suffix(collection): leaf
        for collection, tree in variables.items()
        for path, leaf in flatten_dict(tree, sep="/").items()
    }


def _suffix(collection: str) -> str:
    """Returns the end of the path of a variable. It is empty for parameters."""
    return "" if collection == "params" else f" ({collection})"


def _warn_of_other_assets(task: Task, other: Task, source: str) -> None:
    """Warns if parameters of tokens or classes mean something else in the source."""
    theirs = other.assets()
    for name, fingerprint in task.assets().items():
        if theirs.get(name, fingerprint) == fingerprint:
            continue
        if name == LABELS_FILE:
            _warn_of_other_labels(task, other, source)
        else:
            log.warning(
                "The %s of this run differs from the file of %s. Parameters that depend on it, such as "
                "embeddings, mean something else here. Copy that file into the folder of the new run before "
                "its first start to use it.",
                *(name, source),
            )


def _warn_of_other_labels(task: Any, other: Any, source: str) -> None:
    """Warns if the head of the source is taken although its classes have other names.

    A head with another number of classes has another shape, so it is not taken.
    """
    if len(task.label_names) == len(other.label_names):
        log.warning(
            "The classes of %s have other names, so a head that is taken from there predicts other classes "
            "until it is trained. To begin with a new head, choose only the other parameters in "
            "--warm_start_map.",
            source,
        )
