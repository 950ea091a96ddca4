"""Functions that run the Python blocks of a page of the docs and return their output.

A block ```python that prints is followed by a block ```text. The blocks of a page share their names.
"""

import contextlib
import io
import pathlib
import re
from typing import Any

from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "guide"
FENCE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$\n(.*?)\n\$\$|\$([^$\n]+)\$", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def guide_pages() -> list[pathlib.Path]:
    """Returns the pages of the guide that contain code, in order."""
    pages = (path for path in GUIDE.glob("*.md") if path.name != "README.md")
    return sorted(pages, key=lambda path: int(path.name.partition("_")[0]))


def pages_with_output() -> list[pathlib.Path]:
    """Returns the pages whose blocks run, and whose output is checked: the guide, and others below docs/."""
    docs = ROOT / "docs"
    return [*guide_pages(), docs / "from_pytorch.md", *sorted((docs / "reference").glob("*.md"))]


def find_formulas(text: str) -> list[str]:
    """Returns the formulas of a page in LaTeX: $$ on lines of their own around a block, $ within a line."""
    return [block or inline for block, inline in FORMULA.findall(FENCE.sub("", text))]


def run_block(code: str, page: str, names: dict[str, Any]) -> str:
    """Runs a block in the namespace `names` and returns its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), names)
    return printed.getvalue()


def run_page(path: pathlib.Path, folder: pathlib.Path) -> list[tuple[str, str, str]]:
    """Returns (code, expected output, output) of each block. Figures are written below the folder."""
    names: dict[str, Any] = {}
    (folder / "figures").mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return [
            (code, expected, run_block(code, path.name, names))
            for code, expected in BLOCK.findall(path.read_text(encoding="utf-8"))
        ]
