"""Tests that each page of docs/guide runs and contains its true output and figures."""

import re

import pytest

from tests.support import pages
from tests.support.pages import BLOCK, GUIDE, find_formulas, guide_pages, run_page, update_page

FIGURE = re.compile(r"!\[[^]]+\]\((figures/\w+\.png)\)")
SOLUTION = re.compile(
    r'<details markdown="1"><summary>Solution</summary>\n\n(.*?)\n\n</details>', re.DOTALL
)  # without the attribute, the site would show the Markdown as it is


@pytest.mark.long
@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_code_of_a_page_prints_the_output_of_the_page(page, tmp_path):
    """`python -m tests.support.pages` writes the output."""
    blocks = run_page(page, tmp_path)
    assert blocks
    for code, expected, printed in blocks:
        assert printed == expected, code
    figures = FIGURE.findall(page.read_text(encoding="utf-8"))
    assert sorted(figures) == sorted(f"figures/{path.name}" for path in (tmp_path / "figures").iterdir())
    for figure in figures:
        assert (GUIDE / figure).stat().st_size < 60_000, figure


def test_index_lists_all_pages_in_order():
    linked = re.findall(r"\]\((\d\w+\.md)\)", (GUIDE / "README.md").read_text(encoding="utf-8"))
    assert linked == [page.name for page in guide_pages()]
    for page, following in zip(guide_pages(), linked[1:], strict=False):
        assert f"({following})" in page.read_text(encoding="utf-8"), f"{page.name} leads to the next page"


def test_every_figure_is_used():
    shown = {name for page in guide_pages() for name in FIGURE.findall(page.read_text(encoding="utf-8"))}
    assert shown == {f"figures/{path.name}" for path in (GUIDE / "figures").iterdir()}


@pytest.mark.long
def test_update_page_writes_the_output_into_the_page(tmp_path):
    text = "A\n\n```python\nx = 2\n```\n\n```python\nprint(x)\n```\n\n```text\n{}\n```\n\nB\n"
    page = tmp_path / "page.md"
    page.write_text(text.format(1))
    update_page(page)
    assert page.read_text() == text.format(2)
    assert [printed for _, _, printed in pages.run_page(page, tmp_path)] == ["", "2\n"]


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_page_ends_with_two_exercises_whose_solutions_print_their_results(page):
    last_section = page.read_text(encoding="utf-8").rpartition("\n## ")[2]
    assert last_section.startswith("Exercises\n")
    assert re.findall(r"^\*\*(\d)\.\*\* ", last_section, re.MULTILINE) == ["1", "2"]
    solutions = SOLUTION.findall(last_section)
    assert len(solutions) == 2
    for solution in solutions:
        ((_, output),) = BLOCK.findall(solution)
        assert output


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_formulas_survive_the_markdown_of_github(page):
    """GitHub reads a backslash before punctuation as Markdown, for example the line break of LaTeX."""
    formulas = find_formulas(page.read_text(encoding="utf-8"))
    assert formulas
    for formula in formulas:
        assert not re.search(r"\\[^a-zA-Z]|[<>*~]", formula), formula
