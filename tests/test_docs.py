"""What the documents point to is there."""

import importlib.util
import re
import shlex

import pytest

from tests.support.doc_links import FILE_LINK, LINE_LINK, documents, find_line
from tests.support.paths import ROOT
from tfm.commands import cli, data, train
from tfm.commands.plot import KINDS
from tfm.fields import leaves
from tfm.tasks.translation.task import Config


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist(document):
    for path in FILE_LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / path).exists(), f"{document.name} links to {path}"


@pytest.mark.parametrize("document", ["tour.md", "paper.md"])
def test_linked_lines_begin_what_they_name(document):
    """`python -m tests.support.doc_links` sets the numbers."""
    links = LINE_LINK.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    assert len(links) > 20
    for name, path, line in links:
        found = find_line(ROOT / "docs" / path, name)
        assert found == int(line) > 0, f"{name} begins at line {found} of {path}"


def test_fields_of_the_page_about_the_paper_exist():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    known = {leaf.path for leaf in leaves(Config())}
    named = re.findall(r"`(?:--config\.)?((?:model|data|training|decoding)\.[\w.]+)", text)
    assert len(named) > 20
    assert set(named) <= known


def test_excerpts_stand_in_their_files():
    """The first line of a block names the file; each further line stands in it, in the same order."""
    text = (ROOT / "docs" / "add_a_system.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 8
    for path, block in blocks:
        rest = (ROOT / path).read_text(encoding="utf-8")
        for line in filter(str.strip, block.splitlines()):
            assert line in rest, f"{path} has no line {line!r} there"
            rest = rest[rest.index(line) + len(line) :]


def test_every_page_is_in_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(re.findall(r"[\w/]+\.md", navigation))


def test_the_reference_names_modules_that_exist():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for module in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert importlib.util.find_spec(module), f"{page.name} names {module}"


@pytest.mark.parametrize("document", ["data.md"])
def test_commands_of_a_page_are_understood(document):
    """Their flags and fields are there and take these values; nothing is run."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"tfm (train|data) (--config=.*)", text)
    assert len(found) > 7
    for command, arguments in found:
        if "WORKDIR" not in arguments and "=runs/" not in arguments.split()[0]:
            module = {"train": train, "data": data}[command]
            values, _ = cli.parse(module.__name__, shlex.split(arguments), module.define_flags)
            assert cli.read_config(values).data.train


def test_gallery_has_a_small_figure_of_every_plot():
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^]]+\]\((\S+)\)", text)
    assert len(figures) == len(KINDS) + 4  # attention as a matrix and as lines, rollout, and the page
    for figure in figures:
        assert (ROOT / "docs" / figure).stat().st_size < 60_000, figure
    for kind in KINDS.keys() - {"curves"}:
        assert f"`tfm plot {kind}" in text
