"""Tests of `tfm plot`: every kind of plot, and errors."""

import copy
import dataclasses
import functools
import re
import types

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support import eight_gaussians
from tests.support.commands import run_command
from tfm.commands import plot
from tfm.config import save
from tfm.errors import UserError
from tfm.schedules import linear_decay
from tfm.training.run_log import read_metrics
from tfm.training.samples import SamplesWriter
from tfm.training.task import Samples
from tfm.visualize import figures
from tfm.workdir import runs


@pytest.fixture
def drawn(monkeypatch):
    """Replaces the saving of figures. Returns the list of (figure, path)."""
    found = []
    monkeypatch.setattr(plot, "save", lambda figure, path, _: found.append((figure, path)))
    return found


def draw(drawn, *arguments):
    plot.main([str(each) for each in arguments])
    return drawn[-1][0].axes


def points(axes, line=0):
    return axes.lines[line].get_xydata()


def test_curves_are_the_default_kind(drawn, tiny_run):
    rows = read_metrics(str(tiny_run))
    for arguments in ([tiny_run], ["curves", tiny_run]):
        axes = draw(drawn, *arguments)[0]
        expected = [(row["step"], row["train/nll"]) for row in rows if "train/nll" in row]
        np.testing.assert_array_equal(points(axes), expected)
    assert [path for _, path in drawn] == ["curves.png", "curves.png"]
    (axes,) = draw(drawn, tiny_run, "--metric=train/learning_rate", "--output=a.svg")
    assert axes.get_ylabel() == "train learning rate"
    assert drawn[-1][1] == "a.svg"


def test_positions_have_the_requested_size(drawn):
    axes = draw(drawn, "positions", "--length=7", "--d_model=6")
    assert axes[0].images[0].get_array().shape == (7, 6)
    # At distance 0, each of the three frequencies contributes sin^2 + cos^2 = 1.
    np.testing.assert_allclose(points(axes[1] if axes[1].lines else axes[2])[0], [0, 3])


@pytest.mark.long
def test_masks_remove_the_masked_weights(drawn):
    axes = [each for each in draw(drawn, "masks") if each.images and each.get_label() != "<colorbar>"]
    before, after = axes[:4], axes[4:]
    assert [each.get_title().split("\n")[0] for each in before] == [
        "padding",
        "causal",
        "packed",
        "packed, causal",
    ]
    kept = [~np.ma.getmaskarray(np.ma.masked_invalid(each.images[0].get_array())) for each in before]
    assert [mask.sum() for mask in kept] == [8 * 6, 8 * 9 // 2, 2 * 9, 2 * 6]
    for each, mask in zip(after, kept, strict=True):
        weights = np.asarray(each.images[0].get_array())
        assert ((weights > 0) == mask).all()
        np.testing.assert_allclose(weights.sum(-1), mask.any(-1), atol=1e-6)


def test_schedules_have_the_values_of_the_flags(drawn):
    (axes,) = draw(drawn, "schedules", "--d_model=64", "--warmup_steps=10", "--steps=50")
    peak = (64 * 10) ** -0.5
    assert len(axes.lines) == 4
    expected = np.asarray(linear_decay(peak, 10, 50)(np.arange(50)))
    np.testing.assert_allclose(points(axes, 1), np.stack([np.arange(1, 51), expected], 1))
    for line in range(4):
        np.testing.assert_allclose(points(axes, line)[9, 1], peak, rtol=1e-6)


@pytest.mark.long
def test_calibration_is_between_0_and_1(drawn, tiny_run):
    (axes,) = draw(drawn, "calibration", tiny_run, "--sentences=5")
    assert len(axes.lines) == 2  # the diagonal and the curve
    confidence, accuracy = points(axes, 1).T
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert ((accuracy >= 0) & (accuracy <= 1)).all()


@pytest.mark.long
def test_calibration_of_a_split_without_text_is_an_error(tiny_run, tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"blank.{language}").write_text("")
    config = plot.runs.load(str(tiny_run)).task.config
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, directory=str(tmp_path)))
    with pytest.raises(UserError, match=r"blank\.en is empty"):
        plot.encode_pairs(types.SimpleNamespace(config=config), "blank", 5)


def test_folder_given_in_two_ways_is_an_error(tiny_run):
    with pytest.raises(UserError, match="different folders"):
        plot.main(["curves", str(tiny_run), f"{tiny_run}/"])


@pytest.mark.long
def test_calibration_of_nan_parameters_is_an_error(tiny_run, monkeypatch):
    run = plot.runs.load(str(tiny_run))
    broken = run._replace(variables={"params": jax.tree.map(lambda x: x * np.nan, run.params)})
    monkeypatch.setattr(plot.runs, "load", lambda *_, **__: broken)
    with pytest.raises(UserError, match=r"got NaN.*damaged"):
        plot.draw_calibration(types.SimpleNamespace(checkpoint="", split="", sentences=3), [str(tiny_run)])


@pytest.mark.parametrize(("kind", "computes"), [("masks", True), ("curves", False)])
def test_plots_that_compute_check_the_device_first(kind, computes, drawn, tiny_run, monkeypatch):
    prepared = []
    monkeypatch.setattr(plot, "prepare_device", lambda: prepared.append(kind))
    draw(drawn, kind, *[] if computes else [tiny_run])
    assert prepared == [kind] * computes


def test_lengths_have_scores_of_groups_of_sentences(drawn, tiny_run, tmp_path, monkeypatch):
    score, calls = plot.measures.score_by_length, []
    monkeypatch.setattr(
        plot.measures, "score_by_length", lambda *texts: calls.append(texts[:3]) or score(*texts)
    )
    config = runs.open_folder(str(tiny_run)).config
    save(config, runs.config_path(str(tmp_path)))
    with pytest.raises(UserError, match=r"tfm evaluate --workdir="):
        plot.main(["lengths", str(tmp_path)])
    references = (tiny_run.parent / "corpus" / "test.de").read_text().splitlines()
    halves = [line if len(line.split()) > 4 else "falsch" for line in references]
    (tmp_path / "test.de.hypotheses").write_text("".join(f"{line}\n" for line in halves))
    (axes,) = draw(drawn, "lengths", tmp_path)
    words, scores = points(axes).T
    assert (np.diff(words) > 0).all()
    assert words[0] < 4
    assert scores[0] < 1 < 99 < scores[-1]
    sources = (tiny_run.parent / "corpus" / "test.en").read_text().splitlines()
    assert [list(map(list, texts)) for texts in calls] == [[sources, halves, references]]


@pytest.mark.long
def test_neighbours_have_the_largest_cosines(drawn, tiny_run):
    run = runs.load(str(tiny_run))
    (index,) = run.task.tokenizer.encode(["r"])[0]
    (axes,) = draw(drawn, "neighbours", tiny_run, "r")
    assert axes.get_title() == run.task.tokenizer.pieces([index])[0]
    table = np.asarray(run.params["embedding"]["table"])
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    widths = [bar.get_width() for bar in axes.patches]
    assert len(widths) == plot.NEIGHBOURS
    np.testing.assert_allclose(widths, np.sort(table @ table[index])[-2 : -2 - len(widths) : -1], rtol=1e-4)
    with pytest.raises(UserError, match="one piece of the vocabulary, but 'reddest' has"):
        plot.main(["neighbours", str(tiny_run), "reddest"])


@pytest.mark.long
def test_norms_of_gradients_and_activations_are_drawn(drawn, tiny_run):
    gradients, activations = draw(drawn, "norms", tiny_run)
    assert [label.get_text() for label in gradients.get_yticklabels()] == [
        "embedding",
        *("encoder.layers_0", "encoder.layers_1"),
        *("decoder.layers_0", "decoder.layers_1", "decoder.layers_2"),
    ]
    assert len(points(activations)) == 2 * 2 + 3 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected KIND|DIR"),
        (["positions", "a", "b"], r"\[DIR\] after tfm plot positions, got a b"),
        (["masks", "a"], "nothing after tfm plot masks, got a"),
        (["norms"], "DIR after tfm plot norms, got nothing"),
        (["masks", "--steps=5"], "tfm plot masks has no flag --steps"),
        (["schedules", "--steps=5", "--warmup_steps=6"], "--warmup_steps to be at most --steps, got 6 and 5"),
        (["schedules", "--output=a.gif"], r"end in \.png, \.svg, \.pdf, got 'a\.gif'"),
        (["positions", "--d_model=7"], "Expected an even --d_model"),
        (["no_such_folder"], "Expected the metrics of a run at no_such_folder"),
        (["calibration", "no_such_folder"], "Expected the folder of a run at no_such_folder"),
        (["RUN", "RUN"], "RUN"),
        (["RUN", "--metric=bleu"], r"'bleu'.*train/nll"),
        (["positions", "RUN"], "has no learned positions"),
    ],
)
def test_mistakes_are_errors(arguments, message, tiny_run):
    with pytest.raises(UserError, match=message.replace("RUN", re.escape(str(tiny_run)))):
        plot.main([each.replace("RUN", str(tiny_run)) for each in arguments])


@pytest.mark.parametrize("name", ["calibration", "lengths", "neighbours"])
def test_runs_of_other_tasks_are_errors(name, regression_run):
    with pytest.raises(UserError, match=f"tfm plot {name} needs a run that translates"):
        plot.main([name, str(regression_run)])


def test_run_of_a_task_without_data_is_an_error():
    with pytest.raises(UserError, match="tfm plot lengths needs a run that translates"):
        plot.runs.require_translation(eight_gaussians.make_config(), "tfm plot lengths")


@pytest.mark.long
def test_calibration_leaves_out_pairs_that_are_longer_than_the_positions(tiny_run, caplog):
    task = copy.copy(plot.runs.load(str(tiny_run)).task)
    texts = list(plot.sample_evenly(plot.open_pairs(task.config.data, "validation"), 16))
    pairs = zip(texts[::2], texts[1::2], strict=True)
    lengths = [max(len(ids) + 1 for ids in task.tokenizer.encode(pair)) for pair in pairs]
    longest = sorted(lengths)[len(lengths) // 2]
    model = types.SimpleNamespace(max_length=longest)
    task.config = types.SimpleNamespace(data=task.config.data, model=model)
    sides = plot.encode_pairs(task, "validation", 16)
    left_out = sum(length > longest for length in lengths)
    assert [len(side) for side in sides] == [len(lengths) - left_out] * 2
    assert max(len(ids) for side in sides for ids in side) == longest
    assert f"Left out {left_out} pairs of over {longest} tokens" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["RUN", "--output=a.txt"], ["RUN", "RUN"]])
def test_mistakes_are_found_before_anything_is_decoded(arguments, tiny_run, monkeypatch):
    monkeypatch.setattr(plot.runs, "load", None)
    with pytest.raises(UserError, match=r"a\.txt|twice"):
        plot.main(["calibration", *(argument.replace("RUN", str(tiny_run)) for argument in arguments)])


@pytest.mark.long
def test_figure_is_written_to_the_output(tmp_path):
    path = tmp_path / "schedules.pdf"
    plot.main(["schedules", f"--output={path}"])
    assert path.read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_samples_are_written_as_a_page_with_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"source": word, "hypothesis": word.upper()} for word in "abcd"]
    for step in (3, 6):
        draw = functools.partial(figures.save, Figure())
        SamplesWriter(str(run)).on_samples(step, Samples(rows, {"attention": draw}))
    plot.main(["samples", str(run)])
    assert capsys.readouterr().out == "samples.md\n"
    page = (tmp_path / "samples.md").read_text(encoding="utf-8")
    assert page.count("\n## ") == 4 + 1  # sentences and pictures
    pictures = re.findall(r"\(<(.+)>\)", page)
    assert len(pictures) == 2
    assert all((tmp_path / each).is_file() for each in pictures)
    with pytest.raises(UserError, match=r"to end in \.md"):
        plot.main(["samples", str(run), "--output=a.png"])
    with pytest.raises(UserError, match="Expected samples of a run"):
        plot.main(["samples", str(tmp_path)])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["calibration", "neighbours", "norms"])
def test_plots_of_a_model_load_the_chosen_checkpoint(kind, tiny_run, tmp_path):
    result = run_command("plot", kind, tiny_run, "--checkpoint=5", f"--output={tmp_path}/a.png")
    assert (result.code, "got '5'" in result.error) == (2, True), result.error
