"""Tests of the page of `tfm explore` in a headless Chromium, by clicks and keys."""

import copy
import threading

import jax
import numpy as np
import pytest

from tests.support.browser import find_chromium, open_browser
from tests.support.live_page import wait_for_answer
from tests.support.tiny import randomize_weights
from tfm import interpret
from tfm.commands import explore
from tfm.commands.options import Explore
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.interpret.switches import Switch, SwitchedModel, list_parts, with_switches
from tfm.workdir import runs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
CROSS = "decoder.layers_0.cross_attention.head_outputs"
HEAD = "#heads [data-layer='0'][data-head='1']"
# Maps a row of a table to the numbers of its cells after the first.
NUMBERS = "(row) => [...row.cells].slice(1).map((cell) => parseFloat(cell.textContent))"
SUBLAYER = "encoder.layers_0.self_attention_residual.sublayer_output"


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def url(run, tiny_run):
    options = Explore(
        workdir=str(tiny_run), config=None, overrides={}, arguments=("red dog", "blue cat"), max_tokens=32
    )
    server = explore.open_server(run, options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.url
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        page.set_width(1400)
        yield page


@pytest.fixture
def page(browser, url):
    browser.open(f"{url}#example=1&compare=none&attention=cross&layer=0&head=0")
    yield browser
    problems, browser.problems = browser.problems, []
    assert [problem for problem in problems if not str(problem).startswith(url)] == []


def wait_for_edit(page, count):
    """Waits until the page shows an edit with so many parts that are off."""
    wait_for_answer(page, f"view.other >= 0 && data.examples[view.other].live.off.length === {count}")


def observe(run, off):
    task = copy.copy(run.task)
    task.model = SwitchedModel(task.model)
    return task.observe(with_switches(run.variables, list_parts(run.task, 32), off), "red dog", 32)


def test_a_click_turns_a_head_off_and_on(page, run):
    page.point(HEAD, click=True)
    wait_for_edit(page, 1)
    original, edited = (observe(run, off) for off in ([], [Switch(CROSS, 1)]))
    results = page.evaluate("[...document.querySelectorAll('#live-results dd')].map((dd) => dd.textContent)")
    assert results == [original.result, edited.result]
    label = page.evaluate("headButton(0, 1).getAttribute('aria-label')")
    assert label == "layer 0, head 1, turned off"
    assert page.evaluate("[view.example, byId('figures').children.length]") == [0, 3]
    page.point(HEAD, click=True)
    wait_for_answer(page, "view.other === -1")
    assert page.evaluate("byId('live-edit').hidden")


def test_the_page_draws_what_interpret_computes(page, run):
    page.point(HEAD, click=True)
    wait_for_edit(page, 1)
    page.evaluate("change({ unit: 'labels', head: 2 })")
    page.evaluate("byId('numbers').querySelector('details').open = true; fillTables()")
    tables = "[...document.querySelectorAll('#tables table')].slice(0, 2)"
    shown = page.evaluate(f"{tables}.map((table) => [...table.querySelectorAll('tbody tr')].map({NUMBERS}))")
    for numbers, off in zip(shown, ([], [Switch(CROSS, 1)]), strict=True):
        target = observe(run, off).predicted_ids
        edit = {CROSS: interpret.zero_head(1)} if off else {}
        _, weights = run_interpret(run, target, edit)
        np.testing.assert_allclose(numbers, weights[0, 2], atol=1e-4)
    target = observe(run, []).predicted_ids
    for column, edit in ((0, {}), (1, {CROSS: interpret.zero_head(1)})):
        logits, _ = run_interpret(run, target, edit)
        expected = np.take_along_axis(jax.nn.softmax(logits[0]), np.array(target)[:, None], axis=-1)[:, 0]
        rows = page.evaluate(f"[...document.querySelectorAll('#live-changes tbody tr')].map({NUMBERS})")
        np.testing.assert_allclose([row[column] for row in rows], 100 * expected, atol=0.006)
    page.evaluate("change({ unit: 'texts', head: 0 })")


def run_interpret(run, target, edit):
    """Returns the logits and the weights of the cross-attention for a translation of "red dog"."""
    source = [*run.task.tokenizer.encode(["red dog"])[0], EOS_ID]
    inputs = np.array([source]), np.array([[BOS_ID, *target[:-1]]])
    read = "decoder.layers_0.cross_attention.weights"
    logits, reads = interpret.run(run.task.model, run.params, *inputs, read=read, edit=edit)
    return logits, reads[read]


@pytest.mark.parametrize("key", ["Enter", " "])
def test_keys_turn_a_head_off(key, page):
    page.evaluate("headButton(0, 1).focus()")
    page.press(key)
    wait_for_edit(page, 1)
    assert page.evaluate("document.activeElement === headButton(0, 1)")


def test_a_button_turns_the_shown_head_off(page):
    page.point("#live-mode label:nth-of-type(2)", click=True)
    page.point(HEAD, click=True)
    assert page.evaluate("[view.head, view.other]") == [1, -1]
    page.point("#live-head", click=True)
    wait_for_edit(page, 1)
    assert page.evaluate("byId('live-head').textContent") == "Turn on layer 0, head 1"


def test_a_sublayer_and_a_token_are_turned_off(page):
    page.point("#live-more summary", click=True)
    page.point("#live-sublayers button", click=True)
    wait_for_edit(page, 1)
    page.point("#live-tokens button:nth-child(2)", click=True)
    wait_for_edit(page, 2)
    off = page.evaluate("data.examples[view.other].live.off")
    assert off == [[SUBLAYER, None], ["encoder.embeddings", 1]]
    python = page.evaluate("byId('live-python').textContent")
    assert f'"{SUBLAYER}": interpret.zero,' in python
    assert '"encoder.embeddings": interpret.zero_position(1),' in python
    page.point("#live-all", click=True)
    wait_for_answer(page, "view.other === -1")


def test_quick_clicks_are_all_counted(page):
    page.evaluate("for (const head of [0, 1, 2]) headButton(0, head).click()")
    wait_for_edit(page, 3)


def test_an_own_example_is_shown_and_compared(page):
    page.evaluate("byId('live-text').focus()")
    page.insert("red cat")
    page.press("Enter")
    wait_for_answer(page, "exampleNow().title === 'red cat'")
    number = page.evaluate("view.example")
    page.evaluate("change({ example: 0, other: data.examples.length - 1 })")
    assert page.evaluate("matrices.length") == 3
    assert page.evaluate("byId('example').options.length") == number + 1


def test_an_empty_translation_is_named(page):
    page.evaluate("globalThis.whole = post")
    page.evaluate(
        "post = async (body) => { const all = await whole(body); all.example.result = ''; return all; }"
    )
    page.evaluate("byId('live-text').focus()")
    page.insert("cat cat")
    page.press("Enter")
    wait_for_answer(page, "exampleNow().title === 'cat cat'")
    assert "The output is empty. (" in page.evaluate("byId('live-status').textContent")
    page.evaluate("headButton(0, 0).click()")
    wait_for_edit(page, 1)
    results = "[...byId('live-results').querySelectorAll('dd')].map((each) => each.textContent)"
    assert page.evaluate(results) == ["The output is empty."] * 2
    page.evaluate("post = whole")


def test_each_line_is_an_example(page):
    count = page.evaluate("data.examples.length")
    page.evaluate("byId('live-text').value = 'red dog red\\n\\nblue dog'")
    page.evaluate("byId('live-text').dispatchEvent(new Event('input'))")
    assert not page.evaluate("byId('live-lines-label').hidden")
    page.point("#live-look", click=True)
    wait_for_answer(page, f"data.examples.length === {count + 2} && view.other >= 0")
    titles = page.evaluate("[exampleNow().title, data.examples[view.other].title]")
    assert titles == ["red dog red", "blue dog"]
    page.point("#live-lines", click=True)  # off: the lines are one example
    page.point("#live-look", click=True)
    wait_for_answer(page, f"data.examples.length === {count + 3}")
    assert page.evaluate("data.examples.at(-1).live.text") == "red dog red\n\nblue dog"
    page.point("#live-lines", click=True)


def test_unknown_words_are_marked_in_the_example(page):
    page.evaluate("byId('live-text').focus()")
    page.insert("red \u2603 dog")
    page.press("Enter")
    wait_for_answer(page, "exampleNow().live.unknown.length")
    marked = "[...document.querySelectorAll('#strip .unknown')].map((e) => e.textContent)"
    assert page.evaluate(marked) == ["\u2603"]
    assert page.evaluate("byId('live-unknown').textContent") == "Not in the vocabulary: \u201c\u2603\u201d"
    page.evaluate("change({ example: 0 })")
    assert page.evaluate(marked) == []
    assert page.evaluate("byId('live-unknown').hidden")


def test_controls_of_the_live_page_have_names_and_targets_for_a_finger(page):
    page.set_width(390, 844, touch=True)
    try:
        page.tap("#live-more summary")
        page.tap(HEAD)
        wait_for_edit(page, 1)
        roles = {"button", "textbox", "checkbox", "radio", "DisclosureTriangle"}
        controls = [(role, name) for role, name in page.list_controls() if role in roles]
        assert ("button", "Turn on cross layer 0, head 1") in controls
        assert [role for role, name in controls if not name.strip()] == []
        sizes = page.evaluate(
            "[...document.querySelectorAll('#live-parts button, #live button, #live textarea')]"
            ".filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect())"
            ".map((box) => Math.min(box.width, box.height))"
        )
        assert len(sizes) > 10
        assert min(sizes) >= 24
    finally:
        page.set_width(1400)


def test_text_of_an_example_never_becomes_html(page):
    page.evaluate("byId('live-text').focus()")
    page.insert("<img src=x onerror=alert(1)>")
    page.press("Enter")
    wait_for_answer(page, "exampleNow().title.startsWith('<img')")
    page.point(HEAD, click=True)
    wait_for_edit(page, 1)
    assert page.evaluate("document.querySelectorAll('main img').length") == 0


def test_an_error_is_shown_as_text(page):
    page.point("#live-look", click=True)
    wait_for_answer(page, "byId('live-status').textContent.startsWith('Expected a sentence')")


def test_the_view_after_an_edit_lies_in_the_address(page):
    page.point(HEAD, click=True)
    wait_for_edit(page, 1)
    assert "compare=3" in page.evaluate("location.hash")


def test_the_page_fits_a_phone(page):
    page.set_width(390)
    page.evaluate("new Promise((done) => setTimeout(done, 300))")  # the page is drawn again
    try:
        page.point(HEAD, click=True)
        wait_for_edit(page, 1)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    finally:
        page.set_width(1400)


def test_a_closed_server_is_named(page):
    page.evaluate("live.path = '/closed'")
    page.evaluate("window.fetch = () => Promise.reject(new Error())")
    page.point(HEAD, click=True)
    wait_for_answer(page, "byId('live-status').textContent.startsWith('The server does not answer')")
    assert page.evaluate("byId('live-off').textContent").startswith("Everything is on")
