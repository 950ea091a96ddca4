"""Tests that the docs say what the stored attention page of the quick start contains.

The page docs/figures/attention.html has the attention of a run of `make quickstart`. Nothing is trained here.
"""

import base64
import json
import re

import numpy as np
import pytest

from benchmarks.readme_example import read_example
from tests.support.paths import ROOT
from tfm.interpret.observation import AttentionMap, Observation, Track
from tfm.visualize.lines import find_word, select_differing_head
from tfm.visualize.panels import Selection, select

PAGE = ROOT / "docs" / "figures" / "attention.html"
PRONOUNS = "es,sie"
SHOWN = re.compile(r'(\d+) per cent (?:is )?on "(\w+)"')


def unpack(packed):
    """Returns the array that `tfm.visualize.page.pack` packed."""
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<u2")
    return (levels * (packed["scale"] / 65535)).reshape(packed["shape"]).astype(np.float32)


@pytest.fixture(scope="module")
def observations():
    """Returns the cross-attention of the examples of the page."""
    text = PAGE.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    found = []
    for example in data["examples"]:
        cross = example["attention"]["cross"]
        attention = {"cross": AttentionMap(cross["queries"], cross["keys"], unpack(cross["weights"]))}
        tracks = {name: Track(**track) for name, track in example["tracks"].items()}
        found.append(Observation(example["title"], example["result"], tracks, attention, []))
    return found


@pytest.fixture(scope="module")
def heads(observations):
    """Returns the panels of the head that `tfm visualize --lines=es,sie` draws, for each example."""
    panels = [select(each, "cross", Selection(words=True)) for each in observations]
    return select_differing_head(panels, PRONOUNS)


def test_experiment_shows_the_translations_of_the_stored_run(observations):
    page = (ROOT / "docs" / "pronoun_experiment.md").read_text(encoding="utf-8").replace("**", "")
    assert [each.title.split()[-1] for each in observations] == ["tired.", "wide."]
    assert all(each.result in page for each in observations)


def test_output_in_the_readme_begins_with_the_translation_of_the_stored_run(observations):
    _, output = read_example()
    assert output.splitlines()[0] == f"0 0 {observations[0].result}"


def test_experiment_and_picture_show_the_same_head(heads):
    page = (ROOT / "docs" / "pronoun_experiment.md").read_text(encoding="utf-8")
    layer, head = map(int, re.findall(r"\d", heads[0].titles[0][0]))
    assert f"layer {layer}, head {head}" in page


def test_numbers_below_the_picture_are_the_weights_of_the_stored_run(heads):
    text = (ROOT / "docs" / "visualize.md").read_text(encoding="utf-8")
    (caption,) = re.findall(r"!\[([^\]]*)\]\(\S*pronoun_lines\.png\)", text)
    weights = {}
    for example in heads:
        row = example.weights[0, 0, find_word(example.queries, PRONOUNS)]
        for label, weight in zip(example.keys.labels, row, strict=True):
            weights.setdefault(label.strip("."), []).append(round(100 * float(weight)))
    shown = SHOWN.findall(caption)
    assert len(shown) == 2
    assert all(int(number) in weights[word] for number, word in shown), weights
    assert 'For "es", all of its attention is on "animal".' in caption
    assert weights["animal"][0] == 100
