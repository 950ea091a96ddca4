"""Tests of the samples of an evaluation: translations, and the attention of the first translation."""

import dataclasses

import numpy as np
import pytest
from matplotlib.image import imread

from tests.support.programs import count_programs
from tests.support.tiny import make_config, randomize_weights, train_run
from tfm.evaluation.translation_metrics import bleu
from tfm.interpret.observation import MAX_TOKENS
from tfm.tasks.translation.observe import PICTURE, observe_pair, observe_sentence, spread
from tfm.tasks.translation.task import Translation
from tfm.training.samples import read_samples
from tfm.workdir import runs

SENTENCES = 4


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def data(run):
    return run.task.open_data()


def make_task(run, **fields):
    """Returns the task of the run with samples and with changed fields of its config."""
    fields = {"validation_samples": SENTENCES} | fields
    return Translation(dataclasses.replace(run.task.config, **fields), run.task.tokenizer)


@pytest.mark.long
def test_samples_are_the_scored_translations(run, data):
    task = make_task(run)
    scores, samples = task.evaluate(run.variables, data)
    assert [(row["source"], row["reference"]) for row in samples.rows] == list(data.validation_pairs)
    columns = zip(*((row["hypothesis"], row["reference"]) for row in samples.rows), strict=True)
    assert bleu(*map(list, columns)).value == scores["validation/bleu"]
    greedy = dataclasses.replace(task.config.decoding, beam_size=1)
    assert task.translate(run.params, [samples.rows[2]["source"]], greedy) == [samples.rows[2]["hypothesis"]]


@pytest.mark.long
def test_validation_is_greedy_with_any_search_options(run, data):
    sampled = dataclasses.replace(run.task.config.decoding, samples=3, beam_size=2, temperature=9.0)
    found, expected = (
        each.evaluate(run.variables, data).scores for each in (make_task(run, decoding=sampled), run.task)
    )
    assert found == expected


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"validation_samples": 0}, {"validation_sentences": 0}])
def test_no_samples_if_the_number_of_samples_is_0(fields, run):
    task = make_task(run, **fields)
    samples = task.evaluate(run.variables, task.open_data()).samples
    assert samples.rows == []
    assert samples.pictures == {}


def test_no_checkpoint_is_the_best_without_validation_sentences(run):
    assert make_task(run, validation_sentences=0).best.metric == ""
    assert run.task.best.metric == "validation/bleu"


def test_spread_picks_items_at_equal_distances():
    assert spread("abcdefgh", 3) == ["a", "c", "f"]
    assert len(spread(range(500), 300)) == 300
    assert spread("abc", 9) == ["a", "b", "c"]
    assert spread("abc", 0) == spread("", 4) == []


@pytest.mark.long
@pytest.mark.parametrize(("attention_layer", "layer"), [(0, 0), (1, 1), (-1, 2)])
def test_picture_shows_the_layer_of_alignments(attention_layer, layer, run, data, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("tfm.visualize.figures.draw_attention", lambda *arguments: drawn.append(arguments))
    model = dataclasses.replace(run.task.config.model, decoder_layers=3)
    decoding = dataclasses.replace(run.task.config.decoding, attention_layer=attention_layer)
    task = make_task(run, model=model, decoding=decoding)
    params = randomize_weights(run._replace(task=task)).params
    samples = task.evaluate({"params": params}, data).samples
    samples.pictures[PICTURE]("a.png")
    ((panels, title, path),) = drawn
    row = samples.rows[0]
    observed = observe_pair(task, params, row["source"], row["hypothesis"])
    expected = observed.attention["cross"].weights[layer : layer + 1].mean(1, keepdims=True)
    np.testing.assert_allclose(panels.weights, expected, rtol=1e-6)
    np.testing.assert_allclose(panels.weights.sum(-1), 1, atol=1e-5)
    assert (row["source"] in title, path) == (True, "a.png")


@pytest.mark.long
def test_observed_pair_equals_the_observed_search(run):
    searched = observe_sentence(run.task, run.params, "red dog runs")
    known = observe_pair(run.task, run.params, "red dog runs", searched.result)
    if known.tracks == searched.tracks:  # else the search chose other pieces of the same text
        for kind, attention in searched.attention.items():
            np.testing.assert_allclose(known.attention[kind].weights, attention.weights, atol=1e-5)
        probabilities = ([each.probability for each in found.predictions] for found in (known, searched))
        np.testing.assert_allclose(*probabilities, rtol=1e-4)
    assert known.tracks["source"] == searched.tracks["source"]
    assert known.title == searched.title


@pytest.mark.long
def test_all_pictures_share_one_program(run):
    observe_pair(run.task, run.params, "red dog", "rot hund")
    long = " ".join(["red"] * 50)
    with count_programs() as programs:
        observed = observe_pair(run.task, run.params, f"small {long}", f"klein {long}")
    assert not programs
    assert len(observed.tracks["source"].labels) <= MAX_TOKENS
    assert observe_pair(run.task, run.params, "red", "") is None


@pytest.mark.long
def test_run_writes_samples_and_pictures(corpus, tmp_path):
    config = make_config(corpus, steps=2, eval_every=1)
    decoding = dataclasses.replace(config.decoding, min_length=3)  # an empty translation has no picture
    config = dataclasses.replace(config, validation_samples=SENTENCES, decoding=decoding)
    train_run(config, tmp_path)
    found = read_samples(str(tmp_path))
    assert [each.step for each in found] == [1, 2]
    assert all(len(each.rows) == SENTENCES for each in found)
    assert found[0].rows[1]["source"] == found[1].rows[1]["source"]
    assert imread(found[1].pictures[PICTURE]).ndim == 3
