"""Tests of drawn pictures: their tokens, the best of several samples, their texts and their figures."""

import types

import numpy as np
import pytest

from tests.tasks import cases
from tfm.decoding.config import GenerationConfig
from tfm.systems.dalle import drawing
from tfm.systems.dalle.captions import parse_text
from tfm.systems.dalle.drawing import (
    continue_codes,
    describe_drawings,
    make_figures,
    make_inputs,
    observe_drawing,
)

CAPTIONS = ["red three left of blue seven", "green eight above yellow one"]
TEXTS = np.stack([parse_text(caption) for caption in CAPTIONS])


def test_a_row_begins_with_bos_and_codes_have_the_ids_after_those_of_words():
    codes = np.array([[0, 6], [3, 1]])
    words = cases.DALLE.text_vocabulary
    expected = [[1, *text, *(words + row)] for text, row in zip(TEXTS, codes, strict=True)]
    np.testing.assert_array_equal(make_inputs(TEXTS, codes, cases.DALLE), expected)


@pytest.mark.parametrize("given", [0, 8])
def test_codes_continue_those_of_the_upper_part_with_the_most_probable_sample(monkeypatch, given):
    words, calls = cases.DALLE.text_vocabulary, []

    def generate(model, params, prefixes, decoding):
        calls.append((prefixes, decoding.max_tokens, decoding.samples))
        scores = (-3.0, -1.0, -2.0)
        return [
            [
                types.SimpleNamespace(score=score, ids=[*[words + sample] * (16 - given), 2])
                for sample, score in enumerate(scores)
            ]
            for _ in prefixes
        ]

    monkeypatch.setattr(drawing, "generate_ids", generate)
    first = np.arange(2 * given).reshape(2, given) % 7
    model = types.SimpleNamespace(config=cases.DALLE)
    codes = continue_codes(model, None, TEXTS, first, GenerationConfig(samples=3))
    np.testing.assert_array_equal(codes, np.pad(first, ((0, 0), (0, 16 - given)), constant_values=1))
    prefixes = [[*text, *(words + row)] for text, row in zip(TEXTS.tolist(), first, strict=True)]
    assert calls == [(prefixes, 16 - given, 3)]


def test_descriptions_say_which_captions_are_satisfied():
    assert describe_drawings(CAPTIONS, np.array([False, True])) == [
        {"caption": CAPTIONS[0], "satisfied": "no"},
        {"caption": CAPTIONS[1], "satisfied": "yes"},
    ]


def test_figures_show_drawn_pictures_and_completed_ones_below_the_originals():
    rows = describe_drawings(CAPTIONS, np.array([False, True]))
    images, real, completed = (np.full((2, 16, 16, 3), value) for value in (0.1, 0.2, 0.3))
    figures = make_figures(rows, images, real, completed)
    shown, titles = figures["drawn"].args
    assert (shown is images, [title.replace("\n", " ") for title in titles]) == (True, CAPTIONS)
    assert max(len(line) for title in titles for line in title.split("\n")) <= 20
    shown, titles = figures["completed"].args
    np.testing.assert_array_equal(shown, np.concatenate([real, completed]))
    assert titles == ["original", "original", "completed", "completed"]
    assert figures["completed"].keywords["columns"] == 2


@pytest.mark.parametrize(
    ("is_right", "result"),
    [(True, "the picture is right"), (False, "the picture is wrong"), (None, "the picture is drawn")],
)
def test_observation_says_whether_the_picture_is_right(is_right, result):
    weights = np.zeros((1, 2, 22, 22))
    observation = observe_drawing(
        CAPTIONS[0], CAPTIONS[0].split()[:5], np.zeros((16, 16, 3)), weights, is_right
    )
    assert (observation.title, observation.result) == (CAPTIONS[0], result)
    assert observation.tracks[observation.made].picture.shape == (16, 16, 3)
