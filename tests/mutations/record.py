"""Records which lines of tfm/ each test executes, so that `tests.mutations.run` can choose tests.

    python -m tests.mutations.record [TEST ...]

Runs the given tests, or all tests, and writes the folder .lines.

The module is also the plugin of pytest that this command uses. A fixture that several tests share is recorded
by itself as "fixture FOLDER::NAME", because only the first of its tests executes it here, but any of them
would execute it alone. Lines that processes execute are recorded for the test that started them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import coverage
import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / ".lines"
MEASURE = (
    "coverage",
    "run",
    "--rcfile=tests/mutations/lines.ini",
    "-m",
    "pytest",
    "-p",
    "tests.mutations.record",
)
DEVICE_TESTS = "tests/devices"
DEVICE_FLAGS = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

_names, _seconds = [""], [0.0]  # open tests and fixtures, and the time of the fixtures inside of each


def _record(name: str, fixtures: list[str]) -> Generator[None, Any, Any]:
    """Runs a test or a fixture, and writes its time without the time of shared fixtures."""
    _names.append(name)
    _seconds.append(0.0)
    began = _processor_time()
    _switch()
    try:
        return (yield)
    finally:
        _names.pop()
        _switch()
        seconds = _processor_time() - began
        row = {"name": name, "seconds": round(seconds - _seconds.pop(), 3), "fixtures": fixtures}
        _seconds[-1] += seconds
        path = os.path.join(os.environ["COVERAGE_FOLDER"], f"times-{os.getpid()}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _processor_time() -> float:
    """Returns the seconds of this process and of the processes that it waited for, whatever else runs."""
    return sum(os.times()[:4])


def _switch() -> None:
    """Attributes the lines of this process, and of the processes that it starts, to the last open name."""
    measurement: Any = coverage.Coverage.current()
    measurement.switch_context(_names[-1])
    measurement.config.context = _names[-1]
    os.environ["COVERAGE_PROCESS_CONFIG"] = measurement.config.serialize()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    return (yield from _record(item.nodeid, item.fixturenames))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _record(f"fixture {fixturedef.baseid}::{fixturedef.argname}", []))


def main(tests: list[str]) -> int:
    """Runs tests, and returns the exit code of the first call of pytest that fails, or 0."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    environment = {**os.environ, "COVERAGE_FOLDER": str(FOLDER), "PYTHONPATH": str(ROOT)}
    options = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    calls = [([*options, *tests], environment)]
    if not tests:
        calls[0][0].append(f"--ignore={DEVICE_TESTS}")
        calls.append(([*options, DEVICE_TESTS], {**environment, **DEVICE_FLAGS}))
    codes = [
        subprocess.run([sys.executable, "-m", *MEASURE, *arguments], cwd=ROOT, env=variables).returncode
        for arguments, variables in calls
    ]
    combine = [sys.executable, "-m", "coverage", "combine", "--quiet", "--rcfile=tests/mutations/lines.ini"]
    subprocess.run(combine, cwd=ROOT, env=environment, check=True)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
