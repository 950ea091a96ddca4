"""The data of the page to explore, and that nothing in them leaves their place."""

import html.parser
import json
import re

import numpy as np
import pytest

from tests.support.translations import HOSTILE, SOURCE, TARGET, make_translated
from tfm.errors import UserError
from tfm.visualize import explorer
from tfm.visualize.translation import Extension


class Reader(html.parser.HTMLParser):
    """The texts of the elements of a page, by tag; of those with an id, by id."""

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


def test_the_page_has_the_numbers():
    translated = make_translated()
    data = data_of(explorer.make_page([translated], "run"))
    (sentence,) = data["sentences"]
    assert sentence["text"] == "The animal is tired."
    assert set(sentence["parts"]) == {"encoder", "decoder", "cross"}
    for part, weights in translated.weights.items():
        found = explorer.unpack(sentence["parts"][part]["weights"])
        np.testing.assert_allclose(found, weights, atol=1 / 131_070 + 1e-7)
        means = explorer.unpack(sentence["parts"][part]["mean"])
        np.testing.assert_allclose(means, weights.mean(1), atol=1 / 131_070 + 1e-7)
    assert sentence["sides"]["source"] == {
        "pieces": list(SOURCE),
        "words": [0, 1, 1, 2, 3, 3, 4],
        "texts": ["The", "animal", "is", "tired.", "</s>"],
    }
    assert sentence["sides"]["predicted"]["pieces"] == list(TARGET)
    assert sentence["sides"]["read"]["pieces"] == ["<s>", *TARGET[:-1]]
    np.testing.assert_allclose(sentence["probabilities"], translated.probabilities, atol=1e-5)
    assert sentence["finished"][0] == [list(TARGET), -0.25]


def test_no_token_leaves_its_place():
    translated = make_translated(source=HOSTILE, target=HOSTILE)
    plain = Reader(explorer.make_page([make_translated()], "run"))
    page = explorer.make_page([translated], "</title><script>alert(2)</script>/*data*/")
    assert Reader(page).tags == plain.tags
    assert data_of(page)["sentences"][0]["sides"]["source"]["pieces"] == list(HOSTILE)
    assert Reader(page).texts["title"] == "</title><script>alert(2)</script>/*data*/"


def test_the_page_names_no_other_file():
    page = explorer.make_page([make_translated()], "run")
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_packing_is_exact_to_half_a_level():
    array = np.random.default_rng(0).random((2, 3, 5)) * 7.5
    packed = json.loads(json.dumps(explorer.pack(array)))
    np.testing.assert_allclose(explorer.unpack(packed), array, atol=packed["scale"] / 131_070 * 1.01)
    assert (explorer.unpack(explorer.pack(np.zeros((2, 0)))) == 0).all()
    assert explorer.unpack(explorer.pack(np.zeros((2, 2)))).tolist() == [[0, 0], [0, 0]]


def test_beam_probabilities_are_of_the_last_token():
    steps = [
        [Extension(1, -0.5, None, 0, True), Extension(2, -1.5, None, 0, False)],
        [
            Extension(3, -1.75, None, 1, False),
            Extension(4, -0.75, None, 0, True),
            Extension(9, None, -0.4, 1, False),
        ],
    ]
    described = explorer.describe_beam(steps, lambda ids: [f"piece {i}" for i in ids])
    found = [[node["probability"] for node in nodes] for nodes in described]
    expected = [[np.exp(-0.5), np.exp(-1.5)], [np.exp(-0.25), np.exp(-0.25), None]]
    assert found == [[None if p is None else round(float(p), 5) for p in nodes] for nodes in expected]
    assert [node["parent"] for node in described[1]] == [1, 0, 1]
    assert described[1][2]["piece"] == "piece 9"
    assert described[1][2]["score"] == -0.4
    assert [[node["best"] for node in nodes] for nodes in described] == [[True, False], [False, True, False]]


def test_sentences_correspond_on_every_side():
    wide = make_translated(1, [*SOURCE[:4], "▁wide", *SOURCE[5:]], [*TARGET[:3], "▁breit", *TARGET[5:]])
    data = data_of(explorer.make_page([make_translated(), wide], "run"))
    assert set(data["alignments"]) == {"0,1"}
    pairs = data["alignments"]["0,1"]
    assert pairs["source pieces"] == [[i, i] for i in range(7)]
    assert pairs["source texts"] == [[i, i] for i in range(5)]
    assert [3, 3] not in pairs["predicted pieces"]  # one piece here are two there
    assert pairs["predicted texts"] == [[i, i] for i in range(5)]


def test_cross_attention_alone_has_no_rollout():
    (sentence,) = data_of(explorer.make_page([make_translated(parts=("cross",))], "run"))["sentences"]
    assert set(sentence["parts"]) == {"cross"}
    assert "rollout" not in sentence["parts"]["cross"]


def test_a_page_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(explorer, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"The page would have .*: shorten the sentences"):
        explorer.make_page([make_translated()], "run")


@pytest.mark.long
def test_sixty_tokens_take_under_five_megabytes():
    pieces = [*(f"▁w{i}" for i in range(59)), "</s>"]
    page = explorer.make_page([make_translated(0, pieces, pieces, layers=6, heads=8)], "run")
    assert len(page) < 5e6
