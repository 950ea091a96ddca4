"""Tests that the package can be imported from a clone, from an sdist and from a wheel."""

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.commands.config_files import shipped_configs

pytestmark = pytest.mark.long

PRINT_FILES = """
import tfm
from tfm.commands.config_files import shipped_configs
from tfm.configs import quickstart
from tfm.visualize import page
print(tfm.__file__, *shipped_configs())
"""


def run_python(code, folder, **environment):
    """Returns the output of a Python process in a folder."""
    command = [sys.executable, "-c", code]
    process = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def build(function, source, target):
    """Calls a function of setuptools' build backend. Returns the path of the file that it builds."""
    target.mkdir()
    code = f"from setuptools import build_meta; print(build_meta.{function}({str(target)!r}))"
    return target / run_python(code, source).splitlines()[-1]


def test_folder_with_the_name_of_the_package_does_not_hide_a_clone(tmp_path):
    """Python looks into the current folder first, where the clone itself is often called tfm."""
    (tmp_path / "tfm").symlink_to(ROOT)
    printed = run_python(PRINT_FILES, tmp_path)
    assert printed.split() == [str(ROOT / "tfm" / "__init__.py"), *shipped_configs()]


def test_wheel_of_an_sdist_contains_configs_and_page(tmp_path):
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    clone = tmp_path / "clone"
    for name in filter(None, files.decode().split("\0")):
        if name.split("/")[0] in ("tfm", "configs", "pyproject.toml", "README.md", "LICENSE"):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (clone / name).symlink_to((ROOT / name).readlink())
            else:
                (clone / name).write_bytes((ROOT / name).read_bytes())
    sdist = build("build_sdist", clone, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    wheel = build("build_wheel", source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    installed = tmp_path / "installed" / "tfm"
    printed = run_python(PRINT_FILES, tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert printed.split() == [str(installed / "__init__.py"), *shipped_configs()]
    pages = ROOT / "tfm" / "visualize" / "page"
    assert {path.name for path in (installed / "visualize" / "page").iterdir()} == {
        path.name for path in pages.iterdir()
    }
