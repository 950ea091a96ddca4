"""What the documents point to is there."""

import pytest

from tests.helpers.doc_links import FILE_LINK, LINE_LINK, documents, find_line
from tests.helpers.paths import ROOT


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_linked_files_exist(document):
    for path in FILE_LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / path).exists(), f"{document.name} links to {path}"


def test_linked_lines_begin_what_they_name():
    """`python -m tests.helpers.doc_links` sets the numbers."""
    links = LINE_LINK.findall((ROOT / "docs" / "tour.md").read_text(encoding="utf-8"))
    assert len(links) > 20
    for name, path, line in links:
        found = find_line(ROOT / "docs" / path, name)
        assert found == int(line) > 0, f"{name} begins at line {found} of {path}"
