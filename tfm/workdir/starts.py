"""The record of the starts of a run in starts.jsonl, and the checks of the data and the config against it."""

import dataclasses
import functools
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from typing import Any

import jax

import tfm
from tfm import tasks
from tfm.devices.backend import NUMERICAL_OPTIONS
from tfm.errors import UserError
from tfm.io.files import append_json_line, read_json_lines
from tfm.training.task import Data, RunConfig, Task, check_contract
from tfm.workdir.own_code import hash_modules, warn_of_changed_modules

RECORD_FILE = "starts.jsonl"
SECTIONS = ("code", "modules", "versions", "environment", "jax", "data")  # of a line, next to the config
RECORDED_VARIABLES = (  # environment variables that change numbers; other variables may be secrets
    *map(str.upper, NUMERICAL_OPTIONS),
    *("JAX_PLATFORMS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS"),
)
log = logging.getLogger(__name__)


def record_start(workdir: str, config: RunConfig, identity: dict[str, str], step: int) -> None:
    """Appends a line about this start to starts.jsonl in the run folder. Only the first host writes.

    The line contains everything that is needed to repeat the run. Its field "changed" contains the fields of
    the config that differ from the previous start, as {path: [old, new]}. If the run resumes, warnings name
    changes of the data, of the user's own modules and of options that change the numbers.

    Args:
      workdir: folder of the run.
      config: config of the run, a dataclass.
      identity: {name: fingerprint} of the data.
      step: step that the run resumes from, or 0 for a new run.

    Raises:
      UserError: if the line cannot be written.
    """
    if jax.process_index() > 0:
        return
    before = last_start(workdir)
    line = {
        "time": time.strftime("%F %T %z"),
        "step": step,
        "command": sys.orig_argv,
        "host": platform.node(),
        "platform": platform.platform(),
        "processes": jax.process_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "code": code_state(os.path.dirname(os.path.dirname(os.path.abspath(tfm.__file__)))),
        "modules": hash_modules(config),
        "versions": dict(package_versions()),
        "environment": {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
        "jax": {name: getattr(jax.config, name) for name in NUMERICAL_OPTIONS},
        "data": identity,
        "config": dataclasses.asdict(config),
    }
    line["changed"] = changed_fields(before.get("config", line["config"]), line["config"])
    if step:
        _warn_of_changes(before, line, f"{step:,}")
    append_json_line(os.path.join(workdir, RECORD_FILE), line)


def last_start(workdir: str, before: float = math.inf) -> dict:
    """Returns the last complete line of the record, or {}.

    Args:
      workdir: folder of the run.
      before: a step, counted from 1. Only starts that resumed before this step are considered, so the result
        is the start that computed the step.
    """
    starts = reversed(_read_starts(workdir))
    return next((start for start in starts if start["step"] < before), {})


def _read_starts(workdir: str) -> list[dict]:
    """Returns the lines of the record that are complete and have the form that `record_start` writes."""
    lines = read_json_lines(os.path.join(workdir, RECORD_FILE), {"step": int, "config": dict})
    return [line for line in lines if all(isinstance(line.get(name, {}), dict) for name in SECTIONS)]


def changed_fields(old: dict, new: dict, path: str = "") -> dict[str, list]:
    """Returns {path: [old value, new value]} of the fields that differ between two nested dicts.

    The value of a missing field is None.
    """
    changed: dict[str, list] = {}
    for name in old.keys() | new.keys():
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            changed |= changed_fields(before, now, f"{path}{name}.")
        elif json.dumps(before) != json.dumps(now):  # lists and tuples are equal in JSON
            changed[f"{path}{name}"] = [before, now]
    return dict(sorted(changed.items()))


def open_same_data(task: Task, workdir: str, step: int, before: float = math.inf) -> Data:
    """Opens the data of a run and calls `check_same_data`.

    Every command that computes batches of an existing run opens the data with this function.

    Args:
      task: task of the run.
      workdir, step, before: see `check_same_data`.

    Raises:
      UserError: if the data cannot be used, or if `check_same_data` raises it.
    """
    data = task.open_data()
    check_contract(data, Data)
    check_same_data(workdir, data.identity(), step, before)
    return data


def check_same_data(workdir: str, now: dict[str, str], step: int, before: float = math.inf) -> None:
    """Checks that the training data and the tokenizer have not changed since the last start of a run.

    Args:
      workdir: folder of the run.
      now: {name: fingerprint} of the present data.
      step: the step that the run resumes from, or the step that is recomputed. At step 0, nothing is checked,
        because the run begins with these data.
      before: see `last_start`. The data are compared with the start that this function returns.

    Raises:
      UserError: if the training data or the tokenizer differ, because the batches would change.
    """
    recorded = last_start(workdir, before).get("data", {}) if step else {}
    if changed := [name for name in _differences(recorded, now) if name != "validation"]:
        raise UserError(
            f"The content of {' and '.join(changed)} has changed since the last start of the run in "
            f"{workdir}. Restore the data, or start a new run in another folder."
        )


def warn_of_changed_split(config: RunConfig, workdir: str, split: str) -> None:
    """Logs a warning if the content of a split has changed since the last start of a run.

    Does nothing if the run did not record the split, or if the task cannot compute its fingerprint.

    Args:
      config: config of the run.
      workdir: folder of the run.
      split: name of the split.

    Raises:
      UserError: if the split cannot be used.
    """
    recorded = last_start(workdir).get("data", {}).get(split)
    if recorded is None:
        return
    if tasks.fingerprint(config, split) not in (None, recorded):
        log.warning(
            "The content of %s has changed since the last start of the run in %s. Results on it cannot be "
            "compared with the results of the run",
            split,
            workdir,
        )


def check_recorded_config(workdir: str, config: Mapping[str, Any], path: str) -> None:
    """Checks that the run was once started with the content of its config file.

    A start writes its record before it writes the config file. After a kill between both, the config file
    still has the content of the previous start.

    Args:
      workdir: folder of the run.
      config: the content of the config file.
      path: path of the config file.

    Raises:
      UserError: if the config file differs from the configs of all starts, for example because the disk is
        damaged or the file was edited.
    """
    changed = [changed_fields(start["config"], dict(config)) for start in reversed(_read_starts(workdir))]
    if not changed or {} in changed:
        return
    fields = "; ".join(f"{name} was {old!r} and is now {new!r}" for name, (old, new) in changed[0].items())
    raise UserError(
        f"{path} has changed since the run was started ({RECORD_FILE}): {fields}. Set these fields back. To "
        "use other values, give them to the command, such as --config.FIELD=VALUE."
    )


def _warn_of_changes(before: dict, now: dict, step: str) -> None:
    """Logs changes of the validation data, of own modules, and of JAX options that change the numbers.

    An environment variable can change such an option, for example JAX_DEFAULT_PRNG_IMPL.
    """
    if changed := _differences(before.get("data", {}), now["data"]):
        log.warning(
            "The content of %s has changed since the last start of this run. From step %s on, its scores "
            "cannot be compared with earlier scores",
            " and ".join(changed),
            step,
        )
    warn_of_changed_modules(
        before.get("modules", {}),
        now["modules"],
        since="the last start of this run",
        effect=f"From step {step} on, the run may differ from an unbroken run",
    )
    if changed := _differences(before.get("jax", {}), now["jax"]):
        log.warning(
            "Options of JAX have changed since the last start of this run (%s). From step %s on, its numbers "
            "differ from an unbroken run",
            "; ".join(f"{name} was {old!r} and is now {new!r}" for name, (old, new) in changed.items()),
            step,
        )


def _differences(before: dict, now: dict) -> dict[str, tuple[Any, Any]]:
    """Returns {name: (old value, new value)} of the names in both dicts whose values differ."""
    return {name: (before[name], new) for name, new in now.items() if before.get(name, new) != new}


@functools.cache  # reads hundreds of files
def package_versions() -> Mapping[str, str]:
    """Returns {name: version} of Python and of all packages that were installed at the first call."""
    versions: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        try:
            metadata: Any = package.metadata
        except FileNotFoundError:  # raised if the package importlib-metadata is installed
            continue
        if "Name" in metadata:  # a failed installation leaves a folder without a name
            # If two folders have a package, Python imports the first.
            versions.setdefault(metadata["Name"], metadata.get("Version"))
    return types.MappingProxyType({"python": platform.python_version()} | dict(sorted(versions.items())))


def code_state(root: str) -> dict[str, Any]:
    """Returns {"commit": hash, "changed": lines of `git status`} if a folder is a Git checkout, else {}."""
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if not os.path.samefile(top, root):  # an installed package in somebody's repository
            return {}
        return {"commit": commit, "changed": _git(root, "status", "--porcelain").splitlines()}
    except (FileNotFoundError, subprocess.CalledProcessError):  # no Git, or no commit
        return {}


def _git(root: str, *arguments: str) -> str:
    """Returns the output of a Git command in a folder. The command does not update the index."""
    command = ["git", "--no-optional-locks", "-C", root, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
