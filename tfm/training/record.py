"""What it takes to repeat a run: one line of JSON for each of its starts."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time

import jax

import tfm

RECORD_FILE = "starts.jsonl"


def record_start(workdir, task, step):
    """Appends a start that goes on from `step` to starts.jsonl in the work directory; the first host does.

    Args:
      workdir: folder of the run.
      task: has `identity()`, the hashes of its data, and a dataclass `config`.
      step: 0 for a new run.
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
        "versions": versions(),
        "data": task.identity(),
        "config": dataclasses.asdict(task.config),
    }
    with open(os.path.join(workdir, RECORD_FILE), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def versions():
    """{name: version} of Python and of every installed package."""
    found = {}
    for package in importlib.metadata.distributions():
        found.setdefault(package.name, package.version)  # of two, Python imports the first
    return {"python": platform.python_version()} | dict(sorted(found.items()))


def code_state(root):
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
