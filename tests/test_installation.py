"""Tests that the package can be imported from a clone, from an sdist and from a wheel."""

import os
import shlex
import subprocess
import sys
import tarfile
import zipfile

import pytest
from uv import find_uv_bin

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.commands.config_files import shipped_configs
from tfm.commands.options import OPTIONS
from tfm.errors import EXIT_CODE

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
def wheel(tmp_path_factory):
    """Returns the path of a wheel that is built from an sdist of this clone."""
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
    return build("build_wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Returns a folder with the files of the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_of_an_sdist_contains_configs_and_page(installed, tmp_path):
    printed = run_python(PRINT_FILES, tmp_path, PYTHONPATH=str(installed))
    assert printed.split() == [str(installed / "tfm" / "__init__.py"), *shipped_configs()]
    pages = ROOT / "tfm" / "visualize" / "page"
    assert {path.name for path in (installed / "tfm" / "visualize" / "page").iterdir()} == {
        path.name for path in pages.iterdir()
    }


@pytest.fixture(scope="module")
def parts(wheel, tmp_path_factory):
    """Returns the bin folder of an environment with the wheel and its dependencies, without any extra."""
    folder = tmp_path_factory.mktemp("parts") / "environment"
    uv = find_uv_bin()
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(folder), str(wheel)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        assert result.returncode == 0, result.stderr
    return folder / "bin"


def run_alone(folder, *command):
    """Runs a command in a folder from which it does not see this clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
    )


def test_parts_work_without_the_extra_train(parts, tmp_path):
    result = run_alone(tmp_path, parts / "python", ROOT / "tests" / "support" / "use_parts.py")
    assert result.returncode == 0, result.stderr
    assert "use_interpretation" in result.stdout.split()


def test_environment_of_the_parts_has_no_package_of_commands_and_data(parts, tmp_path):
    code = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    names = {*run_alone(tmp_path, parts / "python", "-c", code).stdout.split()}
    assert {"tfm-jax", "jax", "flax", "optax", "jaxtyping"} <= names
    assert not names & {"matplotlib", "ml_collections", "pyarrow", "sentencepiece", "tensorflow-datasets"}
    assert len(names) <= 40


@pytest.mark.parametrize("name", OPTIONS)
def test_command_without_the_extra_train_ends_in_one_line(name, parts, tmp_path):
    result = run_alone(tmp_path, parts / "tfm", name, "--help")
    assert (result.returncode, result.stdout) == (EXIT_CODE, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: tfm {name} needs the extra train, ")
    assert line.endswith(": run pip install 'tfm-jax[train]'.")


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "tfm", "train", "--config=quickstart", "--workdir=run"],
        [ROOT / "train.py", "--config=quickstart", "--workdir=run"],
        [ROOT / "eval.py", "--workdir=run"],
    ],
)
def test_command_without_the_extra_train_creates_no_file(command, parts, tmp_path):
    result = run_alone(tmp_path, parts / "python", *command)
    assert result.returncode == EXIT_CODE
    (line,) = result.stderr.splitlines()
    assert "needs the extra train, " in line
    assert not [*tmp_path.iterdir()]


def test_list_of_the_commands_needs_no_extra(parts, tmp_path):
    result = run_alone(tmp_path, parts / "tfm", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"  {name} " in result.stdout for name in OPTIONS)


def test_advice_for_a_wheel_installs_the_packages_of_the_extra(parts, tmp_path):
    """tfm-jax need not be on a package index, because pip reads the metadata of the installed wheel."""
    code = "from tfm.errors import install_extra; print(install_extra('rouge'))"
    advice = run_alone(tmp_path, parts / "python", "-c", code).stdout.removeprefix("run pip ")
    pip = [sys.executable, "-m", "pip", "--python", parts / "python"]
    result = run_alone(tmp_path, *pip, *shlex.split(advice), "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "rouge" in result.stdout.splitlines()[-1]
