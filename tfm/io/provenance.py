"""Records all that is needed to repeat a run: one line of JSON for each of its starts."""

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
from collections.abc import Callable, Mapping
from typing import Any

import jax

import tfm
from tfm.io.files import end_last_line, read_json_lines

RECORD_FILE = "starts.jsonl"
VARIABLES = ("JAX_", "XLA_")  # of the environment, that are recorded
NUMERICAL = (  # options of JAX on which the numbers of a run depend
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)
log = logging.getLogger(__name__)


def record_start(
    workdir: str, config: Any, identity: dict[str, str], step: int, bfloat16_library: Callable[[], str]
) -> None:
    """Appends a start that resumes from `step` to starts.jsonl in the work directory; the first host does.

    The line has "changed": the fields of the config that differ from the start before, {path: [old, new]}.
    Warns of a run that resumes with other data than at its last start, or with another way to compute.

    Args:
      workdir: folder of the run.
      config: of the run, a dataclass.
      identity: hashes of its data, by name.
      step: 0 for a new run.
      bfloat16_library: `tfm.matmul.bfloat16_library`, which is slow; called for a model in bfloat16 only.
    """
    if jax.process_index() > 0:
        return
    line = {
        "time": time.strftime("%F %T %z"),
        "step": step,
        "command": sys.orig_argv,
        "host": platform.node(),
        "platform": platform.platform(),
        "processes": jax.process_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "code": code_state(os.path.dirname(os.path.dirname(os.path.abspath(tfm.__file__)))),
        "versions": dict(package_versions()),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)},
        "jax": {name: getattr(jax.config, name) for name in NUMERICAL},
        "data": identity,
        "config": dataclasses.asdict(config),
    }
    if _computes_in_bfloat16(line):
        line["bfloat16_library"] = bfloat16_library()
    before = last_start(workdir)
    line["changed"] = changed_fields(before.get("config", line["config"]), line["config"])
    if step:  # what begins at 0, with a new schedule or the weights of another run, may have any data
        _warn_of_changes(before.get("data", {}), line["data"], step)
        _warn_of_numbers(_numerical(before), _numerical(line), step)
    path = os.path.join(workdir, RECORD_FILE)
    end_last_line(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def last_start(workdir: str, before: float = math.inf) -> dict:
    """The last whole line of the record; {} where there is none.

    Args:
      workdir: folder of the run.
      before: a step, counted from 1: the start that made it, for one that resumed from an earlier step.
    """
    path = os.path.join(workdir, RECORD_FILE)
    starts = list(filter(_is_start, read_json_lines(path))) if os.path.isfile(path) else []
    return next((start for start in reversed(starts) if start.get("step", 0) < before), {})


def _is_start(line):
    sections = ("data", "config", "jax")
    if not isinstance(line, dict) or not isinstance(line.get("step", 0), int):
        return False
    return all(isinstance(line.get(name, {}), dict) for name in sections)


def changed_fields(old: dict, new: dict, path: str = "") -> dict[str, list]:
    """The fields in which two configs, nested dicts, differ: {path: [old, new]}; None for one not there."""
    found: dict[str, list] = {}
    for name in old.keys() | new.keys():
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            found |= changed_fields(before, now, f"{path}{name}.")
        elif json.dumps(before) != json.dumps(now):  # lists and tuples are the same there
            found[f"{path}{name}"] = [before, now]
    return dict(sorted(found.items()))


def _warn_of_changes(before, now, step):
    changed = [name for name, content in now.items() if before.get(name, content) != content]
    if changed:
        log.warning(
            "The content of %s has changed since the last start of this run: from step %s on it reads other "
            "data, in another order, and its losses and scores cannot be compared with those before",
            " and ".join(changed),
            f"{step:,}",
        )


def _numerical(start):
    """{name: value} of what changes the random numbers or the rounding of a run."""
    options = dict(start.get("jax", {}))
    if _computes_in_bfloat16(start):  # starts before there was a choice do not say
        options["the library for products of bfloat16"] = start.get("bfloat16_library", "XLA")
    return options


def _computes_in_bfloat16(start):
    model = start.get("config", {}).get("model")
    return isinstance(model, dict) and model.get("dtype") == "bfloat16"


def _warn_of_numbers(before, now, step):
    """Of what differs, such as JAX_DEFAULT_PRNG_IMPL in the environment, or the extra `onednn`."""
    changed = [
        f"{name} was {before[name]!r} and is now {value!r}"
        for name, value in now.items()
        if before.get(name, value) != value
    ]
    if changed:
        log.warning(
            "This run computes otherwise than at its last start (%s): from step %s on, its numbers differ "
            "from those of an unbroken run",
            "; ".join(changed),
            f"{step:,}",
        )


@functools.cache  # hundreds of files; what is installed later, the process does not run
def package_versions() -> Mapping[str, str]:
    """{name: version} of Python and of every package that is installed when this is first called."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        try:
            about: Any = package.metadata
        except FileNotFoundError:  # importlib-metadata, where it is installed, raises it
            continue
        if "Name" in about:  # else the rest of an installation that failed
            found.setdefault(about["Name"], about.get("Version"))  # of two, Python imports the first
    return types.MappingProxyType({"python": platform.python_version()} | dict(sorted(found.items())))


def code_state(root: str) -> dict[str, Any]:
    """Which code runs: {"commit", "changed"}, or {} where `root` is not itself a checkout of Git.

    changed: what `git status` tells of files that differ from the commit or are not in it.
    """
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if not os.path.samefile(top, root):  # an installed package below somebody's repository
            return {}
        return {"commit": commit, "changed": _git(root, "status", "--porcelain").splitlines()}
    except (FileNotFoundError, subprocess.CalledProcessError):  # no Git, or no commit
        return {}


def _git(root, *arguments):
    command = ["git", "-C", root, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
