"""Tests that the package can be imported from a clone, from an sdist and from a wheel."""

import os
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm import errors
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns a folder with the files of a wheel that is built from an sdist of this clone."""
    folder = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    clone = folder / "clone"
    for name in filter(None, files.decode().split("\0")):
        if name.split("/")[0] in ("tfm", "configs", "pyproject.toml", "README.md", "LICENSE"):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (clone / name).symlink_to((ROOT / name).readlink())
            else:
                (clone / name).write_bytes((ROOT / name).read_bytes())
    sdist = build("build_sdist", clone, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    wheel = build("build_wheel", source, folder / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_wheel_of_an_sdist_contains_configs_and_page(installed, tmp_path):
    printed = run_python(PRINT_FILES, tmp_path, PYTHONPATH=str(installed))
    assert printed.split() == [str(installed / "tfm" / "__init__.py"), *shipped_configs()]
    pages = ROOT / "tfm" / "visualize" / "page"
    assert {path.name for path in (installed / "tfm" / "visualize" / "page").iterdir()} == {
        path.name for path in pages.iterdir()
    }


@pytest.mark.parametrize(
    "extra", ["zstd", "datasets", "ctranslate2", "tokenizers", "tracking", "digits", "rouge", "tags"]
)
def test_message_of_a_wheel_names_the_packages_of_a_missing_extra(extra, installed, tmp_path):
    """A user of a wheel has no checkout in which pip could install the extra."""
    code = f"from tfm.errors import install_extra; print(install_extra({extra!r}))"
    command, packages = run_python(code, tmp_path, PYTHONPATH=str(installed)).split(" install ")
    assert command == "run pip"
    expected = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    assert set(map(Requirement, shlex.split(packages))) == {
        Requirement(line.partition(";")[0]) for line in expected
    }


def test_message_without_metadata_names_the_extra(tmp_path, monkeypatch):
    """Somebody may copy the folder of the package alone."""
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "tfm" / "errors.py"))
    monkeypatch.setattr(errors, "DISTRIBUTION", "no-such-distribution")
    assert "extra digits in pyproject.toml" in errors.install_extra("digits")
