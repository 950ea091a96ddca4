"""Tests that the pages of docs/guide, and others with output, run and show their true output and figures."""

import itertools
import re

import pytest

from tests.support.pages import BLOCK, GUIDE, find_formulas, guide_pages, pages_with_output, run_page
from tools import update_guide

FIGURE = re.compile(r"!\[[^]]+\]\((figures/\w+\.png)\)")
MAX_FIGURE_BYTES = 80_000
FOLDED = re.compile(
    r'<details markdown="1"><summary>(Hint|Solution)</summary>\n\n(.*?)\n\n</details>', re.DOTALL
)  # without the attribute, the site would show the Markdown as it is


def find_figures(page):
    """Returns the figures of a page, such as "figures/name.png"."""
    return FIGURE.findall(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=pages_with_output(), ids=lambda page: page.stem)
def page_run(request, tmp_path_factory):
    """Runs the code of a page. Returns (page, blocks as in `run_page`, folder of the figures)."""
    folder = tmp_path_factory.mktemp("page")
    return request.param, run_page(request.param, folder), folder / "figures"


@pytest.mark.long
def test_code_of_a_page_prints_the_output_of_the_page(page_run):
    """`python -m tools.update_guide` writes the output."""
    _, blocks, _ = page_run
    assert blocks
    for code, expected, printed in blocks:
        assert printed == expected, code


@pytest.mark.long
def test_code_of_a_page_draws_the_figures_of_the_page(page_run):
    page, _, figures = page_run
    assert sorted(find_figures(page)) == sorted(f"figures/{path.name}" for path in figures.iterdir())


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_figures_are_small_files(page):
    sizes = {figure: (GUIDE / figure).stat().st_size for figure in find_figures(page)}
    assert {figure: size for figure, size in sizes.items() if size >= MAX_FIGURE_BYTES} == {}


def test_index_lists_all_pages_in_order():
    linked = re.findall(r"\]\((\d\w+\.md)\)", (GUIDE / "README.md").read_text(encoding="utf-8"))
    assert linked == [page.name for page in guide_pages()]


def test_each_page_leads_to_the_next_page():
    for page, following in itertools.pairwise(guide_pages()):
        assert f"({following.name})" in page.read_text(encoding="utf-8"), page


def test_every_figure_is_used():
    shown = {name for page in guide_pages() for name in find_figures(page)}
    assert shown == {f"figures/{path.name}" for path in (GUIDE / "figures").iterdir()}


@pytest.mark.long
def test_update_page_writes_the_output_into_the_page(tmp_path):
    text = "A\n\n```python\nx = 2\n```\n\n```python\nprint(x)\n```\n\n```text\n{}\n```\n\nB\n"
    page = tmp_path / "page.md"
    page.write_text(text.format(1))
    update_guide.update_page(page)
    assert page.read_text() == text.format(2)
    assert [printed for _, _, printed in run_page(page, tmp_path)] == ["", "2\n"]


def find_exercises(page):
    """Returns the text of the last section of a page."""
    return page.read_text(encoding="utf-8").rpartition("\n## ")[2]


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_page_ends_with_two_exercises(page):
    section = find_exercises(page)
    assert section.startswith("Exercises\n")
    assert re.findall(r"^\*\*(\d)\.\*\* ", section, re.MULTILINE) == ["1", "2"]


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_solutions_of_both_exercises_print_their_results(page):
    solutions = [text for kind, text in FOLDED.findall(find_exercises(page)) if kind == "Solution"]
    assert len(solutions) == 2
    for solution in solutions:
        ((_, output),) = BLOCK.findall(solution)
        assert output


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_a_hint_without_code_precedes_each_solution(page):
    folded = FOLDED.findall(find_exercises(page))
    assert [kind for kind, _ in folded] == ["Hint", "Solution"] * 2
    assert not [text for kind, text in folded if kind == "Hint" and BLOCK.search(text)]


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.stem)
def test_formulas_survive_the_markdown_of_github(page):
    """GitHub reads a backslash before punctuation as Markdown, for example the line break of LaTeX."""
    formulas = find_formulas(page.read_text(encoding="utf-8"))
    assert formulas
    for formula in formulas:
        assert not re.search(r"\\[^a-zA-Z]|[<>*~]", formula), formula
