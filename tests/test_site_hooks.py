"""Tests of the hooks of the site, which convert links, tables, figures and lists of options."""

import html
import re
import types

import pytest

from tests.support.documents import load_docs_module
from tests.support.pages import find_formulas, guide_pages
from tests.support.paths import ROOT

pytest.importorskip("mkdocs", reason="the packages of `make docs` are not installed")
pytest.importorskip("nbconvert", reason="the packages of `make docs` are not installed")
# This import also hides a warning: version 0.13 opens its font with a function that Python 3.11 deprecates.
pytest.importorskip("ziamath", reason="the packages of `make docs` are not installed")


@pytest.fixture(scope="module")
def hooks():
    return load_docs_module("site_hooks")


def render(hooks, markdown, page="index.md"):
    file = types.SimpleNamespace(src_uri=page)
    return hooks.on_page_markdown(markdown, types.SimpleNamespace(file=file, meta={}), None, None)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "[x](docs/data.md)", "[x](data.md)"),
        ("index.md", "[x](docs/train.md#devices)", "[x](train.md#devices)"),
        ("index.md", "[x](tfm/masks.py)", "[x](source/tfm/masks.py.md)"),
        ("index.md", '<a href="tfm/masks.py">x</a>', '<a href="source/tfm/masks.py.html">x</a>'),
        ("index.md", '<img src="docs/figures/a.png">', '<img src="figures/a.png">'),
        ("design.md", "[x](../README.md)", "[x](index.md)"),
        ("results.md", "[x](../benchmarks/notes/input.md)", "[x](notes/input.md)"),
        ("notes/input.md", "[x](../../docs/results.md)", "[x](../results.md)"),
        ("interpret.md", "[x](notebooks/ablate_and_patch.ipynb)", "[x](notebooks/ablate_and_patch.md)"),
        ("family.md", "[x](../tfm/systems/detr/README.md)", "[x](family/detr.md)"),
        ("family/detr.md", "[x](../vit/README.md)", "[x](vit.md)"),
        ("family/detr.md", "[x](model.py)", "[x](../source/tfm/systems/detr/model.py.md)"),
        ("family/detr.md", "![x](../../../docs/figures/a.png)", "![x](../figures/a.png)"),
        ("index.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("index.md", "[x](#results)", "[x](#results)"),
    ],
)
def test_links_between_files_become_links_between_pages(page, link, expected, hooks):
    assert render(hooks, link, page) == expected


def test_links_to_symbols_lead_to_their_lines(hooks):
    line = (ROOT / "tfm" / "masks.py").read_text(encoding="utf-8").partition("def causal_mask")[0].count(
        "\n"
    ) + 1
    link = render(hooks, "[x](../tfm/masks.py#causal_mask)", "design.md")
    assert link == f"[x](source/tfm/masks.py.md#L-{line})"


def show(hooks, content, url="train.html"):
    """Returns the metadata of a page after the hooks have seen its content in HTML."""
    page = types.SimpleNamespace(url=url, title="Train", meta={})
    hooks.on_page_content(content, page, None, None)
    return page.meta


def test_description_is_the_first_text_of_a_page_with_its_first_sentences(hooks):
    image = '<p><a href="x.html"><img src="figures/a.webp"></a></p>'
    text = '<p>A "run" is a folder. It holds everything that <code>tfm train</code> writes. It is safe.</p>'
    meta = show(hooks, f"<h1>Train</h1>{image}{text}<p>More.</p>")
    assert meta["description"] == (
        "A &quot;run&quot; is a folder. It holds everything that tfm train writes."
    )
    assert meta["picture"] == "figures/a.webp"


def test_description_of_a_page_is_short_and_never_empty(hooks):
    long = show(hooks, f"<p>{'word ' * 100}</p>")["description"]
    assert long.endswith("word ...")
    assert len(long) < 210
    assert show(hooks, "<h1>Train</h1><pre>x = 1</pre>")["description"] == "Train in the repository of tfm."


def test_picture_of_a_preview_is_a_file_of_the_site_that_is_no_drawing(hooks):
    svg, png = '<img src="../figures/family.svg">', '<img alt="x" src="../figures/a.png">'
    assert show(hooks, svg + png, "family/detr.html")["picture"] == "figures/a.png"
    assert show(hooks, svg)["picture"] is None


def test_page_for_missing_addresses_leads_to_pages_of_the_site():
    page = (ROOT / "docs" / "theme" / "404.html").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    targets = re.findall(r"'([\w/]+)\.html'", page)
    assert len(targets) > 8
    pages = [target.replace("guide/index", "guide/README") for target in targets]  # as MkDocs names it
    assert [page for page in pages if f" {page}.md\n" not in navigation] == []


def test_default_picture_of_the_previews_exists():
    template = (ROOT / "docs" / "theme" / "main.html").read_text(encoding="utf-8")
    (picture,) = re.findall(r'else "(figures/\S+)"', template)
    assert (ROOT / "docs" / picture).exists()


def test_every_note_of_a_measurement_is_listed(hooks):
    listed = re.findall(r"\]\((\w+\.md)\)", hooks.list_notes())
    assert listed == sorted(path.name for path in (ROOT / "benchmarks" / "notes").iterdir())


@pytest.mark.parametrize(("path", "is_linked"), [("README.md", True), ("build/missing.html", False)])
def test_first_page_links_to_the_page_of_a_run_if_it_was_exported(path, is_linked, hooks, monkeypatch):
    monkeypatch.setattr(hooks, "LIVE_PAGE", path)
    page = render(hooks, "# tfm\n\ntext\n\n## Quick start\n")
    assert ("(live.html)" in page.partition("## Quick start")[0]) is is_linked


def test_link_to_a_missing_symbol_fails_the_build_of_the_site(hooks):
    with pytest.raises(hooks.PluginError, match=r"tfm/masks\.py.*casual_mask"):
        render(hooks, "[x](../tfm/masks.py#casual_mask)", "design.md")


def test_figure_with_links_is_embedded_in_the_page(hooks):
    html = render(hooks, "![Figure 1](figures/transformer.svg)", "paper.md")
    assert 'href="source/tfm/layers/residual.py.html#L-' in html
    assert "![" not in html


def test_boxes_of_the_lineage_lead_to_the_pages_of_the_systems(hooks):
    html = render(hooks, "![The lineage](figures/family.svg)", "family.md")
    assert 'href="family/word2vec.html"' in html
    assert 'href="paper.html"' in html


def test_picture_of_the_explorer_is_replaced_by_the_explorer(hooks):
    html = render(hooks, "[![Attention](figures/explorer.png)](figures/attention.html)", "visualize.md")
    assert (
        html
        == '<iframe class="explorer" src="figures/attention.html" title="Attention" loading="lazy"></iframe>'
    )


def test_lists_of_the_reference_become_sections(hooks):
    assert render(hooks, "- `tfm.masks`", "reference/equations.md") == "## tfm.masks\n\n::: tfm.masks\n"
    assert render(hooks, "- `tfm.masks`", "design.md") == "- `tfm.masks`"
    sections = render(hooks, "- `tfm.search.*`", "reference/search.md")
    assert "## tfm.search.beam\n\n::: tfm.search.beam\n" in sections
    assert sections.count(":::") > 5


def test_pages_for_users_come_first_in_a_search(hooks):
    ranks = {}
    for name in ("train.md", "notes/input.md", "source/tfm/masks.py.md"):
        page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=name), meta={})
        hooks.on_page_markdown("", page, None, None)
        ranks[name] = page.meta.get("search", {}).get("boost", 1)
    assert ranks["train.md"] > ranks["notes/input.md"] > ranks["source/tfm/masks.py.md"] > 0


def test_code_in_a_table_shows_pipes_without_backslashes(hooks):
    row = r"| BLEU | `a\|b<c` | `plain` |"
    assert render(hooks, row) == "| BLEU | <code>a&#124;b&lt;c</code> | `plain` |"
    assert render(hooks, r"Text with `a\|b`.") == r"Text with `a\|b`."


def test_long_identifiers_get_places_to_break(hooks):
    def mark(html):
        return hooks.on_page_content(html, None, None, None)

    assert mark("<code>tfm train --dry_run</code>") == (
        '<code>tfm train <span class="word">--dry_run</span></code>'
    )
    assert mark(f"<code>{'name' * 10}.end</code>").endswith("name.<wbr>end</span></code>")
    for unchanged in ("<p>bit-for-bit</p>", "<code>plain words</code>", "<code><a href='a-b'>c</a></code>"):
        assert mark(unchanged) == unchanged
    python = '<div class="language-python highlight"><pre><span></span><code>a-b</code></pre></div>'
    assert mark(python) == python
    text = python.replace("python", "text")
    assert mark(text) == text.replace("a-b", '<span class="word">a-b</span>')


def test_flags_become_a_table_of_the_options(hooks):
    table = render(hooks, "Text.\n\n`tfm train --help` lists the flags.\n").splitlines()
    assert table[:4] == ["Text.", "", "| flag | meaning |", "| --- | --- |"]
    meanings = dict(line.strip("| ").split("` | ") for line in table[4:])
    assert next(iter(meanings)) == "`--config=FILE"
    assert meanings["`--import=IMPORT"].startswith("Module of your own")
    assert r"encoder/\*=encoder/\*" in meanings["`--warm_start_map=WARM_START_MAP"]
    assert "`--warm_start`" in meanings["`--warm_start_map=WARM_START_MAP"]


def test_formulas_become_pictures_on_the_line_of_their_punctuation(hooks):
    formula = r'<p><span class="arithmatex">\(d_k &lt; 3\)</span>, x</p>'
    page = hooks.on_page_content(formula, None, None, None)
    assert page.startswith('<p><span class="formula"><svg ')
    assert page.endswith("</svg>,</span> x</p>")
    assert "<title>d_k &lt; 3</title>" in page
    assert "vertical-align: -" in page  # the d_k has a subscript below the line


def test_formulas_of_the_guide_can_be_drawn(hooks):
    formulas = [formula for page in guide_pages() for formula in find_formulas(page.read_text("utf-8"))]
    assert len(formulas) > 40
    for formula in formulas:
        block = f'<div class="arithmatex">\\[{html.escape(formula)}\\]</div>'
        assert "<path" in hooks.on_page_content(block, None, None, None), formula
