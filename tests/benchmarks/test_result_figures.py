"""Tests that the figures of docs/results.md and the page agree with benchmarks/results.tsv."""

import re
from collections import Counter

import pytest

from benchmarks.result_figures import FIGURES, describe_seeds, draw_cpu, judge_direction, read_rows, save
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows():
    return read_rows()


def test_each_measurement_has_a_source(rows):
    assert [row for row in rows if not row.source] == []


@pytest.mark.parametrize("name", FIGURES)
def test_page_shows_the_figure(name):
    (text,) = re.findall(rf"!\[([^\]]+)\]\(figures/{name}\.svg\)", PAGE)
    assert text.endswith(".")
    assert (ROOT / "docs" / "figures" / f"{name}.svg").stat().st_size < 60_000


def test_page_counts_the_rows_of_table_3(rows):
    verdicts = Counter(judge_direction(row) for row in rows if row.chart == "paper table 3")
    assert verdicts == {"as in the paper": 11, "the other way": 1, "unclear": 7}
    for text, verdict in [
        ("change the perplexity as in the paper", "as in the paper"),
        ("change it the other way", "the other way"),
        ("unclear: the 95 % interval contains 0", "unclear"),
    ]:
        assert f"| {text} | {verdicts[verdict]} |" in PAGE


def test_bar_has_the_median(rows):
    float32, _ = draw_cpu(rows).axes
    assert [text.get_text() for text in float32.texts] == ["849", "551", "605", "584"]


def test_saved_figure_has_lighter_text_on_dark_pages(tmp_path, rows):
    path = tmp_path / "cpu.svg"
    save(draw_cpu(rows), path)
    assert path.read_text(encoding="utf-8").count("prefers-color-scheme: dark") == 1


def test_intervals_of_the_page_are_those_of_the_seeds(rows):
    """The page has the means and the intervals in neighbouring cells."""
    cells = re.sub(r"(?<=\d) %", "", PAGE)
    for line in describe_seeds(rows):
        mean, half = line.rpartition(": ")[2].split(" ± ")
        assert f"| {mean} |" in cells, line
        assert f"| ± {half} |" in cells, line
