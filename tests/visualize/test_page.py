"""The page to explore in a headless Chromium: what is selected is drawn, by mouse and by keyboard."""

import numpy as np
import pytest

from tests.support.browser import find_chromium, open_browser
from tests.support.translations import HOSTILE, SOURCE, TARGET, make_translated
from tfm.visualize import explorer, summaries

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
LEVEL = 1 / 131_070 + 0.5e-4 + 1e-7  # of a packed number, and of one shown with four digits
TABLE = """[...document.querySelectorAll('#tables table')].map((table) => ({
  keys: [...table.querySelectorAll('thead th')].map((cell) => cell.textContent),
  queries: [...table.querySelectorAll('tbody th')].map((cell) => cell.textContent),
  numbers: [...table.querySelectorAll('tbody tr')].map(
    (row) => [...row.querySelectorAll('td')].map((cell) => Number(cell.textContent))),
}))"""
VISIBLE = (
    "[...document.querySelectorAll('.lines path')].filter((path) => path.style.display !== 'none').length"
)
FOCUSED = "document.activeElement.getAttribute('aria-label')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with open_browser(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        page.set_width(1400)
        yield page


@pytest.fixture(scope="module")
def translations():
    wide = make_translated(1, [*SOURCE[:4], "▁wide", *SOURCE[5:]], [*TARGET[:3], "▁breit", *TARGET[5:]])
    return [make_translated(0), wide]


@pytest.fixture
def show(page, translations, tmp_path):
    """Opens the page of two translations at an address; checks in the end that nothing went wrong in it."""
    path = tmp_path / "page.html"
    path.write_text(explorer.make_page(translations, "run"), encoding="utf-8")

    def open_at(address=""):
        page.open(f"{path.as_uri()}#{address}")
        return page

    yield open_at
    problems, page.problems = page.problems, []
    assert problems == []


def tables(page):
    """The table of numbers of each drawing."""
    page.evaluate("document.querySelector('#numbers details').open = true")
    page.evaluate("new Promise(requestAnimationFrame)")
    return page.evaluate(TABLE)


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("unit", ["pieces", "words"])
def test_numbers_are_those_of_the_arrays(show, translations, part, unit):
    weights = translations[0].weights
    expected = {"1": weights[part][1, 1], "mean": weights[part][1].mean(0)}
    if part != "cross":
        expected["rollout"] = summaries.attention_rollout(weights[part])[1]
    else:
        expected["rollout"] = summaries.cross_rollout(weights["cross"], weights["encoder"])[1]
    sides = [getattr(translations[0], side) for side in summaries.SIDES_OF[part]]
    for head, array in expected.items():
        (table,) = tables(show(f"part={part}&layer=1&head={head}&unit={unit}"))
        labels = sides
        if unit == "words":
            array = summaries.merge_words(array, *map(summaries.number_words, sides))
            labels = list(map(summaries.word_texts, sides))
        assert [table["queries"], table["keys"]] == labels
        np.testing.assert_allclose(table["numbers"], array, atol=2 * LEVEL)


@pytest.mark.parametrize("head", ["2", "mean"])
def test_norms_are_those_of_the_arrays(show, translations, head):
    (table,) = tables(show(f"part=cross&layer=0&head={head}&measure=norms"))
    norms, joint = translations[0].norms["cross"], translations[0].joint_norms["cross"]
    expected = joint[0] if head == "mean" else norms[0, 2]
    np.testing.assert_allclose(table["numbers"], expected, atol=8 * LEVEL)


def test_selections_change_the_drawing(show):
    page = show("part=cross&layer=0&head=0")
    drawn = {page.evaluate("document.querySelector('.lines').innerHTML")}
    choices = (
        ("layer", "1"),
        ("head", "2"),
        ("head", "mean"),
        ("head", "rollout"),
        ("sentence", "1"),
    )
    for name, value in choices:
        page.evaluate(
            f"(() => {{ const field = document.getElementById('{name}'); field.value = '{value}';"
            "field.dispatchEvent(new Event('change')); })()"
        )
        drawn.add(page.evaluate("document.querySelector('.lines').innerHTML"))
        shown = int(value) + 1 if name == "sentence" else value
        assert f"{name}={shown}" in page.evaluate("location.hash")
    for name, value in (("part", "decoder"), ("part", "encoder"), ("unit", "texts")):
        page.point(f"#{name} label:has([value={value}])", click=True)
        drawn.add(page.evaluate("document.querySelector('.lines').innerHTML"))
    assert len(drawn) == 1 + len(choices) + 3
    page.point("#drawing label:has([value=matrix])", click=True)
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 1
    assert page.evaluate("document.querySelectorAll('.cells rect').length") == 5 * 5 + 2  # frame and mark


def test_token_under_the_mouse_shows_attention(show, translations):
    page = show("part=cross&layer=0&head=0&drawing=lines&least=0.5")
    before = page.evaluate(VISIBLE)
    page.point(".token[data-side=queries][data-index='3']")
    weights = translations[0].weights["cross"][0, 0, 3]
    told = page.evaluate("document.getElementById('reading').textContent")
    strongest = weights.argsort()[::-1][:2]
    assert told.startswith(f"▁mü looks at {SOURCE[strongest[0]]} {weights[strongest[0]]:.4f}")
    assert page.evaluate(VISIBLE) == (weights >= 0.004).sum() != before
    page.point("h1")
    assert page.evaluate(VISIBLE) == before
    page.point(".token[data-side=keys][data-index='2']", click=True)
    page.point("h1")  # a click keeps it
    assert "mal is looked at by" in page.evaluate("document.getElementById('reading').textContent")
    page.press("Escape")
    assert page.evaluate("document.getElementById('reading').textContent") == ""


def test_everything_works_by_keyboard(show):
    page = show("part=cross&layer=0&head=0&drawing=lines")
    page.evaluate("document.querySelector('.token').focus()")
    assert page.evaluate(FOCUSED).startswith("▁Das looks at")
    page.press("ArrowDown")
    assert page.evaluate(FOCUSED).startswith("▁Tier looks at")
    page.press("ArrowRight")
    assert page.evaluate(FOCUSED).startswith("▁ani is looked at by")
    page.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "false"
    page.evaluate("document.querySelector('#heads button[aria-pressed=true]').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert page.evaluate(FOCUSED) == "layer 1, head 1"
    page.press("Enter")
    assert page.evaluate("document.getElementById('attention-title').textContent") == (
        "Cross-attention, layer 1, head 1"
    )
    assert page.evaluate(FOCUSED) == "layer 1, head 1"
    page.evaluate("document.getElementById('step').focus()")
    page.press("ArrowLeft")
    assert page.evaluate("document.getElementById('step-value').textContent") == "6 of 7"


def test_every_control_has_a_name(show):
    page = show()
    unnamed = page.evaluate(
        """[...document.querySelectorAll('select, input, button, [role=option], [role=listbox], svg, canvas')]
        .filter((e) => !e.closest('label') && !e.getAttribute('aria-label') && !e.getAttribute('aria-hidden'))
        .map((e) => e.outerHTML)"""
    )
    assert unnamed == []


def test_two_sentences_and_their_difference(show, translations):
    page = show("part=encoder&layer=1&head=2&compare=2&unit=words&drawing=lines")
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 3
    first, second, difference = tables(page)
    assert difference["queries"] == ["The", "animal", "is", "tired. / wide.", "</s>"]
    merged = [
        summaries.merge_words(each.weights["encoder"][1, 2], *[summaries.number_words(each.source)] * 2)
        for each in translations
    ]
    np.testing.assert_allclose(first["numbers"], merged[0], atol=2 * LEVEL)
    np.testing.assert_allclose(second["numbers"], merged[1], atol=2 * LEVEL)
    np.testing.assert_allclose(difference["numbers"], merged[0] - merged[1], atol=4 * LEVEL)
    negative = page.evaluate("document.querySelectorAll('.lines path.negative').length")
    assert negative == (merged[0] - merged[1] <= -0.004).sum() > 0


def test_decoding_step_by_step(show, translations):
    page = show("step=3")
    shown = page.evaluate("[...document.querySelectorAll('#probabilities li')].map((e) => e.textContent)")
    expected = [
        f"{piece}{100 * p:.2f} %" for piece, p in zip(TARGET, translations[0].probabilities, strict=True)
    ]
    assert shown == expected
    assert page.evaluate("document.querySelector('#probabilities .active .text').textContent") == "▁ist"
    assert "step 3, after “▁Tier”" in page.evaluate("document.getElementById('choices-title').textContent")
    choices = page.evaluate("[...document.querySelectorAll('#choices .text')].map((e) => e.textContent)")
    assert choices == ["▁ist", "▁or"]
    best = page.evaluate(
        "[...document.querySelectorAll('#beam .node.best')].map((e) => e.children[1].textContent)"
    )
    assert best == list(TARGET)
    assert page.evaluate("document.querySelectorAll('#beam .node.later').length") == 4
    page.evaluate("document.getElementById('next').click()")
    assert page.evaluate("document.getElementById('step-value').textContent") == "4 of 7"
    found = page.evaluate("[...document.querySelectorAll('#finished li')].map((e) => e.textContent)")
    assert found == ["-0.250Das Tier ist müde.", "-3.000or"]


def test_hostile_tokens_are_text(page, tmp_path):
    path = tmp_path / "page.html"
    text = explorer.make_page([make_translated(source=HOSTILE, target=HOSTILE)], "<b>run</b>")
    path.write_text(text, encoding="utf-8")
    page.open(f"{path.as_uri()}#part=encoder")
    (table,) = tables(page)
    assert table["keys"] == list(HOSTILE)
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate("document.querySelector('h1').textContent") == "<b>run</b>"
    assert page.problems == []


@pytest.mark.parametrize("parts", [(), ("cross",)])
def test_models_without_some_attention(page, tmp_path, parts):
    path = tmp_path / "page.html"
    path.write_text(explorer.make_page([make_translated(parts=parts)], "run"), encoding="utf-8")
    page.open(f"{path.as_uri()}#part=encoder&head=rollout&compare=2&layer=99")
    assert page.evaluate("document.getElementById('attention').hidden") == (not parts)
    assert page.evaluate("document.querySelectorAll('#probabilities li').length") == len(TARGET)
    assert page.problems == []


def test_short_translation_has_start_of_its_beam(page, tmp_path):
    path = tmp_path / "page.html"
    translated = make_translated()
    cut = translated._replace(beam=translated.beam[:3])
    path.write_text(explorer.make_page([cut], "run"), encoding="utf-8")
    page.open(path.as_uri())
    assert page.evaluate("document.querySelectorAll('#beam .node.best').length") == 3
    assert page.evaluate("document.querySelectorAll('#beam path.best').length") == 2
    assert page.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_have_contrast(show, theme):
    """4.5 to 1 between text and panel (WCAG 2.2, 1.4.3), by the system's theme and by the page's own."""
    for address, system in (("", theme), (f"theme={theme}", "light" if theme == "dark" else "dark")):
        page = show(address)
        page.prefer(system)
        for name in ("--text", "--muted", "--first", "--second"):
            colours = [
                page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{each}')")
                for each in (name, "--panel")
            ]
            dark, light = sorted(map(luminance, colours))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (theme, name)
        assert (luminance(colours[1]) < 0.2) == (theme == "dark")
    page.prefer("light")


def luminance(colour):
    """The relative luminance of #rrggbb, as WCAG 2.2 defines it."""
    colour = colour.strip().lstrip("#")
    colour = "".join(2 * digit for digit in colour) if len(colour) == 3 else colour
    levels = np.array([int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_a_narrow_page_does_not_scroll_sideways(show):
    page = show("compare=2")
    page.set_width(400)
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_width(1400)


def test_it_prints(show):
    assert show("compare=2").print_pdf().startswith(b"%PDF")


def test_a_large_page_opens(page, tmp_path):
    """How fast: benchmarks/page.py."""
    pieces = [*(f"▁w{i}" for i in range(59)), "</s>"]
    path = tmp_path / "page.html"
    text = explorer.make_page([make_translated(0, pieces, pieces, layers=6, heads=8)], "run")
    assert len(text.encode()) < 5e6
    path.write_text(text, encoding="utf-8")
    page.open(path.as_uri())
    assert page.evaluate("document.querySelectorAll('#heads button').length") == 6 * 8
    assert page.problems == []
