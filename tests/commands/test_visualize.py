"""Pictures of attention and of curves: their content, and the files of a call."""

import dataclasses
import json
import types

import matplotlib.axes
import matplotlib.figure
import matplotlib.text
import numpy as np
import pytest

from tests.helpers.tiny import randomize_weights
from tfm.commands import visualize
from tfm.errors import UserError
from tfm.export.bundle import write_bundle
from tfm.runtime.files import only_writer
from tfm.visualize import figures
from tfm.workdir import runs


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture
def saved(monkeypatch):
    """The figures that are drawn, in place of their files."""
    drawn = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    return drawn


@pytest.fixture
def quick(monkeypatch):
    """Figures without content, as files."""

    def draw(*arguments, **_):
        with open(arguments[-1], "w", encoding="utf-8") as file:
            file.write("figure")

    monkeypatch.setattr(visualize, "draw_attention", draw)
    monkeypatch.setattr(visualize, "draw_curves", draw)


@pytest.mark.parametrize("text", [r"a $\foo$", "It costs $5_ or $10", "$"])
def test_a_text_is_not_drawn_as_a_formula(text, tmp_path, monkeypatch):
    drawn = {}
    draw = matplotlib.text.Text.draw

    def noted(self, renderer):
        drawn[self.get_text()] = self.get_parse_math()
        draw(self, renderer)

    monkeypatch.setattr(matplotlib.text.Text, "draw", noted)
    labels = [f"key {text}", "dog"], [f"query {text}", "hund"]
    path = tmp_path / "attention.png"
    visualize.draw_attention(np.eye(2)[None, None], *labels[::-1], f"title {text}", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [drawn[f"{place} {text}"] for place in ("key", "query", "title")] == [False] * 3


def test_rows_are_the_pieces_predicted(run):
    attention = visualize.attention_maps(run.task, run.params, "red dog")
    assert attention.read[0] == "<s>"
    assert attention.read[1:] == attention.predicted[:-1]
    for part, (queries, keys) in visualize.make_axes(attention).items():
        assert attention.weights[part].shape[2:] == (len(queries.labels), len(keys.labels))
        assert ("predicted" in queries.title) == (part != "encoder")
    queries, keys = visualize.make_axes(attention)["decoder"]
    assert queries.labels[1] == f"{attention.predicted[1]} ({attention.read[1]})"
    assert keys.labels == attention.read


def test_a_figure_names_axes_and_has_a_colour_bar(saved):
    queries, keys = figures.Axis("query: row", ["a", "b"]), figures.Axis("key: column", ["c", "d", "e"])
    weights = np.random.default_rng(0).random((6, 8, 2, 3))
    figures.draw_attention(weights, queries, keys, "title", "path")
    (figure,) = saved
    *panels, bar = figure.axes
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key: column", "query: row")
    assert "attention weight" in bar.get_ylabel()
    assert len(panels) == 48
    np.testing.assert_array_equal(panels[8].images[0].get_array(), weights[1, 0])
    assert panels[8].get_title() == "layer 2, head 1"


def test_panels_and_labels_do_not_overlap():
    labels = ["▁longest_piece"] * 40
    grid = figures._Grid.of(6, 8, labels, labels)
    width, height = grid.size
    cell = grid.panel_size[0] / 40 * 72
    assert cell > figures.LABEL_SIZE  # points: each label has a cell
    boxes = [grid.panel(layer, head) for layer in range(6) for head in range(8)] + [grid.bar()]
    for i, (left, bottom, across, up) in enumerate(boxes):
        assert 0 < left < left + across < 1
        assert 0 < bottom < bottom + up < 1
        for other_left, other_bottom, other_across, other_up in boxes[:i]:
            apart = left >= other_left + other_across or other_left >= left + across
            assert apart or bottom >= other_bottom + other_up or other_bottom >= bottom + up
    upper, lower = grid.panel(0, 0), grid.panel(1, 0)
    between = (upper[1] - lower[1] - lower[3]) * height
    assert between > max(map(len, labels)) * figures.CHARACTER
    assert grid.panel(0, 0)[0] * width > max(map(len, labels)) * figures.CHARACTER


def test_curves_name_axes_with_units(saved):
    rows = [{"step": step, "train/loss": 5.0, "train/nll": 4.0, "validation/bleu": 3.0} for step in (1, 2)]
    figures.draw_curves(rows, "path")
    axes = saved[0].axes
    assert all("step" in each.get_xlabel() for each in axes)
    assert [each.get_ylabel().split(" ")[0] for each in axes] == ["cross-entropy", "BLEU", "learning"]
    assert len({line.get_linestyle() for line in axes[0].lines}) == 2  # told apart without colour
    assert len({line.get_color() for line in axes[0].lines}) == 2


def test_figures_of_an_earlier_call_are_removed(run, tiny_run, quick, tmp_path):
    (tmp_path / "mine.png").write_text("mine")
    (tmp_path / "attention-9-cross.png").write_text("of nobody's list")

    def draw(*sentences):
        visualize.draw_run(run, str(tiny_run), sentences, str(tmp_path))
        names = {path.name for path in tmp_path.iterdir()}
        assert {"mine.png", "attention-9-cross.png", "figures.json", "curves.png"} <= names
        return {name.split("-")[1] for name in names if name.startswith("attention")} - {"9"}

    assert draw("red dog", "cat") == {"1", "2"}
    assert draw("red dog") == {"1"}


def test_figures_have_one_writer_at_a_time(tmp_path, monkeypatch):
    """Refused before the run is loaded: there is none."""
    flags = types.SimpleNamespace(sentence=["a"], workdir=str(tmp_path), output="", max_tokens=9)
    monkeypatch.setattr(visualize.cli, "parse", lambda *_: (flags, []))
    with (
        only_writer(tmp_path / "figures" / "figures.json", "--output"),
        pytest.raises(UserError, match=r"Another process is writing .*figures\.json"),
    ):
        visualize.main()


def test_what_a_killed_call_left_is_removed(tmp_path, monkeypatch):
    flags = types.SimpleNamespace(sentence=["a"], workdir=str(tmp_path), output="", max_tokens=9)
    monkeypatch.setattr(visualize.cli, "parse", lambda *_: (flags, []))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "curves.png.0123456789ab.tmp").write_text("half")
    with pytest.raises(AttributeError):  # of the flags, that have no checkpoint
        visualize.main()
    assert list((tmp_path / "figures").iterdir()) == []


def test_a_list_of_figures_removes_nothing_else(run, tiny_run, quick, tmp_path):
    (tmp_path / "out").mkdir()
    for name in ("../mine", "mine.png", 5, "attention-1-cross.png/../../mine"):
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "out" / "mine.png").write_text("mine")
        (tmp_path / "out" / "figures.json").write_text(json.dumps([name]))
        visualize.draw_run(run, str(tiny_run), ["cat"], str(tmp_path / "out"))
        assert (tmp_path / "mine").exists()
        assert (tmp_path / "out" / "mine.png").exists()


def test_an_export_is_drawn_without_curves(run, tiny_run, quick, tmp_path):
    write_bundle(run, str(tmp_path / "export"), workdir=str(tiny_run))
    loaded = runs.load(str(tmp_path / "export"))
    output = tmp_path / "out"
    paths = visualize.draw_run(loaded, str(tmp_path / "export"), ["red dog"], str(output))
    assert [path.removeprefix(f"{output}/") for path in paths] == [
        f"attention-1-{part}.png" for part in ("encoder", "decoder", "cross")
    ]
    assert {path.name for path in output.iterdir()} == {*(p.rsplit("/", 1)[1] for p in paths), "figures.json"}


def test_a_long_sentence_is_refused_first(run, tiny_run, tmp_path):
    text = "red dog " * 400
    message = r"has [\d,]+ tokens and at most 64 are drawn: .*--max_tokens; .* about [\d.]+ [MG]iB"
    with pytest.raises(UserError, match=message):
        visualize.draw_run(run, str(tiny_run), ["red dog", text], str(tmp_path / "out"))
    with pytest.raises(UserError, match=r"pixels and at most 65,535 on a side"):
        visualize.draw_run(run, str(tiny_run), [text], str(tmp_path / "out"), max_tokens=10**6)
    assert list(tmp_path.iterdir()) == []


def test_attention_must_fit_into_memory(run, tiny_run, tmp_path, monkeypatch):
    for module, message in (
        (visualize, r"attention of \d+ tokens needs"),
        (figures, "picture of .* pixels needs"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, "host_memory", lambda: 100)
            with pytest.raises(UserError, match=message):
                visualize.draw_run(run, str(tiny_run), ["red dog"], str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_long_translations_are_truncated(run, caplog):
    decoding = dataclasses.replace(run.task.config.decoding, min_length=9)
    task = type(run.task)(dataclasses.replace(run.task.config, decoding=decoding), run.task.tokenizer)
    with caplog.at_level("WARNING", "tfm"):
        attention = visualize.attention_maps(task, run.params, "red dog", max_tokens=6)
    assert "Drawing the first 6 of the" in caplog.text
    assert len(attention.read) == attention.weights["cross"].shape[2] == 6
