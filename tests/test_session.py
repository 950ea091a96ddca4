"""Tests of the hooks in conftest.py that clean the cache of compiled programs and count skips."""

import os
import subprocess
import sys
import types

import pytest

from tests import conftest
from tests.support.paths import ROOT

SKIPPED = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason={reason!r})
def test_is_skipped():
    pass
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a cache of compiled programs that is too large. Returns the path of its damaged program."""
    folder = tmp_path / "compiled"
    folder.mkdir()
    program = folder / "jit_f-cache"
    program.write_bytes(b"damaged")
    monkeypatch.setattr(conftest, "MAX_CACHE_BYTES", 3)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    return program


@pytest.fixture
def session():
    """Returns the session of a process that is not a worker."""
    return types.SimpleNamespace(config=types.SimpleNamespace())


def test_own_cache_that_is_too_large_is_emptied(program, session, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "TESTS_CACHE", tmp_path)
    conftest.pytest_sessionstart(session)
    assert not program.exists()


def test_cache_of_the_user_does_not_change(program, session, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "TESTS_CACHE", tmp_path / "tests")
    conftest.pytest_sessionstart(session)
    assert program.read_bytes() == b"damaged"


def run_skipped(folder, reason, **environment):
    """Runs a test that is skipped for a reason, in a worker. Returns the exit code and the output."""
    (folder / "test_skip.py").write_text(SKIPPED.format(reason=reason))
    (folder / "conftest.py").write_text(
        "from tests.support.skips import pytest_sessionfinish, pytest_terminal_summary\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "test_skip.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "CI"}
        | {"PYTHONPATH": str(ROOT)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("reason", "environment", "code"),
    [
        ("could not import 'pycocotools'", {"CI": "true"}, 1),
        ("could not import 'pycocotools'", {}, 0),
        ("the package torch is not installed", {"CI": "true"}, 0),
    ],
)
def test_unexpected_skips_fail_where_ci_is_set(tmp_path, reason, environment, code):
    returned, output = run_skipped(tmp_path, reason, **environment)
    assert returned == code, output
    assert ("test_skip.py::test_is_skipped: Skipped: " + reason in output) == (code == 1)
