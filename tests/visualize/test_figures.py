"""Tests of the content of figures and of their file formats."""

import warnings

import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support.observations import make_image, make_observation, make_scene
from tfm.errors import UserError
from tfm.interpret.observation import image_track
from tfm.visualize import figures
from tfm.visualize.figures import Axis, Panels
from tfm.visualize.panels import select
from tfm.visualize.pictures import Box, draw_images


@pytest.fixture
def saved(monkeypatch):
    """Replaces the saving of figures. Returns the list of drawn figures."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    return drawn


def make_panels(weights, queries, keys):
    """Returns `Panels` with a title for each layer and head."""
    layers, heads = weights.shape[:2]
    titles = [[f"layer {i}, head {j}" for j in range(heads)] for i in range(layers)]
    return Panels(weights, queries, keys, titles)


PAIR = make_panels(np.eye(2)[None, None], Axis("query", ["dog", "cat"]), Axis("key", ["Hund", "Katze"]))


@pytest.mark.parametrize("text", [r"a $\foo$", "It costs $5_ or $10", "$"])
def test_texts_are_not_drawn_as_formulas(text, tmp_path, monkeypatch):
    drawn = {}
    draw = matplotlib.text.Text.draw

    def record(self, renderer):
        drawn[self.get_text()] = self.get_parse_math()
        draw(self, renderer)

    monkeypatch.setattr(matplotlib.text.Text, "draw", record)
    queries, keys = Axis("", [f"query {text}", "hund"]), Axis("", [f"key {text}", "dog"])
    path = tmp_path / "attention.png"
    figures.draw_attention(make_panels(np.eye(2)[None, None], queries, keys), f"title {text}", str(path))
    assert [drawn[f"{place} {text}"] for place in ("key", "query", "title")] == [False] * 3


@pytest.mark.long
def test_figure_has_axis_titles_and_a_colour_bar(saved):
    queries, keys = figures.Axis("query: row", ["a", "b"]), figures.Axis("key: column", ["c", "d", "e"])
    weights = np.random.default_rng(0).random((6, 8, 2, 3))
    figures.draw_attention(make_panels(weights, queries, keys), "title", "path")
    (figure,) = saved
    *panels, bar = figure.axes
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key: column", "query: row")
    assert "attention weight" in bar.get_ylabel()
    assert len(panels) == 48
    np.testing.assert_array_equal(panels[8].images[0].get_array(), weights[1, 0])
    assert panels[8].get_title() == "layer 1, head 0"
    below, beside = panels[8].get_xticklabels(), panels[8].get_yticklabels()
    assert {label.get_rotation() for label in below} == {90}  # the grid leaves room for this rotation
    assert {label.get_fontsize() for label in [*below, *beside]} == {figures.LABEL_SIZE}


def test_panels_and_labels_do_not_overlap(saved):
    labels = ["▁longest_piece"] * 40
    axis = Axis("", labels)
    figures.draw_attention(make_panels(np.zeros((2, 3, 40, 40)), axis, axis), "title", "path")
    (figure,) = saved
    width, height = figure.get_size_inches()
    boxes = [axes.get_position() for axes in figure.axes]
    cell = boxes[0].width * width / 40 * 72
    assert cell > figures.LABEL_SIZE  # in points: a label fits into its cell
    for i, box in enumerate(boxes):
        assert 0 < box.x0 < box.x1 < 1
        assert 0 < box.y0 < box.y1 < 1
        for other in boxes[:i]:
            apart = box.x0 >= other.x1 or other.x0 >= box.x1
            assert apart or box.y0 >= other.y1 or other.y0 >= box.y1
    longest = max(map(len, labels)) * figures.CHARACTER
    assert (boxes[0].y0 - boxes[3].y1) * height > longest
    assert boxes[0].x0 * width > longest


def test_image_is_tinted_by_the_attention_of_the_class_token(saved):
    observation = make_image()
    panels = select(observation, "encoder")
    figures.draw_patches(panels, observation.tracks["patches"], "title", "path")
    *axes, bar = saved[0].axes
    assert len(axes) == 2 * 3
    assert "attention weight" in bar.get_ylabel()
    picture, tint = axes[4].images
    np.testing.assert_array_equal(picture.get_array(), observation.tracks["patches"].picture)
    weights = observation.attention["encoder"].weights
    np.testing.assert_array_equal(tint.get_array(), weights[1, 1, 0, 1:].reshape(4, 4))
    assert tint.get_clim() == (0, weights[:, :, 0, 1:].max())
    assert "class token" in saved[0].get_supxlabel()
    without = image_track(np.zeros((8, 8, 1)), 16)
    patches = panels._replace(weights=weights[..., 1:, 1:], queries=Axis("", without.labels))
    figures.draw_patches(patches, without, "", "path")
    np.testing.assert_allclose(saved[1].axes[0].images[1].get_array().ravel(), weights[0, 0, 1:, 1:].mean(0))


def test_image_is_tinted_by_the_attention_of_the_first_object_query(saved):
    scene = make_scene()
    figures.draw_patches(select(scene, "cross"), scene.tracks["places"], "title", "path")
    weights = scene.attention["cross"].weights
    np.testing.assert_array_equal(saved[0].axes[0].images[1].get_array(), weights[0, 0, 0, 1:].reshape(4, 4))
    assert "query 1: seven" in saved[0].get_supxlabel()


def test_drawing_patches_of_a_text_is_an_error():
    observation = make_observation()
    with pytest.raises(ValueError, match="image"):
        figures.draw_patches(select(observation, "encoder"), observation.tracks["source"], "", "a.png")


@pytest.mark.parametrize(("memory", "tokens", "message"), [(100, 2, "needs"), (10**15, 4000, "65,535")])
def test_figure_that_is_too_large_is_an_error(monkeypatch, memory, tokens, message):
    monkeypatch.setattr(figures, "host_memory", lambda: memory)
    axis = Axis("", ["a"] * tokens)
    with pytest.raises(UserError, match=message):
        figures.plan_grid(make_panels(np.zeros((1, 1, 1, 1)), axis, axis), "title")


@pytest.mark.long
@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_file_extension_determines_the_format(tmp_path, ending, begins):
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        figures.draw_attention(PAIR, "title", str(path))
        assert path.read_bytes().startswith(begins)
    assert paths[0].read_bytes() == paths[1].read_bytes()  # no date and no random names
    if ending == "svg":
        assert ">Katze<" in paths[0].read_text()  # text, not outlines


def test_unknown_format_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"\.png, \.svg, \.pdf.*curves\.gif"):
        figures.save(Figure(), str(tmp_path / "curves.gif"))


@pytest.mark.parametrize("title", ["The animal didn't cross the street.", "word " * 400, "x" * 999])
def test_long_title_is_wrapped(saved, title):
    figures.draw_attention(PAIR, title, "path")
    text = saved[0].texts[0].get_text()
    lines = text.splitlines()
    assert len(lines) <= figures.MOST_LINES
    assert len(title) > 99 or text.replace("\n", " ") == title
    inches, height = saved[0].get_size_inches()
    assert max(map(len, lines)) * figures.TITLE_CHARACTER < inches
    (panel, _) = saved[0].axes
    assert panel.get_position().y1 * height < height - 0.1 - len(lines) * 0.2  # the panel is below the title


def test_characters_without_a_font_are_named_once(tmp_path, caplog):
    for name in ("a.png", "b.png"):
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0.5, "a\U00012000")  # a cuneiform sign
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figures.save(figure, str(tmp_path / name))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "\U00012000" in caplog.text


def test_folder_of_a_figure_is_created(tmp_path):
    figures.save(Figure(figsize=(1, 1)), str(tmp_path / "figures" / "a.png"))
    assert (tmp_path / "figures" / "a.png").exists()


def test_dollar_signs_of_classes_are_not_drawn_as_formulas(tmp_path):
    path = tmp_path / "boxes.svg"  # has texts as text
    draw_images(np.zeros((1, 4, 4, 3)), ["title"], str(path), [[Box((0, 0, 1, 1), "$a_b_c$", 0)]])
    assert "$a_b_c$" in path.read_text()
