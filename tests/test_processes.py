"""Tests of the functions that wait for processes of tests."""

import subprocess
import sys

import pytest

from tests.support.processes import finish, wait_until

pytestmark = pytest.mark.long
LARGER_THAN_A_PIPE = 1 << 20  # bytes
PROGRAM = f"""
import pathlib, sys
sys.stderr.write({LARGER_THAN_A_PIPE} * "a")
pathlib.Path(sys.argv[1]).touch()
"""


def start(*arguments):
    """Starts Python with a pipe for its errors."""
    return subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)


def test_process_that_writes_more_than_a_pipe_holds_does_not_stop(tmp_path):
    process = start("-c", PROGRAM, str(tmp_path / "done"))
    wait_until((tmp_path / "done").exists, "the file", process, seconds=60)
    assert finish(process)[1] == LARGER_THAN_A_PIPE * "a"


def test_waiting_for_a_process_that_has_ended_fails_with_its_errors():
    process = start("-c", "raise SystemExit('the reason')")
    with pytest.raises(AssertionError, match="code 1, waited for a miracle; stderr: 'the reason"):
        wait_until(lambda: False, "a miracle", process, seconds=60)
