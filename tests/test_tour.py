"""Tests of the reading list with which docs/tour.md begins."""

import ast
import re

import pytest

from tests.support.documents import DOCS

TOUR = (DOCS / "tour.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"\]\((\.\./tfm/[\w/]+\.py)#?(\w*)\),\s(\d+) lines")
TOTAL = re.compile(r"These ([\d,]+) lines")


def count_lines(path, symbol):
    """Returns the number of lines of a file, or of a function or class at its top level."""
    text = (DOCS / path).read_text(encoding="utf-8")
    if not symbol:
        return len(text.splitlines())
    (node,) = (node for node in ast.parse(text).body if getattr(node, "name", None) == symbol)
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize(("path", "symbol", "lines"), ENTRY.findall(TOUR))
def test_entry_of_the_reading_list_is_as_long_as_it_says(path, symbol, lines):
    assert int(lines) == pytest.approx(count_lines(path, symbol), rel=0.1)


def test_total_of_the_reading_list_is_the_sum_of_its_entries():
    (total,) = TOTAL.findall(TOUR)
    assert sum(int(lines) for _, _, lines in ENTRY.findall(TOUR)) == int(total.replace(",", ""))


def test_every_entry_of_the_reading_list_has_a_count():
    items = TOUR.partition("## Reading list")[2].partition("\n## ")[0]
    assert len(ENTRY.findall(items)) == items.count("../tfm/")
