"""Functions that run the scripts of clusters/ with replacements for the programs of a cluster."""

import json
import os
import signal
import subprocess
import sys
import textwrap

from tests.support.paths import ROOT
from tests.support.processes import finish
from tfm.commands.command import parse
from tfm.commands.options import Train

CLUSTERS = ROOT / "clusters"
SAVED_AT_SIGTERM = 128 + signal.SIGTERM
RECORD = """
    import json, sys
    with open("calls", "a") as file:
        print(json.dumps(sys.argv[1:]), file=file)
"""


def install(folder, name, code):
    """Writes a Python program that precedes programs of the same name on the path of `start`."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    path.chmod(0o755)


def start(script, folder, *arguments, **variables):
    """Starts a script in a folder, with the programs of `install` first on its path."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PATH": path} | variables
    command = ["bash", str(CLUSTERS / script), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def run(*arguments, **variables):
    """Runs a script and returns its exit code and standard error."""
    process = start(*arguments, **variables)
    _, errors = finish(process)
    return process.returncode, errors


def calls_in(folder):
    """Returns the arguments of each recorded call of a program."""
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def parse_train(arguments):
    """Returns the options of the arguments of `tfm train`, after checking its config."""
    return parse(Train, arguments)
