"""Tests that the files, symbols, fields, commands and tests named in the documents exist."""

import contextlib
import importlib.util
import re
import shlex

import pytest

from tests.support.documents import FILE_LINK, documents, load_docs_module
from tests.support.pages import BLOCK, run_block
from tests.support.paths import ROOT
from tfm.commands.command import parse
from tfm.commands.options import OPTIONS
from tfm.config import walk_fields
from tfm.family import SYSTEMS
from tfm.tasks.translation.task import Config


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_and_symbols_exist(document):
    symbol_lines = load_docs_module("symbols").symbol_lines
    for path, anchor in FILE_LINK.findall(document.read_text(encoding="utf-8")):
        target = document.parent / path
        assert target.exists(), f"{document.name} links to {path}"
        if anchor and target.suffix == ".py":
            symbols = symbol_lines(target.read_text(encoding="utf-8"))
            assert anchor in symbols, f"{document.name} links to {anchor}, which is not in {path}"


@pytest.mark.parametrize("document", ["tour.md", "paper.md"])
def test_links_to_code_lead_to_symbols(document):
    links = FILE_LINK.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    assert sum(path.endswith(".py") and bool(anchor) for path, anchor in links) > 20


def test_boxes_of_the_figure_lead_to_symbols():
    symbol_lines = load_docs_module("symbols").symbol_lines
    figure = ROOT / "docs" / "figures" / "transformer.svg"
    links = re.findall(r'href="([^"#]+)#([^"]+)"', figure.read_text(encoding="utf-8"))
    assert len(links) > 15
    for path, symbol in links:
        assert symbol in symbol_lines((figure.parent / path).read_text(encoding="utf-8")), symbol


def test_symbols_are_found_by_their_qualified_names():
    text = "import a\n\n\n@a.b\ndef f():\n    pass\n\n\nclass C:\n    async def f(self):\n        pass\n"
    assert load_docs_module("symbols").symbol_lines(text) == {"f": 5, "C": 9, "C.f": 10}


def test_fields_of_the_page_about_the_paper_exist():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    known = {leaf.path for leaf in walk_fields(Config())}
    named = re.findall(r"`(?:--config\.)?((?:model|data|training|decoding)\.[\w.]+)", text)
    assert len(named) > 20
    assert set(named) <= known


def read_guarantees():
    """Returns the items of the lists in docs/reliability.md."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    return re.findall(r"^- \*\*.*(?:\n  .*)*", text, re.MULTILINE)


def list_tests(path):
    """Returns the names of the test functions and test classes in a file below tests/."""
    symbols = load_docs_module("symbols").symbol_lines((ROOT / "tests" / path).read_text(encoding="utf-8"))
    names = {symbol.rpartition(".")[2] for symbol in symbols}
    return {name for name in names if name.startswith(("test_", "Test"))}


@pytest.mark.parametrize("guarantee", read_guarantees(), ids=lambda item: item.split("**")[1])
def test_each_guarantee_names_files_that_contain_tests(guarantee):
    """The page names files. Whether their tests cover the guarantee is not checked."""
    paths = re.findall(r"`(\w[\w/]*\.py)(?:::\w+)?`", guarantee)
    assert paths
    assert all(list_tests(path) for path in paths)


def test_tests_that_a_guarantee_names_exist():
    named = re.findall(r"`(\w[\w/]*\.py)::(\w+)`", "\n".join(read_guarantees()))
    assert named
    assert {(path, test) for path, test in named if test not in list_tests(path)} == set()


def run_only_block(document):
    """Runs the only Python block of a page in docs/, and returns the names that it defines."""
    (block,) = BLOCK.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    names = {}
    run_block(block[0], f"docs/{document}", names)
    return names


def test_config_file_of_the_page_about_training_runs():
    assert run_only_block("train.md")["get_config"]().model.d_model == 256


def test_variants_of_the_page_about_evaluation_run():
    assert len(list(run_only_block("evaluate.md")["get_variants"]())) == 6


def test_every_page_is_in_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {f"family/{system.name}.md" for system in SYSTEMS if not system.core_page}
    assert pages <= set(re.findall(r"[\w/]+\.md", navigation))


def test_lists_of_flags_belong_to_commands():
    """The site shows them as tables, see `docs/site_hooks.py`."""
    pages = [path.read_text(encoding="utf-8") for path in documents()]
    line = re.compile(r"^`tfm (.*) --help` lists the flags\.$", re.MULTILINE)
    named = [name for page in pages for name in line.findall(page)]
    assert {"train", "evaluate", "translate", "visualize"} <= set(named) <= OPTIONS.keys()


def test_modules_of_the_reference_exist():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        modules = re.findall(r"^- `(\S+?)(?:\.\*)?`$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert modules, page.name
        for module in modules:
            assert importlib.util.find_spec(module), f"{page.name} names {module}"


@pytest.mark.parametrize(("document", "minimum"), [("data.md", 9), ("fine_tuning.md", 1)])
def test_commands_of_a_page_are_valid(document, minimum):
    """Flags and fields exist and accept the values. No command runs.

    Commands that read the config of a run are left out, because the run does not exist.
    """
    text = (ROOT / "docs" / document).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^tfm (train|data) (--config=(?!runs/).*)", text, re.MULTILINE)
    assert len(commands) >= minimum
    for command, arguments in commands:
        assert parse(OPTIONS[command], shlex.split(arguments)).config.data.train


def test_example_of_fine_tuning_writes_its_corpus(tmp_path):
    (block,) = BLOCK.findall((ROOT / "docs" / "fine_tuning.md").read_text(encoding="utf-8"))
    with contextlib.chdir(tmp_path):
        run_block(block[0], "docs/fine_tuning.md", {})
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in tmp_path.rglob("*.de")}
    assert lines == {
        "train.de": 200,
        "validation.de": 50,
        "test.de": 250,
        "known.de": 2000,
        "known_test.de": 1000,
    }


def test_page_about_figures_has_small_figures():
    text = (ROOT / "docs" / "visualize.md").read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^]]+\]\(([^)\s]+)\)", text)
    assert len(figures) >= 4  # attention as a matrix and as lines, rollout, and the page
    for figure in figures:
        is_animated = figure.endswith(".webp")
        assert (ROOT / "docs" / figure).stat().st_size < (400_000 if is_animated else 60_000), figure
