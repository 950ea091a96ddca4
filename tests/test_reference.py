"""Tests that docs/reference has all public names and examples. tests/test_guide.py runs the examples."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

from tests.support.pages import BLOCK
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# What docs/stability.md calls stable.
PACKAGES = (
    "tfm",
    "tfm.layers",
    "tfm.models",
    "tfm.search",
    "tfm.interpret",
    "tfm.config",
    "tfm.export",
    "tfm.sweep",
)


def listed_modules():
    """Returns the names of the modules that the pages describe, with the modules of `package.*`."""
    entries = re.findall(r"^- `(tfm[\w.]*?)(\.\*)?`$", "\n".join(map(read, PAGES)), re.MULTILINE)
    names = set()
    for name, star in entries:
        path = importlib.import_module(name).__path__ if star else ()
        names |= {f"{name}.{module.name}" for module in pkgutil.iter_modules(path)} if star else {name}
    return names


def read(page):
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_exported_names_are_described(package):
    module = importlib.import_module(package)
    exported = [getattr(module, name) for name in module.__all__]
    defined_in = {
        value.__module__ for value in exported if inspect.isfunction(value) or inspect.isclass(value)
    }
    assert defined_in
    assert defined_in <= listed_modules()
    assert package in listed_modules()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_its_reader_and_shows_examples_with_output(page):
    text = read(page)
    assert re.match(r"# .+\n\nYou ", text)
    blocks = BLOCK.findall(text.partition("## Examples\n")[2])
    assert [output for _, output in blocks if output]


def test_thirty_names_have_an_example():
    code = [ast.parse(block) for page in PAGES for block, _ in BLOCK.findall(read(page))]
    imports = [node for tree in code for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports if node.module.startswith("tfm") for alias in node.names}
    assert len(names) >= 30
