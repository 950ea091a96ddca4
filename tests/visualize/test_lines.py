"""Tests of figures that draw the attention of a word as lines."""

import numpy as np
import pytest

from tfm.visualize import lines
from tfm.visualize.figures import Axis, Panels

WORDS = ["It", "rains", "because", "it", "must."]


@pytest.fixture
def saved(monkeypatch):
    """Replaces the saving of figures. Returns the list of drawn figures."""
    drawn = []
    monkeypatch.setattr(lines, "save", lambda figure, path, dpi: drawn.append(figure))
    return drawn


def make_panels(words, weights):
    """Returns `Panels` of one layer and head for attention weights [L, M]."""
    return Panels(np.asarray(weights)[None, None], Axis("", words), Axis("", words), [["layer 0, head 0"]])


@pytest.mark.parametrize(
    ("word", "index"),
    [("it", 3), ("IT", 3), ("rains", 1), ("must", 4), ("snows, rains", 1), ("mus", None), ("", None)],
)
def test_word_is_found_at_its_last_place_and_without_punctuation(word, index):
    assert lines.find_word(Axis("", WORDS), word) == index


@pytest.mark.parametrize("label", ["„Sie“", "«Sie»,", "(sie)"])
def test_punctuation_of_any_script_does_not_count(label):
    assert lines.find_word(Axis("", [label]), "sie") == 0


@pytest.mark.parametrize("words", ["it,", ",it", "it,, rains", "it, "])
def test_an_empty_word_finds_no_punctuation(words):
    assert lines.find_word(Axis("", ["It", "is", "late", "."]), words) == 0


@pytest.mark.parametrize("words", ["", ",", " "])
def test_without_a_word_nothing_is_found(words):
    assert lines.find_word(Axis("", ["It", "."]), words) is None


@pytest.mark.parametrize(("word", "index"), [("s", 1), ("</s>", 2), ("pad", None)])
def test_special_tokens_keep_their_brackets(word, index):
    assert lines.find_word(Axis("", ["It", "'s", "</s>", "<pad>"]), word) == index


def test_lines_lead_from_the_word_to_each_key_with_the_weight_as_width(saved):
    weights = np.random.default_rng(0).dirichlet(np.ones(5), 5)
    lines.draw_lines([make_panels(WORDS, weights)], "rains", "title", "path")
    (axes,) = saved[0].axes
    assert [line.get_ydata()[0] for line in axes.lines] == [1] * 5
    assert [line.get_ydata()[1] for line in axes.lines] == [0, 1, 2, 3, 4]
    widths = np.array([line.get_linewidth() for line in axes.lines])
    np.testing.assert_allclose(widths / lines.MAX_LINE_WIDTH, weights[1])


def test_weights_of_at_least_5_per_cent_are_printed(saved):
    weights = np.tile([0.049, 0.05, 0.2, 0.7, 0.001], (5, 1))
    lines.draw_lines([make_panels(WORDS, weights)], "it", "title", "path")
    (axes,) = saved[0].axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == [*WORDS, "It", "rains   5%", "because   20%", "it   70%", "must."]


def test_sentences_of_different_lengths_are_drawn_next_to_each_other(saved):
    panels = [make_panels(WORDS[: len(each)], each) for each in (np.eye(4), np.eye(5))]
    lines.draw_lines(panels, "it", "title", "path")
    left, right = (axes.get_position() for axes in saved[0].axes)
    assert left.x1 <= right.x0
    assert [len(axes.lines) for axes in saved[0].axes] == [4, 5]


def test_sentence_without_the_word_is_an_error(saved):
    with pytest.raises(ValueError, match="'snow'"):
        lines.draw_lines([make_panels(WORDS, np.eye(5))], "snow", "title", "path")


def test_head_that_differs_most_is_selected():
    """The second sentence has another first word and begins with one word more."""
    longer = ["So", "she", *WORDS[1:]]
    titles = [[f"layer {layer}, head {head}" for head in range(2)] for layer in range(3)]
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (3, 2, 5))
    moved = np.pad(weights, ((0, 0), (0, 0), (1, 0), (1, 0)))
    moved[2, 1, 4] = moved[2, 1, 4, [0, 1, 5, 4, 3, 2]]
    moved[0, 0, 2] = 0  # the attention of another word
    sentences = [
        Panels(array, Axis("", words), Axis("", words), titles)
        for array, words in ((weights, WORDS), (moved, longer))
    ]
    first, second = lines.select_differing_head(sentences, "it")
    assert first.titles == second.titles == [["layer 2, head 1"]]
    np.testing.assert_array_equal(first.weights, weights[2:, 1:])
    np.testing.assert_array_equal(second.weights, moved[2:, 1:])
