"""The Markdown files of the repository, the links in them, and the modules that build the site."""

import importlib.util
import pathlib
import re
import sys
import types
from unittest import mock

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
# The parts are the path and the symbol: `../tfm/masks.py#causal_mask`.
FILE_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#([^)\s]*))?\)")


def documents() -> list[pathlib.Path]:
    """Returns all Markdown files for readers."""
    pages = [path for folder in (DOCS, DOCS / "guide") for path in sorted(folder.glob("*.md"))]
    systems = sorted((ROOT / "tfm" / "systems").glob("*/README.md"))
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *pages, *systems]


def load_docs_module(name: str) -> types.ModuleType:
    """Imports docs/`name`.py as MkDocs does, with its folder on the module path."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [str(DOCS), *sys.path]):
        spec.loader.exec_module(module)
    return module
