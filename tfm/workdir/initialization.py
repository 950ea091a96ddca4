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
from tfm.fields import NEVER, WITH_FLAG, WITH_RESET, Change, changes, leaves
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
    """Checks a config with `check_config`, and writes it into the work directory.

    If the run will be reset, the config is only checked, because `reset` writes it. The arguments are those
    of `check_config`.
    """
    check_config(chosen, workdir, allow_change=allow_change, resets=resets)
    if not _will_reset(workdir, resets):
        config.save(chosen, runs.config_path(workdir))


def check_config(
    chosen: Any, workdir: str, *, allow_change: Sequence[str] = (), resets: bool = False
) -> None:
    """Checks that the run of a work directory may have this config, and logs the changes.

    Before the first checkpoint, any field may change except the fields that produced the tokenizer or other
    assets. After it, `tfm.fields.FieldInfo.resume` decides for each field. A reset begins a new schedule, so
    it may change all fields except those that may never change.

    Args:
      chosen: the new config.
      workdir: folder of the run.
      allow_change: paths of fields that may change although the results depend on them, such as
        "training.seed".
      resets: whether --reset_schedule is given.

    Raises:
      UserError: if fields may not change. The message has the old and the new value of each field, and the
        flag that allows the change if there is one. Also if `allow_change` contains an unknown field or a
        field that can never change, or if the folder is an export.
    """
    if is_bundle(workdir):
        raise UserError(
            f"{workdir} is an export, and training would overwrite it. Give another --workdir; "
            f"--warm_start={workdir} begins with its parameters."
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


def _will_reset(workdir: str, resets: bool) -> bool:
    """Returns whether --reset_schedule begins a new schedule now. It works only once for each run."""
    return resets and _has_checkpoint(workdir) and not _has_checkpoint(os.path.join(workdir, BEFORE_RESET))


def _saved_config(workdir: str, begun: bool) -> Any:
    """Returns the config of the run in a folder, or None if there is no run.

    If the file is missing, reads the config from the record of the last start.

    Args:
      workdir: folder of the run.
      begun: whether the run has a checkpoint.

    Raises:
      UserError: if there are checkpoints, but neither the file nor the record of the starts has a config.
    """
    path = runs.config_path(workdir)
    if os.path.exists(path):
        return runs.read_config(workdir)
    if not begun:
        return None
    recorded = last_start(workdir).get("config")
    if recorded is None:
        raise UserError(f"{workdir} has checkpoints but no {runs.CONFIG_FILE}. Restore it from a copy.")
    log.warning("%s is missing: reading the config of the last start from %s", path, RECORD_FILE)
    return runs.parse_config(recorded)


def _allowed(chosen: Any, names: Sequence[str]) -> list[str]:
    """Returns the field paths of --allow_change, or raises a UserError if a path is unknown or fixed."""
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
                f"--allow_change={path}: this field can never change in a run, because the parameters depend "
                "on it. Give a new --workdir."
            )
        if known[path].resume == WITH_RESET:
            raise UserError(
                f"--allow_change={path}: the state of the optimizer depends on this field. --reset_schedule "
                "begins a new schedule with the parameters of the run."
            )
    return paths


def _check_resume(
    changed: Sequence[Change], chosen: Any, workdir: str, allowed: Sequence[str], was_reset: bool
) -> None:
    """Raises a UserError if a run that has a checkpoint may not resume with these changes."""
    forbidden = [change for change in changed if change.rule in (NEVER, WITH_RESET)]
    forbidden += [change for change in changed if change.rule == WITH_FLAG and change.path not in allowed]
    _refuse([_reason(change, was_reset=was_reset) for change in forbidden], workdir)
    moved = [change for change in changed if change.new.info.asset and change.path not in allowed]
    other = _other_data(chosen, workdir) if moved else ""
    _refuse(
        [_reason(change, f"the content of {other} has changed; ") for change in moved if other],
        workdir,
    )


def _other_data(chosen: Any, workdir: str) -> str:
    """Returns the name of a split whose content has changed since the last start, or "".

    Also returns "" if the task cannot compute fingerprints of its data.
    """
    before, task = last_start(workdir).get("data", {}), tasks.find(chosen.task)
    splits = [name for name in ("train", "validation") if name in before and hasattr(task, "fingerprint")]
    return next((name for name in splits if task.fingerprint(chosen, name) != before[name]), "")


def _reason(change: Change, why: str = "", was_reset: bool = False) -> str:
    """Returns the change of a field, why it is not allowed, and the flag that allows it if there is one."""
    if change.rule == NEVER:
        return f"{change} (never allowed, because the parameters depend on it)"
    if change.rule == WITH_RESET and was_reset:
        return (
            f"{change} (the state of the optimizer depends on it, and --reset_schedule works only once: "
            "begin a new --workdir with --warm_start)"
        )
    if change.rule == WITH_RESET:
        return f"{change} (the state of the optimizer depends on it; --reset_schedule allows it)"
    if change.depends:
        why += f"{change.depends} depends on it; "
    return f"{change} ({why}--allow_change={change.path} allows it)"


def _refuse(reasons: Sequence[str], workdir: str) -> None:
    """Raises a UserError with all reasons, if there are any."""
    if reasons:
        raise UserError(
            f"The run in {workdir} was started with another config: {'; '.join(reasons)}. "
            "Give the config that it was started with, or a new --workdir."
        )


def _check_assets(changed: Sequence[Change], workdir: str) -> None:
    """Raises a UserError if an asset in the folder was made from fields that have changed."""
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
    """Copies the assets of `source`, such as its vocabulary, into the folder of a new run.

    Does nothing if the run has a checkpoint.

    Args:
      source, chosen, workdir: see `check_warm_start`.

    Raises:
      UserError: if `check_warm_start` raises, or the folder contains other assets.
    """
    check_warm_start(source, chosen, workdir)
    if _has_checkpoint(workdir):
        log.info("%s has begun before: --warm_start does nothing", workdir)
        return
    saved = runs.read_config(source)
    made = [change for change in changes(saved, chosen) if change.new.info.asset]
    if made:
        log.info(
            "The new run uses the vocabulary of %s, so these changes have no effect on it: %s",
            source,
            "; ".join(map(str, made)),
        )
    os.makedirs(workdir, exist_ok=True)
    for name in tasks.find(saved.task).create(saved, source, new=False).assets():
        theirs, own = (os.path.join(folder, name) for folder in (source, workdir))
        if not os.path.exists(own):
            with open(theirs, "rb") as content, atomic_file(own) as file:
                shutil.copyfileobj(content, file)
        elif not filecmp.cmp(theirs, own, shallow=False):
            raise UserError(f"{own} differs from the {name} of {source}. Give a new --workdir.")


def reset(task: Task, workdir: str) -> None:
    """Prepares a new schedule: moves the checkpoints and logs of a run to its folder `before_reset`.

    Also writes the config of `task` as the config of the run. If `before_reset` has a checkpoint, the run was
    reset before, and nothing changes.

    Raises:
      UserError: if there is no intact checkpoint.
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        log.info("--reset_schedule does nothing, because the schedule was reset before (see %s)", aside)
        return
    if not _has_checkpoint(workdir):
        raise UserError(f"--reset_schedule needs a run with a checkpoint, but {workdir} has none.")
    with contextlib.closing(open_checkpoints(task, task.config.training, workdir)) as checkpoints:
        log.info("Beginning a new schedule with the parameters of step %s", f"{checkpoints.latest():,}")
    os.makedirs(aside, exist_ok=True)
    logged = (METRICS_FILE, SAMPLES_FILE, SAMPLES_FOLDER, "tensorboard", TRACKERS_FILE)
    for name in (
        *logged,
        CHECKPOINT_FOLDER,
    ):  # moved last, because the moved checkpoints mark a complete reset
        if os.path.exists(os.path.join(workdir, name)):
            os.replace(os.path.join(workdir, name), os.path.join(aside, name))
    config.save(task.config, runs.config_path(workdir))


def find_initial_variables(task: Task, workdir: str, source: str) -> Callable[[], Variables] | None:
    """Returns a function that loads the initial variables for `training.loop.train`, or None.

    After a `reset`, the function loads the newest variables from before the reset. Otherwise it loads the
    variables of `source`. None means that the run begins with random parameters.

    Args:
      task: task of the run.
      workdir: folder of the run.
      source: run or export of --warm_start, or "".
    """
    aside = os.path.join(workdir, BEFORE_RESET)
    if _has_checkpoint(aside):
        if source:
            log.warning(
                "--warm_start does nothing, because the schedule of %s was reset",
                workdir,
            )
        return lambda: _newest_variables(task, aside)
    if source:
        return lambda: runs.single_model_variables(runs.load(source))
    return None


def _newest_variables(task: Task, folder: str) -> Variables:
    """Loads the variables of the newest intact checkpoint in a folder."""
    like = jax.eval_shape(task.init, jax.random.key(0))
    with contextlib.closing(open_checkpoints(task, task.config.training, folder)) as checkpoints:
        newest = checkpoints.latest()
        assert newest is not None  # `find_initial_variables` has found a checkpoint
        return checkpoints.restore_variables(newest, like)


def _has_checkpoint(workdir: str) -> bool:
    """Returns whether a folder contains a checkpoint."""
    return bool(list_steps(os.path.join(workdir, CHECKPOINT_FOLDER)))
