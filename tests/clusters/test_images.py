"""Tests of Dockerfile, clusters/tfm.def and clusters/requirements.py."""

import re
import subprocess
import sys

from tests.support.paths import ROOT
from tests.support.processes import LIMIT


def sources_of_dockerfile():
    """Returns the paths that the Dockerfile copies."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return {path for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for path in line.split()[:-1]}


def test_images_copy_all_files_of_the_package():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert set(re.findall(r"^!(.*)$", ignored, re.MULTILINE)) == sources_of_dockerfile()
    recipe = (ROOT / "clusters" / "tfm.def").read_text(encoding="utf-8")
    files = re.search(r"%files\n(.*?)\n\n", recipe, re.DOTALL)[1]
    pairs = [line.split() for line in files.splitlines()]
    assert {source for source, _ in pairs} == sources_of_dockerfile()
    assert all(target == f"/src/{source}" for source, target in pairs)
    assert all((ROOT / source).exists() for source in sources_of_dockerfile())


def test_dependencies_are_installed_before_the_code_is_copied():
    """Therefore, a change of the code does not install the dependencies again."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert text.index("pip install --requirement") < text.index("COPY tfm tfm")
    assert text.index("useradd") < text.index("\nUSER tfm") < text.index("ENTRYPOINT")


def requirements(*extras):
    command = [sys.executable, str(ROOT / "clusters" / "requirements.py"), *extras]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


def test_requirements_lists_the_dependencies_of_an_image():
    plain = requirements("").stdout.splitlines()
    assert [line for line in plain if re.match(r"jax[>=<]", line)]
    assert [line for line in plain if line.startswith("tensorflow-datasets")]  # of the extra train
    assert not [line for line in plain if line.startswith("jax[")]
    both = requirements("cuda,digits").stdout.splitlines()
    assert both[: len(plain)] == plain
    added = both[len(plain) :]
    assert len(added) == 2
    assert added[0].startswith("jax[cuda")
    assert added[1].startswith("scikit-learn")
    wrong = requirements("gpu")
    assert wrong.returncode != 0
    assert "got gpu" in wrong.stderr
