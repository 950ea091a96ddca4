"""Tests of the interactive page with a screen reader, a keyboard, a finger, a phone and unusual texts."""

import re

import numpy as np
import pytest

from tests.support.browser import find_chromium, text_of, texts_of
from tests.support.observations import (
    BREIT,
    SOURCE,
    make_image,
    make_observation,
    make_scene,
    make_text,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
MAKERS = [make_observation, make_text, make_image, make_scene]
NAMES = ["Position", "Position", "Patch", "Query"]  # of the slider
CONTROLS = {"button", "combobox", "radio", "slider", "listbox", "option", "toolbar", "DisclosureTriangle"}
FOCUS_QUERY = "document.querySelector('#strip button[tabindex=\"0\"]').focus()"
FOCUSED = "document.activeElement.textContent"
HEBREW = ("▁החיה", "▁לא", "▁חצתה", "▁את", "▁הרחוב", ".", "</s>")
LONG = ("▁Das", "▁Tier", "▁überquerte", "▁die", "▁Straße", "▁nicht", "</s>")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one character of five code points


@pytest.fixture
def phone(page):
    """Makes the window that of a phone with a touch screen."""
    page.set_width(390, 844, touch=True)
    yield page
    page.set_width(1400)


def wait_for_announcement(page):
    """Returns the text that screen readers read after a change."""
    return page.evaluate(
        """new Promise((done) => {
          const read = () => document.getElementById('announcement').textContent || setTimeout(check, 20);
          const check = () => { const text = read(); if (typeof text === 'string') done(text); };
          check();
        })"""
    )


@pytest.mark.parametrize("make", MAKERS)
def test_every_control_has_a_name(show, make):
    page = show(examples=[make(0), make(1)])
    controls = [(role, name) for role, name in page.list_controls() if role in CONTROLS]
    assert {"button", "combobox", "slider"} <= {role for role, _ in controls}
    assert [role for role, name in controls if not name.strip()] == []


@pytest.mark.parametrize(("make", "name"), list(zip(MAKERS, NAMES, strict=True)))
def test_slider_is_named_by_what_it_counts(show, make, name):
    page = show(examples=[make(0)])
    assert ("slider", name) in page.list_controls()
    assert {("button", f"Previous {name.lower()}"), ("button", f"Next {name.lower()}")} <= set(
        page.list_controls()
    )


def test_value_of_the_slider_names_the_token(show):
    page = show("position=3")
    value = page.evaluate("document.getElementById('step').getAttribute('aria-valuetext')")
    assert value == "3 of 7, ▁ist"


def test_page_announces_nothing_when_it_opens(show):
    page = show()
    page.evaluate("new Promise((done) => setTimeout(done, 400))")
    assert text_of(page, "announcement") == ""


def test_change_of_the_position_is_announced(show):
    page = show("layer=0&head=0&position=3")
    page.point("#next", click=True)
    assert re.match(r"Position 4 of 7\. müde\. looks at \w+", wait_for_announcement(page))


def test_change_of_the_head_is_announced(show):
    page = show("layer=0&head=0&position=3")
    page.point("#heads button[data-layer='1'][data-head='2']", click=True)
    text = wait_for_announcement(page)
    assert re.match(r"Cross-attention, layer 1, head 2\. ist looks at \w+", text)


def test_queries_of_the_example_are_one_stop_of_the_tab_key(show):
    page = show("layer=0&head=0&position=3&unit=pieces")
    page.evaluate(FOCUS_QUERY)
    assert page.evaluate(FOCUSED) == "▁ist"
    page.press("ArrowRight")
    assert page.evaluate(FOCUSED) == "▁mü"
    page.press("Enter")
    assert text_of(page, "step-value") == "4 of 7"
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "before"


def test_tab_key_stops_only_at_controls(show):
    page = show("layer=0&head=0")
    stops = []
    for _ in range(30):
        page.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    start = stops.index("next")
    assert stops[start : start + 4] == ["next", "g", "g", "BUTTON"]  # a query, a key, and a head


def test_arrow_keys_follow_a_text_from_right_to_left(show):
    page = show("attention=encoder&layer=0&head=0&position=2&unit=pieces", [make_observation(0, HEBREW)])
    page.evaluate(FOCUS_QUERY)
    place = "document.activeElement.getBoundingClientRect().x"
    before = page.evaluate(place)
    page.press("ArrowLeft")
    assert page.evaluate(FOCUSED) == HEBREW[2]
    assert page.evaluate(place) < before


def test_text_from_right_to_left_does_not_reorder_the_numbers(show):
    page = show("layer=0&head=0&position=3", [make_observation(0, HEBREW)])
    parts = text_of(page, "reading").removeprefix("ist looks at ").split(", ")
    assert all(re.fullmatch("\u2068[^\u2068\u2069]+\u2069 [.0-9]+|</s> [.0-9]+", part) for part in parts)


@pytest.mark.parametrize("make", MAKERS)
def test_fingers_have_targets_of_at_least_24_pixels(phone, show, make):
    page = show("", [make(0), make(1)])
    page.evaluate("document.getElementById('more').open = true")
    sizes = page.evaluate(
        """[...document.querySelectorAll('button, select, #step, summary, .token rect, fieldset label')]
        .filter((e) => e.checkVisibility())
        .map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
        .map(([element, { width, height }]) => [element, width, height])"""
    )
    assert [element for element, width, height in sizes if min(width, height) < 24] == []
    main = ("<select", '<input id="step"', '<button id="', "<summary", "<label")
    assert [element for element, _, height in sizes if element.startswith(main) and height < 44] == []


def test_tap_shows_a_token_and_selects_a_query(phone, show):
    page = show("layer=0&head=0&position=3&unit=pieces")
    page.tap(".token[data-side=keys][data-index='2']")
    assert text_of(page, "reading").startswith("mal is looked at by")
    page.tap(".token[data-side=queries][data-index='1']")
    assert text_of(page, "step-value") == "2 of 7"


def test_phone_opens_with_one_example(phone, show):
    page = show()
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 1
    assert text_of(page, "why").startswith("Of all 6 heads")
    assert not page.evaluate("document.querySelector('#help details').open")


@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("make", MAKERS)
def test_narrow_page_folds_its_controls_and_does_not_scroll_sideways(page, show, make, width):
    page.set_width(width)
    show("compare=2", [make(0), make(1)])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not page.evaluate("document.getElementById('more').open")
    page.set_width(1400)
    show()
    assert page.evaluate("document.getElementById('more').open")


@pytest.mark.parametrize(
    "source",
    [("▁" + "x" * 400, "▁y", "</s>"), (*(f"▁word{i}" for i in range(60)), "</s>")],
    ids=["one word", "many words"],
)
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_four_hundred_characters_do_not_scroll_the_page_sideways(page, show, width, source):
    page.set_width(width)
    show("", [make_observation(0, source, ("▁" + "z" * 200, *BREIT))])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_width(1400)


def test_words_are_whole_where_there_is_room(phone, show):
    page = show("", [make_observation(0, SOURCE, LONG)])
    assert "überquerte" in texts_of(page, ".token text")
    assert "▁überquerte" in texts_of(page, "#beam .node text:first-of-type")


def test_cut_label_does_not_divide_a_character(phone, show):
    page = show("", [make_observation(0, SOURCE, ("▁" + 30 * FAMILY, *BREIT))])
    (label,) = (text for text in texts_of(page, ".token text") if "…" in text)
    assert set(label.removesuffix("…").split(FAMILY)) == {""}


def test_beam_shows_the_rows_that_led_to_the_position(show):
    pieces = (*(f"▁w{i}" for i in range(20)), "</s>")
    page = show("position=12", [make_observation(0, SOURCE, pieces)])
    rows = "#beam svg > text"
    assert texts_of(page, rows) == [str(row) for row in range(5, 13)]
    page.point("#beam-all", click=True)
    assert texts_of(page, rows) == [str(row) for row in range(1, 22)]
    assert text_of(page, "beam-all") == "Show only what led here"


def test_all_heads_of_a_deep_model_are_on_the_page(page, show):
    deep = make_observation(0, layers=24, heads=16)
    show("", [deep])
    assert page.evaluate("document.querySelectorAll('#heads button').length") == 24 * 16
    assert page.evaluate("document.getElementById('heads').offsetHeight") < 1100


def test_selected_head_of_a_deep_model_is_visible_on_a_phone(phone, show):
    deep = make_observation(0, layers=24, heads=16)
    page = show("layer=2&head=13", [deep])
    selected = "document.querySelector('#heads [aria-pressed=true]').getBoundingClientRect()"
    assert 0 < page.evaluate(f"{selected}.left") < page.evaluate(f"{selected}.right") <= 390


def test_keyboard_reaches_the_last_head_of_a_deep_model_on_a_phone(phone, show):
    deep = make_observation(0, layers=24, heads=16)
    page = show("layer=0&head=14", [deep])
    page.evaluate("document.querySelector('#heads [aria-pressed=true]').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    assert text_of(page, "attention-title") == "Cross-attention, layer 0, head 15"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(page, show, theme):
    """WCAG 2.2, 1.4.3 requires a contrast of 4.5 between text and background."""
    page.prefer(theme)
    show()
    for name in ("--text", "--muted", "--first", "--second"):
        colours = [read_variable(page, each) for each in (name, "--panel")]
        dark, light = sorted(map(luminance, colours))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name
    assert (luminance(colours[1]) < 0.2) == (theme == "dark")
    page.prefer("light")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_the_strongest_colour_has_enough_contrast(page, show, theme):
    page.prefer(theme)
    observation = make_observation(0)
    weights = np.broadcast_to(np.eye(7, dtype=np.float32), (2, 3, 7, 7))
    attention = {"cross": observation.attention["cross"]._replace(weights=weights)}
    show("layer=0&head=0&unit=pieces&position=3", [observation._replace(attention=attention)])
    strongest = "getComputedStyle(document.querySelectorAll('#strip div > span')[2]).backgroundColor"
    *colour, alpha = map(float, re.findall(r"[\d.]+", page.evaluate(strongest)))
    panel, text = (read_variable(page, name) for name in ("--panel", "--text"))
    mixed = [alpha * 255 * part + (1 - alpha) * below for part, below in zip(colour, panel, strict=True)]
    dark, light = sorted(map(luminance, (mixed, text)))
    assert alpha == 0.5
    assert (light + 0.05) / (dark + 0.05) >= 4.5
    page.prefer("light")


def read_variable(page, name):
    """Returns the red, green and blue of a colour of the page, from 0 to 255."""
    value = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{name}')")
    digits = value.strip().lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]


def luminance(colour):
    """Returns the relative luminance of a colour, of numbers from 0 to 255, as defined by WCAG 2.2."""
    levels = np.array(colour) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]
