"""Tests of the interactive page in a headless Chromium: selections, mouse, keyboard and layout."""

import itertools

import numpy as np
import pytest

from tests.support.browser import find_chromium, text_of, texts_of
from tests.support.observations import (
    BREIT,
    HOSTILE,
    SOURCE,
    TARGET,
    WIDE,
    make_deep_decoder,
    make_image,
    make_observation,
    make_scene,
    make_text,
)
from tests.support.paths import ROOT
from tfm.interpret.observation import AttentionMap, image_track, label_track
from tfm.visualize.lines import select_differing_head
from tfm.visualize.page import make_page
from tfm.visualize.panels import Selection, select

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
LEVEL = 1 / 131_070 + 0.5e-4 + 1e-7  # rounding error of a packed number shown with four digits
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


def go_to(page, address):
    """Changes the address of the open page."""
    page.evaluate(
        "new Promise((done) => { addEventListener('hashchange', () => done(), {once: true});"
        f"location.hash = {address!r}; }})"
    )


def tables(page):
    """Returns the table of numbers of each drawing."""
    page.evaluate("document.querySelector('#numbers details').open = true")
    page.evaluate("new Promise(requestAnimationFrame)")
    return page.evaluate(TABLE)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_tables_have_the_numbers_of_the_figures(show, observations, kind):
    heads = [(1, "weights"), ("mean", "weights"), ("rollout", "weights"), (2, "norms"), ("mean", "norms")]
    observation, page = observations[0], show()
    attention = observation.attention[kind]
    tracks = [observation.tracks[name] for name in (attention.queries, attention.keys)]
    for unit, (head, measure) in itertools.product(("pieces", "words"), heads):
        go_to(page, f"attention={kind}&layer=1&head={head}&unit={unit}&measure={measure}")
        (table,) = tables(page)
        panels = select(observation, kind, Selection(1, head, unit == "words", measure))
        scale = 8 if measure == "norms" else 2
        np.testing.assert_allclose(table["numbers"], panels.weights[0, 0], atol=scale * LEVEL)
        expected = [track.texts if unit == "words" else track.labels for track in tracks]
        assert [table["queries"], table["keys"]] == expected


def test_layer_that_an_encoder_lacks_becomes_its_last_layer(show):
    observation = make_deep_decoder()
    page = show("attention=decoder&layer=2&head=1&unit=pieces", [observation])
    for kind, layer in (("decoder", 2), ("encoder", 0), ("decoder", 2)):
        go_to(page, f"attention={kind}&unit=pieces")
        assert text_of(page, "attention-title") == f"Self-attention of the {kind}, layer {layer}, head 1"
        (table,) = tables(page)
        expected = observation.attention[kind].weights[layer, 1]
        np.testing.assert_allclose(table["numbers"], expected, atol=2 * LEVEL)


def test_page_opens_at_the_first_token_that_differs_between_the_examples(show):
    other = make_observation(1, WIDE, ("▁Das", "▁Kind", *BREIT[2:]))
    assert text_of(show(examples=[make_observation(0), other]), "step-value") == "2 of 7"


def test_page_opens_in_the_middle_of_a_text_without_another_example(show):
    assert text_of(show(examples=[make_observation(0)]), "step-value") == "4 of 7"


def test_page_opens_with_the_head_that_differs_most_as_lines(show, observations):
    page = show()
    panels = [select(each, "cross", Selection(words=True)) for each in observations]
    (title,) = select_differing_head(panels, "müde,breit")[0].titles[0]
    assert text_of(page, "attention-title") == f"Cross-attention, {title}"
    assert text_of(page, "why") == (
        "Of all 6 heads, this one is shown first because its attention from “müde.” and “breit.” "
        "differs most between examples 1 and 2."
    )
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 3
    checked = page.evaluate("[...document.querySelectorAll('#more input:checked')].map((e) => e.value)")
    assert checked == ["cross", "texts", "lines"]
    assert text_of(page, "step-value") == "4 of 7"
    assert text_of(page, "hint").startswith("Look for")


def test_page_of_one_example_opens_with_the_head_that_distinguishes_the_position(show, observations):
    page = show(examples=observations[:1])
    selection = Selection(words=True)
    rows = select(observations[0], "cross", selection).weights.astype(np.float64)  # [layers, heads, L, M]
    divergence = (rows[:, :, 3] * np.log(rows[:, :, 3] / rows.mean(2))).sum(-1)
    layer, head = np.unravel_index(divergence.argmax(), divergence.shape)
    assert text_of(page, "attention-title") == f"Cross-attention, layer {layer}, head {head}"
    assert "its attention from “müde.” differs most from" in text_of(page, "why")
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 1


def test_page_of_a_single_query_opens_with_the_most_concentrated_head(show):
    tracks = {"patches": make_image().tracks["patches"], "latents": label_track("latents", 1)}
    weights = np.full((2, 2, 1, 17), 1 / 17, np.float32)
    weights[0, 1, 0] = np.eye(17)[5]
    attention = {"cross": AttentionMap("latents", "patches", weights)}
    page = show(examples=[make_image()._replace(tracks=tracks, attention=attention)])
    assert text_of(page, "attention-title") == "Cross-attention, layer 0, head 1"
    assert text_of(page, "why").endswith("its attention from “latents 0” is the most concentrated.")


@pytest.mark.parametrize(
    ("address", "title"),
    [("head=mean", "layer 1, mean of the heads"), ("layer=0&head=1", "layer 0, head 1")],
)
def test_address_chooses_the_head_that_the_page_opens_with(show, address, title):
    page = show(address)
    assert text_of(page, "attention-title") == f"Cross-attention, {title}"
    assert text_of(page, "why") == ""
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 1


def test_reason_for_the_head_disappears_with_the_head_and_survives_a_reload(show):
    page = show()
    reason = text_of(page, "why")
    page.open(page.evaluate("location.href"))
    assert text_of(page, "why") == reason
    page.point("#heads button:not([aria-pressed=true])", click=True)
    assert text_of(page, "why") == ""


def test_selections_change_the_drawing(show):
    page = show("attention=cross&layer=0&head=0&unit=pieces")
    drawn = {page.evaluate("document.querySelector('.lines').innerHTML")}
    choices = (
        ("layer", "1"),
        ("head", "2"),
        ("head", "mean"),
        ("head", "rollout"),
        ("example", "1"),
    )
    for name, value in choices:
        page.evaluate(
            f"(() => {{ const field = document.getElementById('{name}'); field.value = '{value}';"
            "field.dispatchEvent(new Event('change')); })()"
        )
        drawn.add(page.evaluate("document.querySelector('.lines').innerHTML"))
        shown = int(value) + 1 if name == "example" else value
        assert f"{name}={shown}" in page.evaluate("location.hash")
    for name, value in (("kind", "decoder"), ("kind", "encoder"), ("unit", "texts")):
        page.point(f"#{name} label:has([value={value}])", click=True)
        drawn.add(page.evaluate("document.querySelector('.lines').innerHTML"))
    assert len(drawn) == 1 + len(choices) + 3
    page.point("#drawing label:has([value=matrix])", click=True)
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 1
    assert page.evaluate("document.querySelectorAll('.cells rect').length") == 5 * 5 + 2  # and frame, mark


def test_step_selects_the_coloured_query(show, observations):
    page = show("attention=cross&layer=0&head=0&unit=pieces&position=4")
    weights = observations[0].attention["cross"].weights[0, 0, 3]
    strongest = weights.argsort()[::-1][:2]
    begins = f"▁mü looks at {SOURCE[strongest[0]]} {weights[strongest[0]]:.4f}, {SOURCE[strongest[1]]}"
    assert text_of(page, "reading").startswith(begins)
    assert texts_of(page, "#strip [aria-pressed=true]") == ["▁mü"]
    shares = page.evaluate(
        "[...document.querySelectorAll('#strip span')].filter((e) => e.style.background)"
        ".map((e) => Number(e.style.background.match(/([0-9.]+)%/)[1]))"
    )
    np.testing.assert_allclose(shares, 50 * weights, atol=0.51)
    page.point("#strip button:nth-of-type(2)", click=True)
    assert text_of(page, "step-value") == "2 of 7"
    assert "position=2" in page.evaluate("location.hash")
    page.point(".token[data-side=queries][data-index='5']", click=True)
    assert text_of(page, "step-value") == "6 of 7"


def test_token_under_the_mouse_shows_only_its_own_lines(show, observations):
    page = show("attention=cross&layer=0&head=0&unit=pieces")
    before = page.evaluate(VISIBLE)
    page.point(".token[data-side=keys][data-index='2']")
    weights = observations[0].attention["cross"].weights[0, 0, :, 2]
    assert text_of(page, "reading").startswith("mal is looked at by")
    assert page.evaluate(VISIBLE) == (weights >= 0.004).sum() != before
    page.point("h1")
    assert page.evaluate(VISIBLE) == before


@pytest.fixture
def token(show):
    """Returns the page of the first example, in which the second token, "▁Tier", has the focus."""
    page = show("attention=cross&layer=0&head=0&unit=pieces")
    page.evaluate("document.querySelectorAll('.token')[1].focus()")
    return page


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("ArrowUp", "▁Das looks at"),
        ("ArrowDown", "▁ist looks at"),
        ("ArrowRight", "▁ani is looked at by"),
    ],
)
def test_arrow_keys_move_between_the_tokens(key, label, token):
    assert token.evaluate(FOCUSED).startswith("▁Tier looks at")
    token.press(key)
    assert token.evaluate(FOCUSED).startswith(label)


def test_enter_selects_the_step_of_a_token(token):
    token.press("Enter")
    assert text_of(token, "step-value") == "2 of 7"


def test_escape_shows_the_token_of_the_step_again(token):
    token.press("Enter")
    token.press("ArrowRight")
    token.press("Escape")
    assert text_of(token, "reading").startswith("▁Tier looks at")


@pytest.fixture
def heads(show):
    """Returns the page of the first example, in which the button of the selected head has the focus."""
    page = show("attention=cross&layer=0&head=0&unit=pieces")
    page.evaluate("document.querySelector('#heads button[aria-pressed=true]').focus()")
    return page


def test_arrow_keys_move_between_the_heads(heads):
    heads.press("ArrowDown")
    heads.press("ArrowRight")
    assert heads.evaluate(FOCUSED) == "layer 1, head 1"


def test_enter_selects_a_head_and_keeps_the_focus(heads):
    heads.press("ArrowDown")
    heads.press("Enter")
    assert text_of(heads, "attention-title") == "Cross-attention, layer 1, head 0"
    assert heads.evaluate(FOCUSED) == "layer 1, head 0"


def test_arrow_keys_change_the_step(show):
    page = show("attention=cross&layer=0&head=0&unit=pieces&position=1")
    before = text_of(page, "step-value")
    page.evaluate("document.getElementById('step').focus()")
    page.press("ArrowRight")
    after = text_of(page, "step-value")
    page.press("ArrowLeft")
    assert (before, after, text_of(page, "step-value")) == ("1 of 7", "2 of 7", "1 of 7")


def test_comparison_shows_two_examples_and_their_difference(show, observations):
    page = show("attention=encoder&layer=1&head=2&compare=2&unit=words&drawing=lines")
    assert page.evaluate("document.querySelectorAll('#figures svg').length") == 3
    first, second, difference = tables(page)
    assert difference["queries"] == ["The", "animal", "is", "tired. / wide.", "</s>"]
    selection = Selection(1, 2, words=True)
    merged = [select(each, "encoder", selection).weights[0, 0] for each in observations]
    np.testing.assert_allclose(first["numbers"], merged[0], atol=2 * LEVEL)
    np.testing.assert_allclose(second["numbers"], merged[1], atol=2 * LEVEL)
    np.testing.assert_allclose(difference["numbers"], merged[0] - merged[1], atol=4 * LEVEL)
    negative = page.evaluate("document.querySelectorAll('.lines path.negative').length")
    assert negative == (merged[0] - merged[1] <= -0.004).sum() > 0


@pytest.fixture
def comparison(show):
    """Returns the page that compares two sentences, the second of which lacks the second token."""
    sources = [("▁a", "▁b", "▁c", "▁d", "</s>"), ("▁a", "▁c", "▁d", "</s>")]
    examples = [make_observation(seed, source, source) for seed, source in enumerate(sources)]
    return show("attention=encoder&layer=1&head=2&compare=2&unit=pieces&position=1", examples)


def active_tokens(page):
    """Returns the labels of the active tokens of each drawing."""
    return page.evaluate(
        "[...document.querySelectorAll('#figures svg')].map((drawing) =>"
        "[...drawing.querySelectorAll('.token.active title')].map((e) => e.textContent))"
    )


@pytest.mark.parametrize("figure", [1, 2, 3])
def test_comparison_points_at_the_same_token_in_all_drawings(comparison, figure):
    token = 3 if figure == 1 else 2
    comparison.point(f"figure:nth-of-type({figure}) .token[data-side=keys]:nth-of-type({token})")
    assert active_tokens(comparison) == [["▁c"]] * 3
    assert text_of(comparison, "reading").count("▁c is looked at by") == 2
    assert "Difference: ▁c difference:" in text_of(comparison, "reading")
    visible = comparison.evaluate(
        "[...document.querySelectorAll('#figures svg')].map((drawing) => [...drawing.querySelectorAll("
        "'.lines path')].filter((path) => path.style.display !== 'none').length)"
    )
    numbers = [
        np.array(table["numbers"])[:, column]
        for table, column in zip(tables(comparison), (2, 1, 1), strict=True)
    ]
    assert visible == [(abs(column) >= 0.004).sum() for column in numbers]


@pytest.mark.parametrize("figure", [1, 2, 3])
def test_click_in_a_comparison_selects_the_position_in_the_first_example(comparison, figure):
    token = 3 if figure == 1 else 2
    comparison.point(
        f"figure:nth-of-type({figure}) .token[data-side=queries]:nth-of-type({token})", click=True
    )
    assert text_of(comparison, "step-value") == "3 of 5"


def test_token_that_only_one_example_has_is_active_in_one_drawing(show):
    sources = [("▁a", "▁c", "</s>"), ("▁a", "▁b", "▁c", "</s>")]
    examples = [make_observation(seed, source, source) for seed, source in enumerate(sources)]
    page = show("attention=encoder&compare=2&unit=pieces&position=1", examples)
    page.point("figure:nth-of-type(2) .token[data-side=queries]:nth-of-type(2)", click=True)
    assert text_of(page, "step-value") == "1 of 3"
    page.point("figure:nth-of-type(2) .token[data-side=keys]:nth-of-type(2)")
    assert active_tokens(page) == [[], ["▁b"], []]


def test_arrow_keys_follow_the_tokens_of_a_difference(comparison):
    comparison.evaluate("document.querySelector('figure:nth-of-type(3) .token').focus()")
    for label in ("▁c", "▁d"):
        comparison.press("ArrowDown")
        assert comparison.evaluate(FOCUSED).startswith(f"{label} difference:")


def test_mark_of_a_difference_is_at_the_row_of_its_token(show):
    sources = [("▁a", "▁b", "▁c", "</s>"), ("▁a", "▁c", "</s>")]
    examples = [make_observation(seed, source, source) for seed, source in enumerate(sources)]
    page = show("attention=encoder&compare=2&unit=pieces&position=3&drawing=matrix", examples)
    marks = (
        "[...document.querySelectorAll('.mark')].map((e) => e.getAttribute('y') / e.getAttribute('height'))"
    )
    assert page.evaluate(marks) == [2, 1, 1]
    go_to(page, "attention=encoder&compare=2&unit=pieces&position=2&drawing=matrix")
    shown = "[...document.querySelectorAll('.mark')].map((e) => e.style.display !== 'none')"
    assert page.evaluate(shown) == [True, False, False]


def test_address_without_a_comparison_ends_the_comparison(comparison):
    go_to(comparison, "attention=encoder")
    assert comparison.evaluate("document.querySelectorAll('#figures svg').length") == 1


def test_step_shows_its_predictions_and_its_part_of_the_beam(show, observations):
    page = show("position=3")
    expected = [
        f"{label}{100 * each.probability:.2f} %"
        for label, each in zip(TARGET, observations[0].predictions, strict=True)
    ]
    assert texts_of(page, "#probabilities li") == expected
    assert texts_of(page, "#probabilities .active .text") == ["▁ist"]
    assert "position 3, after “▁Tier”" in text_of(page, "choices-title")
    assert texts_of(page, "#choices .text") == ["▁ist", "▁or"]
    assert texts_of(page, "#beam .node.best text:first-of-type") == list(TARGET[:3])
    page.point("#beam-all", click=True)
    assert texts_of(page, "#beam .node.best text:first-of-type") == list(TARGET)
    assert page.evaluate("document.querySelectorAll('#beam .node.later').length") == 4
    page.point("#beam-all", click=True)
    page.evaluate("document.getElementById('next').click()")
    assert text_of(page, "step-value") == "4 of 7"
    assert texts_of(page, "#finished li") == ["-0.250Das Tier ist müde.", "-3.000or"]


def test_page_of_a_language_model_has_no_beam(show):
    page = show("unit=pieces", [make_text()])
    assert text_of(page, "attention-title").startswith("Self-attention of the decoder")
    assert page.evaluate("document.getElementById('beam-part').hidden")
    assert texts_of(page, "#probabilities .text") == list(TARGET)
    (table,) = tables(page)
    assert (np.triu(table["numbers"], 1) == 0).all()


def test_image_is_tinted_by_the_attention_of_the_selected_patch(show):
    image = make_image()
    page = show("layer=0&head=1", [image])
    assert text_of(page, "step-value") == "1 of 17"
    assert text_of(page, "reading").startswith("class token looks at")
    page.point(".patch[data-side=queries][data-index='7']", click=True)
    page.point("h1")
    assert text_of(page, "step-value") == "8 of 17"
    page = show("layer=0&head=1&position=8", [image])
    assert text_of(page, "step-value") == "8 of 17"
    weights = image.attention["encoder"].weights[0, 1, 7]
    opacities = page.evaluate(
        "[...document.querySelectorAll('.patch[data-side=keys] rect')]"
        ".map((e) => Number(e.style.fillOpacity))"
    )
    np.testing.assert_allclose(opacities, 0.85 * weights / weights.max(), atol=1e-3)
    assert texts_of(page, "#choices .text") == ["seven", "one"]


BOXES = """[...document.querySelectorAll('.box')].map((box) =>
  ['x', 'y', 'width', 'height'].map((name) => Number(box.getAttribute(name))))"""


def test_page_of_a_detector_opens_at_the_first_query_and_frames_what_it_finds(show):
    page = show(examples=[make_scene()])
    assert text_of(page, "step-value") == "1 of 2"
    assert text_of(page, "reading").startswith("query 1: seven looks at")
    assert page.evaluate(BOXES) == [[150, 101, 150, 150], [476, 101, 150, 150]]
    assert texts_of(page, "#probabilities .text") == ["query 1: seven", "query 0: no object"]
    assert text_of(page, "choices-title") == "Most probable for query 1: seven"


TOPS = """[...document.querySelectorAll('.patch[data-side=queries] rect')].map((rect) =>
  Number(rect.getAttribute('y')))"""


def test_queries_without_a_place_in_the_image_are_labels_below_it(show):
    scene = make_scene()
    tracks = {"places": scene.tracks["places"], "latents": label_track("latents", 2)}
    attention = {"cross": scene.attention["cross"]._replace(queries="latents")}
    page = show(examples=[scene._replace(tracks=tracks, attention=attention)])
    assert min(page.evaluate(TOPS)) > 300  # pixels, the height of the image
    assert texts_of(page, ".patch[data-side=queries] text") == ["latents 0", "latents 1"]


def test_queries_with_more_patches_than_keys_have_places_of_their_own(show):
    image = make_image()
    tracks = {"pixels": image_track(np.zeros((8, 8, 1)), 64), "areas": image_track(np.zeros((8, 8, 1)), 16)}
    attention = {"generator": AttentionMap("pixels", "areas", np.full((1, 2, 64, 16), 1 / 16))}
    page = show(examples=[image._replace(tracks=tracks, attention=attention)])
    tops = page.evaluate(TOPS)
    assert len(set(tops)) == 8
    assert max(tops) < 300


def test_click_on_a_query_without_an_object_hides_the_box_where_it_looks(show):
    page = show(examples=[make_scene()])
    page.point(".patch[data-side=queries][data-index='1'] text", click=True)
    page.point("h1")
    assert text_of(page, "step-value") == "2 of 2"
    assert texts_of(page, "#choices .text") == ["no object"]
    shown = "[...document.querySelectorAll('.box')].map((box) => getComputedStyle(box).display !== 'none')"
    assert page.evaluate(shown) == [True, False]
    page.point(".box", click=True)
    assert text_of(page, "step-value") == "1 of 2"


def test_difference_of_images_is_blue_where_the_first_has_more(show):
    first, second = make_image(0), make_image(1)
    page = show("layer=0&head=1&compare=2", [first, second])
    blue = page.evaluate(
        "[...document.querySelectorAll('figure:nth-of-type(3) .patch[data-side=keys] rect')]"
        ".map((e) => e.style.fill === 'var(--first)')"
    )
    rows = [each.attention["encoder"].weights[0, 1, 0] for each in (first, second)]
    np.testing.assert_array_equal(blue, rows[0] > rows[1])


def test_page_opens_without_predictions(show):
    """A model that draws a picture predicts no class of it."""
    page = show(examples=[make_image()._replace(predictions=[])])
    assert text_of(page, "texts") == "image 0 → seven"
    assert page.evaluate("document.getElementById('choices-title').hidden")


def test_page_of_texts_opens_at_the_next_difference_after_the_first(show):
    """The first difference was given to the model, and the next shows what follows from it."""
    other = make_text(1, ("▁Das", "▁Kind", "▁ist", "▁mü", "de", "!", "</s>"))
    assert text_of(show(examples=[make_text(), other]), "step-value") == "6 of 7"


def test_hostile_tokens_are_shown_as_text(show):
    page = show("attention=encoder&unit=pieces", [make_observation(source=HOSTILE, target=HOSTILE)])
    (table,) = tables(page)
    assert table["keys"] == list(HOSTILE)
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert text_of(page, "attention-title").startswith("Self-attention of the encoder")
    assert texts_of(page, "h1") == ["<b>run</b>"]


@pytest.mark.parametrize("kinds", [(), ("cross",)])
def test_page_opens_without_some_or_all_attention(show, kinds):
    page = show("attention=encoder&head=rollout&compare=2&layer=99", [make_observation(kinds=kinds)])
    assert page.evaluate("document.getElementById('figures').hidden") == (not kinds)
    assert page.evaluate("document.querySelectorAll('#probabilities li').length") == len(TARGET)
    assert text_of(page, "step-value") == "4 of 7"


def test_truncated_beam_shows_its_first_steps(show, observations):
    beam = observations[0].beam
    page = show("position=7", [observations[0]._replace(beam=beam._replace(steps=beam.steps[:3]))])
    assert page.evaluate("document.querySelectorAll('#beam .node.best').length") == 3
    assert page.evaluate("document.querySelectorAll('#beam path.best').length") == 2


def test_page_can_be_printed(show):
    assert show("compare=2").print_pdf().startswith(b"%PDF")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "figures").glob("*.html")), ids=lambda path: path.stem
)
def test_pages_of_the_site_are_small_and_open(page, path):
    assert path.stat().st_size < 300_000
    page.open(path.as_uri())
    assert text_of(page, "reading")
    assert page.problems == []


def test_large_page_opens(show):
    """benchmarks/page.py measures the time that this takes."""
    pieces = [*(f"▁w{i}" for i in range(59)), "</s>"]
    large = make_observation(0, pieces, pieces, layers=6, heads=8)
    assert len(make_page([large], "run").encode()) < 5e6
    page = show(examples=[large])
    assert page.evaluate("document.querySelectorAll('#heads button').length") == 6 * 8
