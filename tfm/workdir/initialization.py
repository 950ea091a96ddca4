"""Initialization of a run: random parameters, a warm start from another run, or a reset of the schedule."""

import contextlib
import dataclasses
import filecmp
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax

from tfm import config, tasks
from tfm.checkpoints.store import list_steps
from tfm.errors import UserError
from tfm.fields import NEVER, WITH_FLAG, WITH_RESET, changes, leaves
from tfm.io.files import atomic_file
from tfm.io.provenance import RECORD_FILE, last_start
from tfm.training.reporting import METRICS_FILE
from tfm.training.samples import SAMPLES_FILE, SAMPLES_FOLDER
from tfm.training.setup import CHECKPOINT_FOLDER, open_checkpoints
from tfm.training.task import Task, Variables
from tfm.training.trackers.run_ids import TRACKERS_FILE
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle

BEFORE_RESET = "before_reset"
log = logging.getLogger(__name__)


def save_config(chosen: Any, workdir: str, *, allow_change: Sequence[str] = (), resets: bool = False) -> None:
    """Writes the config into the work directory, after `check_config`, whose arguments it takes.

    Where the run is to be reset, `reset` writes it.
    """
    check_config(chosen, workdir, allow_change=allow_change, resets=resets)
    if not _will_reset(workdir, resets):
        config.save(chosen, runs.config_path(workdir))


def check_config(
    chosen: Any, workdir: str, *, allow_change: Sequence[str] = (), resets: bool = False
) -> None:
    """Checks that the run of a work directory may have this config, and logs what differs from its own.

    Until the first checkpoint of a run all of it may change, but for what its assets were made from. After
    that, each field says whether it may: see `tfm.fields.FieldInfo.resume`. A reset begins a new schedule, so
    that it needs no flag.

    Args:
      chosen: the config.
      workdir: folder of the run.
      allow_change: paths of fields that may change all the same, such as "training.seed".
      resets: whether the run is to be reset.

    Raises:
      UserError: names each field that may not change, its old and its new value, and the flag that allows it,
        if there is one; or `allow_change` names no field, or one that can never change; or the folder is an
        export.
    """
    if is_bundle(workdir):
        raise UserError(
            f"{workdir} is an export, which training would write over: give another --workdir; "
            f"--warm_start={workdir} begins with its weights."
        )
    allowed = _allowed(chosen, allow_change)
    begun, was_reset = _has_checkpoint(workdir), _has_checkpoint(os.path.join(workdir, BEFORE_RESET))
    saved = _saved_config(workdir, begun)
    if saved is not None:
        changed = changes(saved, chosen)
        if begun and not _will_reset(workdir, resets):
            _check_resume(changed, chosen, workdir, allowed, was_reset)
        elif begun or was_reset:
            _refuse([_reason(change) for change in changed if change.rule == NEVER], workdir)
        else:
            _check_assets(changed, workdir)
        for change in changed:
            level = logging.WARNING if change.rule in (WITH_FLAG, WITH_RESET) else logging.INFO
            log.log(level, "config.%s", change)


def _will_reset(workdir, resets):
    """Whether `resets` begins a new schedule, which it does once."""
    return resets and _has_checkpoint(workdir) and not _has_checkpoint(os.path.join(workdir, BEFORE_RESET))


def _saved_config(workdir, begun):
    """The config that the run in a folder has; None where there is no run.

    Raises:
      UserError: there are checkpoints, and neither the file nor the record of the starts tells their config.
    """
    path = runs.config_path(workdir)
    if os.path.exists(path):
        return runs.read_config(workdir)
    if not begun:
        return None
    recorded = last_start(workdir).get("config")
    if recorded is None:
        raise UserError(f"{workdir} has checkpoints but no {runs.CONFIG_FILE}: put it back from a copy.")
    log.warning("%s is missing: reading the config of the last start from %s", path, RECORD_FILE)
    return runs.parse_config(recorded)


def _allowed(chosen, names):
    """The paths that --allow_change names, checked."""
    known = {leaf.path: leaf.info for leaf in leaves(chosen)}
    paths = [name.removeprefix("config.") for name in names]
    if not known.keys() >= set(paths):
        mapping = dataclasses.asdict(chosen)
        paths = [config.current_path(type(chosen), mapping, path) for path in paths]
    for path in paths:
        if path not in known:
            raise UserError(f"--allow_change: {config.unknown_field(path, path, known)}")
        if known[path].resume == NEVER:
            raise UserError(
                f"--allow_change={path}: this field can never change in a run, as its weights depend on it: "
                "give a new --workdir."
            )
        if known[path].resume == WITH_RESET:
            raise UserError(
                f"--allow_change={path}: the state of the optimizer depends on it: --reset_schedule restarts "
                "with the weights of the run."
            )
    return paths


def _check_resume(changed, chosen, workdir, allowed, was_reset):
    """Whether a run that has a checkpoint may resume with these changes."""
    forbidden = [change for change in changed if change.rule in (NEVER, WITH_RESET)]
    forbidden += [change for change in changed if change.rule == WITH_FLAG and change.path not in allowed]
    _refuse([_reason(change, was_reset=was_reset) for change in forbidden], workdir)
    moved = [change for change in changed if change.new.info.asset and change.path not in allowed]
    other = _other_data(chosen, workdir) if moved else ""
    _refuse(
        [_reason(change, f"the content of {other} is not the same there; ") for change in moved if other],
        workdir,
    )


def _other_data(chosen, workdir):
    """The split whose content is not that of the last start; "" for none, or for a task that cannot tell."""
    before, task = last_start(workdir).get("data", {}), tasks.find(chosen.task)
    splits = [name for name in ("train", "validation") if name in before and hasattr(task, "fingerprint")]
    return next((name for name in splits if task.fingerprint(chosen, name) != before[name]), "")


def _reason(change, why="", was_reset=False):
    if change.rule == NEVER:
        return f"{change} (never allowed, as the weights depend on it)"
    if change.rule == WITH_RESET and was_reset:
        return (
            f"{change} (the state of the optimizer depends on it, and --reset_schedule works once: begin a "
            "new --workdir with --warm_start)"
        )
    if change.rule == WITH_RESET:
        return f"{change} (the state of the optimizer depends on it; --reset_schedule allows it)"
    if change.depends:
        why += f"{change.depends} depends on it; "
    return f"{change} ({why}--allow_change={change.path} allows it)"


def _refuse(reasons, workdir):
    if reasons:
        raise UserError(
            f"The run in {workdir} was started with another config: {'; '.join(reasons)}. "
            "Give the config it was started with, or a new --workdir."
        )


def _check_assets(changed, workdir):
    for name in dict.fromkeys(change.new.info.asset for change in changed):
        path = os.path.join(workdir, name)
        if name and os.path.exists(path):
            made = "; ".join(str(change) for change in changed if change.new.info.asset == name)
            raise UserError(
                f"{path} was made from another config: {made}. Delete it, or give a new --workdir."
            )


def check_warm_start(source: str, chosen: Any, workdir: str) -> None:
    """Checks that a new run can begin with the weights of `source`. Changes no file.

    Args:
      source: a run or an export.
      chosen: config of the new run.
      workdir: folder of the new run. If it has a checkpoint, the run has begun and nothing else is checked.

    Raises:
      UserError: if `source` is no run, is the run itself, or has another model.
    """
    if os.path.realpath(source) == os.path.realpath(workdir):
        raise UserError("--warm_start names the run itself: give another run, or --reset_schedule.")
    if _has_checkpoint(workdir):
        return
    changed = [
        change for change in changes(runs.read_config(source), chosen) if not change.new.info.warm_start
    ]
    if changed:
        each = (
            f"{change.path} is {change.old.value!r} there and {change.new.value!r} here" for change in changed
        )
        raise UserError(f"The run in {source} has another model: {'; '.join(each)}. Use its config.model.")


def prepare_warm_start(source: str, chosen: Any, workdir: str) -> None:
    """Copies the assets of `source`, with whose weights a new run begins, into the folder of the new run.

    Args:
      source, chosen, workdir: as `check_warm_start` takes them. A run that has begun is left as it is.

    Raises:
      UserError: as `check_warm_start`, or if the folder contains other assets.
    """
    check_warm_start(source, chosen, workdir)
    if _has_checkpoint(workdir):
        log.info("%s has begun before: --warm_start does nothing", workdir)
        return
    saved = runs.read_config(source)
    made = [change for change in changes(saved, chosen) if change.new.info.asset]
    if made:
        log.info(
            "The new run has the vocabulary of %s, whatever is new: %s", source, "; ".join(map(str, made))
        )
    os.makedirs(workdir, exist_ok=True)
    for name in tasks.find(saved.task).create(saved, source, new=False).assets():
        theirs, own = (os.path.join(folder, name) for folder in (source, workdir))
        if not os.path.exists(own):
            with open(theirs, "rb") as content, atomic_file(own) as file:
                shutil.copyfileobj(content, file)
        elif not filecmp.cmp(theirs, own, shallow=False):
            raise UserError(f"{own} is not the {name} of {source}: give a new --workdir.")


def reset(task: Task, workdir: str) -> None:
    """Moves checkpoints and metrics of a run to another folder, to begin a new schedule with its weights.

    They go to the folder `before_reset`. Where that is there already, the reset was made and the run resumes.
    The config of the task becomes that of the run.

    Raises:
      UserError: there is no intact checkpoint.
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        log.info("The schedule was reset before, see %s: --reset_schedule does nothing", aside)
        return
    if not _has_checkpoint(workdir):
        raise UserError(f"--reset_schedule needs a run that has begun, but {workdir} has no checkpoint.")
    with contextlib.closing(open_checkpoints(task, task.config.training, workdir)) as checkpoints:
        log.info("Beginning a new schedule with the weights of step %s", f"{checkpoints.latest():,}")
    os.makedirs(aside, exist_ok=True)
    logged = (METRICS_FILE, SAMPLES_FILE, SAMPLES_FOLDER, "tensorboard", TRACKERS_FILE)
    for name in (*logged, CHECKPOINT_FOLDER):  # the last one makes it a reset
        if os.path.exists(os.path.join(workdir, name)):
            os.replace(os.path.join(workdir, name), os.path.join(aside, name))
    config.save(task.config, runs.config_path(workdir))


def find_initial_variables(task: Task, workdir: str, source: str) -> Callable[[], Variables] | None:
    """Returns a function that loads the initial variables, as `training.loop.train` takes it, or None.

    Args:
      task: of the run.
      workdir: its folder. After a `reset`, its own variables come before those of `source`.
      source: run or export to begin with, "" for none.
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        if source:
            log.warning(
                "%s begins with its own weights, as its schedule was reset: --warm_start does nothing",
                workdir,
            )
        return lambda: _newest_variables(task, aside)
    if source:
        return lambda: runs.single_model_variables(runs.load(source))
    return None


def _newest_variables(task, folder):
    like = jax.eval_shape(task.init, jax.random.key(0))
    with contextlib.closing(open_checkpoints(task, task.config.training, folder)) as checkpoints:
        newest = checkpoints.latest()
        assert newest is not None  # `find_initial_variables` has found a checkpoint
        return checkpoints.restore_variables(newest, like)


def _has_checkpoint(workdir):
    return bool(list_steps(os.path.join(workdir, CHECKPOINT_FOLDER)))
