"""Links of the docs to lines of the code: `[`name`](../tfm/file.py#L12)`.

`python -m tests.support.doc_links` sets their line numbers; `tests/test_docs.py` checks them.
"""

import pathlib
import re

from tests.support.paths import ROOT

LINE_LINK = re.compile(r"\[`(\w+)`\]\((\.\./[\w/.]+)#L(\d+)\)")
FILE_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[\w-]*)?\)")


def documents() -> list[pathlib.Path]:
    """All Markdown files for readers."""
    folders = (ROOT / "docs", ROOT / "docs" / "guide")
    pages = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *pages]


def find_line(path: pathlib.Path, name: str) -> int:
    """The number of the line that begins the function or class `name`; 0 for none."""
    start = re.compile(rf"\s*(def|class) {name}\b")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((number for number, line in enumerate(lines, 1) if start.match(line)), 0)


def set_line_numbers(document: pathlib.Path) -> None:
    """Writes the lines of today into the links of a document."""

    def link(match):
        name, path, _ = match.groups()
        return f"[`{name}`]({path}#L{find_line(document.parent / path, name)})"

    text = document.read_text(encoding="utf-8")
    document.write_text(LINE_LINK.sub(link, text), encoding="utf-8")


if __name__ == "__main__":
    for each in documents():
        set_line_numbers(each)
