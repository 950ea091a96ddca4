"""Tests of `tfm visualize`: files, selections and errors."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from tests.support.observations import make_deep_decoder, make_image, make_text
from tests.support.packed import unpack
from tests.support.tiny import make_config, randomize_weights
from tfm import interpret
from tfm.commands import visualize
from tfm.commands.options import Visualize
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.interpret import observation
from tfm.io.files import only_writer
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.tasks import translation as translation_task
from tfm.testing.parameters import random_parameters
from tfm.training.run_log import METRICS_FILE
from tfm.visualize import figures
from tfm.visualize.panels import Selection
from tfm.workdir import runs

SIZES = {"embedding_features": 6, "hidden_features": 5, "attention_features": 4, "output_features": 7}


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


def draw_run(run, workdir, examples, output, **options):
    """Draws the examples of a run into `output`. Returns the paths."""
    options |= {"workdir": str(workdir), "arguments": tuple(examples), "config": None, "overrides": {}}
    return visualize.draw_run(run, Visualize(**options), str(output))


@pytest.fixture
def quick(monkeypatch):
    """Replaces the drawing of figures. Writes files without figures instead."""

    def draw(*arguments, **_):
        with open(arguments[-1], "w", encoding="utf-8") as file:
            file.write("figure")

    monkeypatch.setattr(visualize, "draw_attention", draw)
    monkeypatch.setattr(visualize, "draw_patches", draw)
    monkeypatch.setattr(visualize, "save", draw)


@pytest.mark.parametrize(
    ("fields", "search"), [({}, ""), ({"beam_size": 1}, "greedy search"), ({"samples": 8}, "samples")]
)
def test_warning_if_translation_uses_another_search(fields, search, caplog):
    visualize.warn_of_another_search(DecodingConfig(**fields))
    assert (f"tfm translate uses {search} here" in caplog.text) == bool(search)
    assert bool(caplog.text) == bool(search)


@pytest.mark.parametrize("head", [None, 1, "mean", "rollout"])
@pytest.mark.parametrize(
    ("layer", "kinds"),
    [
        (None, ["encoder", "decoder", "cross"]),
        (0, ["encoder", "decoder", "cross"]),
        (2, ["decoder", "cross"]),
    ],
)
def test_layer_is_drawn_for_every_attention_that_has_it(layer, head, kinds):
    names = ("attention-1", "attention-2")
    examples = [make_deep_decoder(seed) for seed in (0, 1)]
    drawings = visualize.list_figures(examples, Selection(layer, head))
    assert list(drawings) == [f"{name}-{kind}" for name in names for kind in kinds]


def test_lines_are_drawn_for_a_layer_that_only_the_decoder_has():
    drawings = visualize.list_line_figures([make_deep_decoder()], Selection(2, 1), "Tier")
    assert list(drawings) == ["lines-decoder", "lines-cross"]


@pytest.mark.parametrize("layer", [-1, 3])
def test_layer_that_no_attention_has_is_an_error(layer):
    message = f"--layer .*0 to 0 for encoder .*0 to 2 for decoder .*0 to 2 for cross .*got {layer}"
    with pytest.raises(UserError, match=message):
        visualize.list_figures([make_deep_decoder()], Selection(layer))
    with pytest.raises(UserError, match=message):
        visualize.list_line_figures([make_deep_decoder()], Selection(layer, 0), "Tier")
    for example, kind in ((make_text(), "decoder"), (make_image(), "encoder")):
        with pytest.raises(UserError, match=f"--layer .*0 to 1 for {kind} attention, got {layer}"):
            visualize.list_figures([example], Selection(layer))


def test_figures_have_one_writer_at_a_time(tmp_path, monkeypatch):
    """The error is raised before the run is loaded."""
    options = Visualize(workdir=str(tmp_path), arguments=(), config=None, overrides={})
    monkeypatch.setattr(Visualize, "load", None)
    with (
        only_writer(tmp_path / "figures" / visualize.PAGE, "--output"),
        pytest.raises(UserError, match=r"Another process is writing .*attention\.html"),
    ):
        visualize.main.run(options)


def test_temporary_files_of_a_killed_call_are_removed(tmp_path, monkeypatch):
    def load(_):
        raise UserError("no run")

    options = Visualize(workdir=str(tmp_path), arguments=(), config=None, overrides={})
    monkeypatch.setattr(Visualize, "load", load)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "curves.png.0123456789ab.tmp").write_text("half")
    (tmp_path / "figures" / "export.0123456789ab.tmp").mkdir()  # of a command that still runs
    with pytest.raises(UserError, match="no run"):
        visualize.main.run(options)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["export.0123456789ab.tmp"]


def test_export_is_drawn_without_curves(run, tiny_run, quick, tmp_path):
    write_bundle(run, str(tmp_path / "export"), workdir=str(tiny_run))
    loaded = runs.load(str(tmp_path / "export"))
    output = tmp_path / "out"
    paths = draw_run(loaded, tmp_path / "export", ["red dog"], output)
    assert [path.removeprefix(f"{output}/") for path in paths] == [
        *(f"attention-1-{part}.png" for part in ("encoder", "decoder", "cross")),
        "attention.html",
    ]
    assert {path.name for path in output.iterdir()} == {p.rsplit("/", 1)[1] for p in paths}


def test_long_sentence_is_an_error_before_anything_is_drawn(run, tiny_run, tmp_path):
    text = "red dog " * 400
    with pytest.raises(UserError, match=r"at most 64 tokens, got [\d,]+\. .*--max_tokens"):
        draw_run(run, tiny_run, ["red dog", text], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_attention_that_exceeds_the_memory_is_an_error(run, tiny_run, tmp_path, monkeypatch):
    for module, message in (
        (observation, r"attention of an example needs"),
        (figures, "picture of .* pixels needs"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, "host_memory", lambda: 100)
            with pytest.raises(UserError, match=message):
                draw_run(run, tiny_run, ["red dog"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def call(workdir, output, *arguments):
    """Draws into `output`. Returns the names of the files, except the lock."""
    visualize.main([f"--workdir={workdir}", f"--output={output}", *arguments])
    return {path.name for path in output.iterdir()} - {f".{visualize.PAGE}.tfm-lock"}


@pytest.mark.long
def test_sentences_may_be_arguments_or_flags(tiny_run, tmp_path, quick):
    names = call(tiny_run, tmp_path, "red dog", "--sentence=blue cat", "--format=svg", "a </script> b")
    assert names == {
        *("curves.svg", "attention.html"),
        *(f"attention-{i}-{part}.svg" for i in (1, 2, 3) for part in ("encoder", "decoder", "cross")),
    }
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    places = [
        page.index(text) for text in ('"title":"blue cat"', '"title":"red dog"', '"title":"a \\u003c/script')
    ]
    assert places == sorted(places)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "got an empty one"),
        (["--sentence="], "--sentence is empty"),
        (["a", "--layer=3"], "--layer to be from 0 to [12] for .* attention, got 3"),
        (["a", "--head=9"], "--head to be from 0 to 3"),
        (["a", "--head=all"], "--head to be a number from 0 on, mean or rollout, got 'all'"),
        (["a", "--format=gif"], "--format"),
        (["a", "--layer=-1"], "--layer to be from 0"),
        (["a", "--head=rollout", "--measure=norms"], "--head=rollout needs attention weights"),
        (["half \udcff"], "half of a character"),
    ],
)
def test_mistakes_are_errors_and_nothing_is_drawn(tiny_run, tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        call(tiny_run, tmp_path / "out", *arguments)
    drawn = list((tmp_path / "out").glob("*"))
    assert [path for path in drawn if path.suffix in (".png", ".html", ".svg")] == []


@pytest.mark.long
def test_selected_panels_are_drawn(tiny_run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(visualize, "draw_attention", lambda panels, *_: drawn.append(panels))
    call(tiny_run, tmp_path, "red dog", "--layer=0", "--head=mean", "--words")
    assert [panels.titles for panels in drawn] == [[["layer 0, mean of the heads"]]] * 3
    assert drawn[0].keys.labels == ["red", "dog", "</s>"]
    names = call(tiny_run, tmp_path, "red dog", "red cat", "--measure=norms")
    assert len(drawn) == 3 + 2 * 3
    assert "norm" in drawn[3].unit
    assert "attention.html" in names


@pytest.mark.long
@pytest.mark.parametrize(("attention", "parts"), [("additive", {"cross"}), ("none", set())])
def test_recurrent_models_have_a_page(corpus, tmp_path, quick, attention, parts):
    model = RNNConfig(**SIZES, dropout=0.0, attention=attention)
    config = make_config(corpus, peak_learning_rate=1e-3)
    task = translation_task.create(dataclasses.replace(config, model=model), str(tmp_path))
    token = np.ones((1, 1), np.int32)
    run = runs.Run(task, {"params": random_parameters(task.model, token, token)}, [0])
    paths = draw_run(run, tmp_path, ["red dog"], tmp_path / "out")
    names = [path.rpartition("/")[2] for path in paths]
    assert names == [*(f"attention-1-{part}.png" for part in parts), "attention.html"]
    text = re.search('id="data">(.*?)</script>', (tmp_path / "out" / "attention.html").read_text())[1]
    (example,) = json.loads(text)["examples"]
    assert set(example["attention"]) == parts
    assert example["beam"]
    if not parts:  # the log says that there is no attention, so there are no lines, either
        assert draw_run(run, tmp_path, ["red dog"], tmp_path / "out", lines="red") == paths
    for attention in example["attention"].values():  # no attention in the encoder and no values of heads
        assert attention["rollout"] is attention["norms"] is None


@pytest.mark.long
def test_page_has_the_numbers_that_interpret_reads(run, tiny_run, quick, tmp_path):
    draw_run(run, tiny_run, ["red dog"], tmp_path)
    text = re.search('id="data">(.*?)</script>', (tmp_path / "attention.html").read_text())[1]
    (example,) = json.loads(text)["examples"]
    task, params = run.task, run.params
    (encoded,) = task.form.encode_sources(["red dog"])
    labels = task.tokenizer.pieces(range(len(task.tokenizer)))
    target = [labels.index(label) for label in example["tracks"]["predicted"]["labels"]]
    inputs = np.array([[*encoded.ids, EOS_ID]])
    logits, reads = interpret.run(
        task.model, params, inputs, np.array([[BOS_ID, *target[:-1]]]), read="*.weights"
    )
    points = {
        "encoder": "encoder.layers_{}.self_attention.weights",
        "decoder": "decoder.layers_{}.self_attention.weights",
        "cross": "decoder.layers_{}.cross_attention.weights",
    }
    assert set(example["attention"]) == set(points)
    for kind, described in example["attention"].items():
        drawn = unpack(described["weights"])
        expected = np.stack([reads[points[kind].format(layer)][0] for layer in range(len(drawn))])
        np.testing.assert_allclose(drawn, expected, atol=1 / 131_070 + 1e-6)
    expected = jax.nn.softmax(logits[0])[np.arange(len(target)), target]
    probabilities = [prediction["probability"] for prediction in example["predictions"]]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5)


@pytest.mark.long
def test_task_without_observations_has_only_curves(regression_run, tmp_path, quick):
    assert call(regression_run, tmp_path / "out") == {"curves.png"}
    with pytest.raises(UserError, match="An example needs a task that can observe"):
        call(regression_run, tmp_path / "out", "red dog")


@pytest.mark.parametrize("content", ["", None])
def test_run_without_metrics_has_no_curves(content, regression_run, tmp_path, quick):
    """A checkpoint may exist before the first line of the log, for example at a warm start."""
    workdir = tmp_path / "run"
    shutil.copytree(regression_run, workdir)
    (workdir / METRICS_FILE).unlink()
    if content is not None:
        (workdir / METRICS_FILE).write_text(content)
    assert call(workdir, tmp_path / "out") == set()


@pytest.mark.long
def test_lines_of_a_word_in_every_sentence_are_drawn(run, tiny_run, quick, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        visualize, "draw_lines", lambda *arguments: drawn.setdefault(arguments[-1], arguments)
    )
    sentences, out = ["red dog", "the red cat"], tmp_path / "out"
    paths = draw_run(run, tiny_run, sentences, out, layer=0, head="1", lines="red")
    assert str(out / "lines-encoder.png") in paths
    assert list(drawn) == [str(out / "lines-encoder.png")]
    panels, word, title, _ = drawn[str(out / "lines-encoder.png")]
    assert [each.queries.labels[:-1] for each in panels] == [["red", "dog"], ["the", "red", "cat"]]
    assert word == "red"
    assert "layer 0, head 1" in title


@pytest.mark.parametrize(
    ("sentences", "selection", "word", "named"),
    [
        (["red dog"], {"layer": 0}, "red", "--head"),
        (["red dog"], {"head": "0"}, "red", "--layer"),
        (["red dog", "cat"], {"layer": 0, "head": "1"}, "cat", "'cat'"),
        (["red dog", "cat"], {}, "cat", "'cat'"),
    ],
)
def test_lines_require_two_examples_or_one_head_and_the_word_in_every_example(
    run, tiny_run, quick, tmp_path, sentences, selection, word, named
):
    with pytest.raises(UserError, match=named):
        draw_run(run, tiny_run, sentences, tmp_path / "out", **selection, lines=word)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("selection", "layers"), [(Selection(), {0, 1}), (Selection(1), {1}), (Selection(head=2), {0, 1})]
)
def test_lines_without_a_head_show_a_single_head(selection, layers, caplog):
    caplog.set_level("INFO")
    drawings = visualize.list_line_figures([make_text(0), make_text(1)], selection, "Tier")
    panels, _, title = drawings["lines-decoder"].args
    assert all(each.weights.shape[:2] == (1, 1) for each in panels)
    ((layer, head),) = re.findall(r"layer (\d), head (\d)", title)
    assert int(layer) in layers
    assert int(head) == 2 or selection.head is None
    assert f"decoder attention of layer {layer}, head {head}" in caplog.text


def test_pictures_that_a_model_made_are_written_in_their_size(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    shown = make_image()
    made = shown._replace(
        tracks={"drawn": observation.image_track(pixels / 127.5 - 1, 24, (4, 6))}, made="drawn"
    )
    drawings = visualize.list_pictures([shown, made])
    assert list(drawings) == ["picture-2.png"]
    drawings["picture-2.png"](str(tmp_path / "picture-2.png"))
    with Image.open(tmp_path / "picture-2.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), pixels)
    assert visualize.FIGURE_NAME.fullmatch("picture-2.png")
