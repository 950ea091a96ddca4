"""What a run that resumes may change in its config."""

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from tfm import config, tasks
from tfm.config import Change, FieldInfo, OnResume, changes, walk_fields
from tfm.errors import UserError, suggest
from tfm.training.setup import has_checkpoint, open_checkpoints
from tfm.training.task import RunConfig, Task
from tfm.workdir import runs
from tfm.workdir.bundle import is_bundle
from tfm.workdir.evaluations import SUFFIX, read_evaluations
from tfm.workdir.starts import RECORD_FILE, last_start

log = logging.getLogger(__name__)


def save_config(new_config: RunConfig, workdir: str, *, allow_change: Sequence[str] = ()) -> None:
    """Checks a config with `check_config`, and writes it unless the run has a checkpoint and a config.

    The config of a run with a checkpoint is replaced by `tfm.workdir.train.train` just before its first step.
    If the start fails earlier, the run keeps its config, and the earlier command resumes it.
    """
    check_config(new_config, workdir, allow_change=allow_change)
    path = runs.config_path(workdir)
    if not has_checkpoint(workdir) or not os.path.exists(path):
        config.save(new_config, path)


def check_config(new_config: RunConfig, workdir: str, *, allow_change: Sequence[str] = ()) -> None:
    """Checks that the run of a work directory may have this config, and logs the changes.

    Before the first checkpoint, any field may change except the fields that produced the tokenizer or other
    assets. After it, `tfm.config.FieldInfo.resume` decides for each field.

    Args:
      new_config: the new config.
      workdir: folder of the run.
      allow_change: paths of fields that may change although the results depend on them, such as
        "training.seed".

    Raises:
      UserError: if fields may not change. The message has the old and the new value of each field, and the
        flag that allows the change if there is one. Also if `allow_change` contains an unknown field or a
        field that can never change, if the folder is an export, or if it has checkpoints and no config.
    """
    if is_bundle(workdir):
        raise UserError(
            f"{workdir} is an export, and training would overwrite it. Give another --workdir; "
            f"--warm_start={workdir} begins with its parameters."
        )
    allowed = _allowed(new_config, allow_change)
    begun = has_checkpoint(workdir)
    saved = _saved_config(workdir, begun)
    if saved is None:
        return
    changed = changes(saved, new_config)
    if begun:
        _check_resume(changed, new_config, workdir, allowed)
    else:
        _check_assets(changed, workdir)
    for change in changed:
        log.log(logging.WARNING if change.rule == OnResume.ASK else logging.INFO, "config.%s", change)


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
        return runs.open_folder(workdir).config
    if not begun:
        return None
    recorded = last_start(workdir).get("config")
    if recorded is None:
        raise UserError(f"{workdir} has checkpoints but no {runs.CONFIG_FILE}. Restore it from a copy.")
    log.warning("%s is missing: reading the config of the last start from %s", path, RECORD_FILE)
    return runs.parse_config(recorded)


def _allowed(new_config: RunConfig, names: Sequence[str]) -> list[str]:
    """Returns the field paths of --allow_change, or raises a UserError if a path is unknown or fixed."""
    known = {leaf.path: leaf.info for leaf in walk_fields(new_config)}
    paths = [name.removeprefix("config.") for name in names]
    for path in paths:
        if path not in known:
            raise UserError(f"--allow_change: {path} does not exist; {suggest(path, known)}")
        if known[path].resume == OnResume.FIXED:
            raise UserError(
                f"--allow_change={path}: this field can never change in a run. {_advice(known[path])}"
            )
    return paths


def _check_resume(
    changed: Sequence[Change], new_config: RunConfig, workdir: str, allowed: Sequence[str]
) -> None:
    """Raises a UserError if a run that has a checkpoint may not resume with these changes."""
    moved = any(change.new.info.asset for change in changed)
    other = _other_data(new_config, workdir) if moved else ""
    reasons = []
    for change in changed:
        other_here = other if change.new.info.asset else ""
        asks = change.rule == OnResume.ASK or other_here
        is_never_allowed = change.rule == OnResume.FIXED or other_here == "train"
        if is_never_allowed or (asks and change.path not in allowed):
            reasons.append(_reason(change, other_here))
    _refuse(reasons, workdir)


def _other_data(new_config: RunConfig, workdir: str) -> str:
    """Returns the name of a split whose content has changed since the last start, or "".

    Also returns "" if the task cannot compute fingerprints of its data.
    """
    recorded = last_start(workdir).get("data", {})
    for split in ("train", "validation"):
        if split in recorded and tasks.fingerprint(new_config, split) not in (None, recorded[split]):
            return split
    return ""


def _reason(change: Change, other_data: str = "") -> str:
    """Returns the change of a field, why it is not allowed, and the flag that allows it if there is one.

    `other_data` is the name of a split whose content has changed, or "".
    """
    if change.rule == OnResume.FIXED:
        return f"{change} (never allowed. {_advice(change.new.info)})"
    if other_data == "train":  # `tfm.workdir.starts.check_same_data` allows no other batches
        return f"{change} (never allowed, because the content of train has changed. Begin a new --workdir)"
    why = f"the content of {other_data} has changed; " if other_data else ""
    if change.depends:
        why += f"{change.depends} depends on it; "
    return f"{change} ({why}tfm train --allow_change={change.path} allows it)"


def _advice(info: FieldInfo) -> str:
    """Returns why a field that never changes is fixed, and how a new run can have another value."""
    if info.warm_start and not info.asset:
        return "The state of the optimizer depends on it. Begin a new --workdir with --warm_start"
    return "The parameters depend on it. Begin a new --workdir"


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


def resume_from(step: int, task: Task, workdir: str) -> None:
    """Makes a checkpoint the newest of a run: moves later checkpoints into the folder checkpoints/after_STEP.

    The run then resumes from `step` whenever it is started again. The files of `tfm evaluate` about later
    checkpoints move, too, because the run trains other parameters of these steps. If the folder exists, the
    run was set back before, and nothing changes.

    Raises:
      UserError: if there is no intact checkpoint of this step.
    """
    files = [
        os.path.join(workdir, name + ending)
        for name, record in read_evaluations(workdir)
        if max(record.checkpoints, default=0) > step
        for ending in (".hypotheses", SUFFIX)  # a kill before the last file leaves the record
    ]
    with contextlib.closing(open_checkpoints(task, task.config.training, workdir)) as checkpoints:
        checkpoints.set_aside_after(step, files)
