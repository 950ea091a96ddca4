"""Tests of the data in the interactive page, and of hostile texts."""

import base64
import html.parser
import io
import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from tests.support.documents import load_docs_module
from tests.support.observations import (
    BREIT,
    HOSTILE,
    WIDE,
    make_image,
    make_observation,
    make_text,
)
from tests.support.packed import unpack
from tfm.errors import UserError
from tfm.visualize import page as pages


class Reader(html.parser.HTMLParser):
    """Collects the texts of a page by the id of their element, or else by its tag."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.tags, self._open = {}, [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open.append(dict(attributes).get("id") or tag)

    def handle_data(self, text):
        if self._open:
            self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + text

    def handle_endtag(self, tag):
        self._open.pop()


def data_of(page):
    return json.loads(Reader(page).texts["data"])


@pytest.mark.parametrize("observation", [make_observation(), make_text(), make_image()])
def test_page_contains_the_numbers_of_the_observation(observation):
    (example,) = data_of(pages.make_page([observation], "run"))["examples"]
    assert (example["title"], example["result"]) == (observation.title, observation.result)
    assert list(example["attention"]) == list(observation.attention)
    for kind, expected in observation.attention.items():
        described = example["attention"][kind]
        for name, array in (("weights", expected.weights), ("mean", expected.weights.mean(1))):
            np.testing.assert_allclose(unpack(described[name]), array, atol=1 / 131_070 + 1e-7)
    for name, track in observation.tracks.items():
        described = example["tracks"][name]
        assert described["labels"] == track.labels
        assert (described["words"], described["texts"]) == (track.words, track.texts)
        assert (described["picture"] is None) == (track.picture is None)
    for described, prediction in zip(example["predictions"], observation.predictions, strict=True):
        assert described["probability"] == prediction.probability
        assert list(map(tuple, described["choices"])) == prediction.choices
    beam = observation.beam
    assert (example["beam"] is None) == (beam is None)
    if beam:
        assert example["beam"]["steps"] == [[node._asdict() for node in step] for step in beam.steps]


def test_picture_is_a_png_of_the_pixels():
    observation = make_image()
    (example,) = data_of(pages.make_page([observation], "run"))["examples"]
    content = base64.b64decode(example["tracks"]["patches"]["picture"].removeprefix("data:image/png;base64,"))
    pixels = imread(io.BytesIO(content))[..., 0]
    np.testing.assert_allclose(255 * pixels, observation.tracks["patches"].picture, atol=0.51)


def test_hostile_texts_do_not_change_the_elements_of_the_page():
    hostile = make_observation(source=HOSTILE, target=HOSTILE)
    plain = Reader(pages.make_page([make_observation()], "run"))
    page = pages.make_page([hostile], "</title><script>alert(2)</script>/*data*/")
    assert Reader(page).tags == plain.tags
    assert data_of(page)["examples"][0]["tracks"]["source"]["labels"] == list(HOSTILE)
    assert Reader(page).texts["title"] == "</title><script>alert(2)</script>/*data*/"


def test_page_loads_no_other_file():
    page = pages.make_page([make_observation()], "run")
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_packed_numbers_are_exact_to_half_a_level():
    array = np.random.default_rng(0).random((2, 3, 5)) * 7.5
    packed = json.loads(json.dumps(pages.pack(array)))
    np.testing.assert_allclose(unpack(packed), array, atol=packed["scale"] / 131_070 * 1.01)
    assert (unpack(pages.pack(np.zeros((2, 0)))) == 0).all()
    assert unpack(pages.pack(np.zeros((2, 2)))).tolist() == [[0, 0], [0, 0]]


def test_corresponding_tokens_of_two_examples_are_aligned_on_every_track():
    data = data_of(pages.make_page([make_observation(), make_observation(1, WIDE, BREIT)], "run"))
    assert set(data["alignments"]) == {"0,1"}
    pairs = data["alignments"]["0,1"]
    assert pairs["source labels"] == [[i, i] for i in range(7)]
    assert pairs["source texts"] == [[i, i] for i in range(5)]
    assert [3, 3] not in pairs["predicted labels"]  # one piece corresponds to two pieces
    assert pairs["predicted texts"] == [[i, i] for i in range(5)]


def test_cross_attention_alone_has_no_rollout():
    page = pages.make_page([make_observation(kinds=("cross",))], "run")
    (example,) = data_of(page)["examples"]
    assert set(example["attention"]) == {"cross"}
    assert example["attention"]["cross"]["rollout"] is None


def test_too_large_page_is_an_error(monkeypatch):
    monkeypatch.setattr(pages, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"0\.01 MiB.* 0\.00 MiB"):
        pages.make_page([make_observation()], "run")


@pytest.fixture(scope="module")
def attention_pages():
    return load_docs_module("attention_pages")


def test_pages_of_the_site_have_the_current_scripts(attention_pages):
    assert len(attention_pages.PAGES) == 4
    for path in attention_pages.PAGES:
        page = path.read_text(encoding="utf-8")
        is_current = attention_pages.refresh(page) == page  # a difference of whole pages would be printed
        assert is_current, f"{path.name} has other scripts. Run: python docs/attention_pages.py"


def test_a_page_with_old_scripts_gets_the_current_ones(attention_pages):
    page = pages.make_page([make_observation(0)], "a <run> & more")
    assert attention_pages.refresh(page) == page
    assert attention_pages.refresh(page.replace("function draw", "function paintOld")) == page
