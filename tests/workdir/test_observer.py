"""Tests of `Observer` and of the page that a notebook displays."""

import html.parser

import numpy as np
import pytest

import tfm
from tests.support.browser import find_chromium, open_browser
from tests.support.observations import HOSTILE, make_observation
from tests.support.random_runs import write_random_run
from tests.support.tiny import randomize_weights
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm import interpret
from tfm.errors import UserError
from tfm.visualize.page import NotebookPage, make_page
from tfm.workdir import runs
from tfm.workdir.observer import Observer

CROSS = "decoder.layers_0.cross_attention.head_outputs"


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


class Frames(html.parser.HTMLParser):
    """Collects the attributes of all elements."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))


@pytest.mark.parametrize("text", ['The dog\'s "bone" & more', "".join(HOSTILE)])
def test_a_notebook_displays_one_frame_with_the_page(text):
    observation = make_observation(0)._replace(title=text)
    [(tag, attributes)] = Frames(NotebookPage([observation], text)._repr_html_()).elements
    assert tag == "iframe"
    assert attributes["srcdoc"] == make_page([observation], text)
    assert attributes["sandbox"] == "allow-scripts"


@pytest.mark.long
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM")
def test_a_saved_notebook_shows_the_page_without_problems(tmp_path):
    frame = NotebookPage([make_observation(0), make_observation(1)], "notebook")._repr_html_()
    path = tmp_path / "notebook.html"
    receive = "addEventListener('message', (event) => (window.told = event.data))"
    # The sandbox hides the page from the notebook, so the page reports what it has drawn.
    report = "parent.postMessage(document.querySelectorAll(`#heads canvas`).length, `*`)"
    before, end, after = frame.rpartition("</script>")
    frame = f"{before}{report}{end}{after}"
    path.write_text(f"<!doctype html><script>{receive}</script>{frame}", encoding="utf-8")
    with open_browser(find_chromium(), tmp_path / "profile") as page:
        page.open(path.as_uri())
        page.evaluate("new Promise((done) => setInterval(() => window.told && done(), 10))")
        assert page.evaluate("window.told") > 0
        assert page.problems == []


@pytest.mark.long
def test_observer_computes_what_the_task_observes(run):
    observer = Observer(run)
    expected = run.task.observe(run.variables, "red dog", 32)
    found = observer.observe("red dog", 32)
    assert found.result == expected.result
    np.testing.assert_array_equal(found.attention["cross"].weights, expected.attention["cross"].weights)
    edited = observer.with_edits({CROSS: interpret.zero_head(0)}).observe("red dog", 32)
    assert edited.predictions != expected.predictions


@pytest.mark.long
def test_a_translator_shows_sentences(run):
    page = tfm.Translator(run).show("red dog", "blue cat", max_tokens=32)
    assert repr(page) == "NotebookPage('red dog, blue cat')"
    assert "blue cat" in page.html


@pytest.mark.long
def test_a_generator_shows_and_edits_like_an_observer(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_documents(corpus)
    workdir = write_random_run(make_lm_config(corpus), tmp_path / "run", (np.ones((1, 2), int),), {1: 0.0})
    generator, observer = tfm.Generator.load(str(workdir)), tfm.Observer.load(str(workdir))
    edits = {"decoder.layers_0.self_attention.head_outputs": interpret.zero_head(0)}
    plain, edited = (
        each.show("red dog", max_tokens=16).html for each in (generator, generator.with_edits(edits))
    )
    assert plain == observer.show("red dog", max_tokens=16).html
    assert edited == observer.with_edits(edits).show("red dog", max_tokens=16).html
    assert edited != plain
    assert generator.with_edits(edits).generate(["red"], max_tokens=2) != []


@pytest.mark.long
def test_error_for_a_task_that_cannot_observe(regression_run):
    with pytest.raises(UserError, match="cannot observe its model"):
        tfm.Observer.load(str(regression_run))
