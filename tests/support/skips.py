"""The skips that are accepted where the environment variable CI is set. Any other skip fails the session.

A test that is always skipped is no test. A package that a test needs belongs in the extra dev of
pyproject.toml, and a test that only some machines can run is listed here with the reason.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

CONTRACT = "a case of a contract lacks the part that the test needs, and other cases have it"
# {part of the reason of a skip: why the skip is accepted}
ALLOWED = {
    "got empty parameter set for (variant)": CONTRACT,
    "the config has no ": CONTRACT,
    "the case differs from the first case at most in how its layers are compiled": CONTRACT,
    "the model depends on the other sentences of its batch": CONTRACT,
    "the model has no attention to the source": CONTRACT,
    "the updates of the task oppose each other": CONTRACT,
    "the task shows no samples": CONTRACT,
    "the task evaluates no ensembles": CONTRACT,
    "models of a few steps have equal reports": CONTRACT,
    "the task has no examples": CONTRACT,
    "the task has no plan": CONTRACT,
    "the task has no fingerprints of splits": CONTRACT,
    "the task observes no single texts of its training data": CONTRACT,
    "the field selects the class of its section": CONTRACT,
    "the command reads no run": CONTRACT,
    "The search runs its own loop.": CONTRACT,
    "the files of this reader cannot be compressed": CONTRACT,
    "the reader has no option that changes its rows": CONTRACT,
    "character tokenizers do not split texts into words": CONTRACT,
    "cuDNN's kernel computes in bfloat16": CONTRACT,
    "needs 8 devices": "make test-all runs the tests of devices in a process of its own",
    "the package torch is not installed": "2 GB with its libraries; the job peers of CI installs it",
    "the package transformers is not installed": "needs torch; the job peers of CI installs it",
    "needs libtpu": "a TPU compiler of 300 MB; the extra tpu installs it",
    "TFM_TEST_DATA": "corpora that may not be distributed with the project",
    "no Chromium": "a browser is no Python package",
    "shellcheck is not installed": "not a Python package",
    "look.txt was written with another version": "another version of matplotlib draws other pixels",
    "changes the user": "needs the rights of root",
    "needs unshare and unprivileged user namespaces": "some systems forbid them",
    "needs glibc": "other systems have another C library",
    "the system has no /dev/full": "only Linux has it",
    "the system has no /proc/self/mem": "only Linux has it",
}


def find_unexpected(reports: Iterable[Any]) -> list[str]:
    """Returns "place: reason" of each skip that `ALLOWED` does not list.

    Args:
      reports: pytest's reports of skipped tests and of skipped files.
    """
    skips = ((report.nodeid, str(report.longrepr[2])) for report in reports)
    return sorted(
        f"{place}: {reason}" for place, reason in skips if not any(part in reason for part in ALLOWED)
    )


def pytest_sessionfinish(session):
    """Fails a session with unexpected skips where CI is set, so that no test is skipped for ever."""
    if session.exitstatus == pytest.ExitCode.OK and list_unexpected_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Lists the skips that fail the session."""
    skips = list_unexpected_skips(config)
    if skips:
        terminalreporter.section("unexpected skips, see tests/support/skips.py")
        terminalreporter.write_line("\n".join(skips))


def list_unexpected_skips(config: pytest.Config) -> list[str]:
    """Returns the unexpected skips of all workers, or none where CI is not set."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or hasattr(config, "workerinput"):
        return []
    return find_unexpected(reporter.stats.get("skipped", []))
