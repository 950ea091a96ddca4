"""Tests of all scripts of clusters/ with shellcheck."""

import shutil
import subprocess

import pytest

from tests.support.clusters import CLUSTERS
from tests.support.processes import LIMIT

SCRIPTS = sorted(CLUSTERS.glob("*.sh"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stdout) == (0, "")
