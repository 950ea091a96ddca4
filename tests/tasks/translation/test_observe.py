"""Tests of observed translations against the search, scores and alignments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_programs
from tests.support.tiny import randomize_weights
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.interpret.observation import MAX_CHOICES
from tfm.tasks.translation.observe import observe_sentence
from tfm.workdir import runs

SENTENCE = "red dog runs"


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def observed(run):
    return observe_sentence(run.task, run.params, SENTENCE)


@pytest.mark.long
def test_observed_translation_equals_the_search(run, observed):
    task = run.task
    source = [*task.tokenizer.encode([SENTENCE])[0], 2]
    width = task.config.decoding.beam_size
    (found,) = translate_ids(task.model, run.params, [source], task.config.decoding, n_best=width)
    assert [pieces for pieces, _ in observed.beam.finished] == [
        task.tokenizer.pieces(one.ids) for one in found
    ]
    np.testing.assert_allclose(
        [score for _, score in observed.beam.finished], [one.score for one in found], rtol=1e-5
    )
    assert observed.tracks["predicted"].labels == observed.beam.finished[0][0]
    assert observed.result == task.tokenizer.decode(found[0].ids)
    assert observed.tracks["source"].labels == task.tokenizer.pieces(source)


@pytest.mark.long
def test_probabilities_equal_those_of_scoring(run, observed):
    source, target = pair_of(run, observed)
    (scores,) = score_pairs(run.task.model, run.params, source, target, run.task.config.decoding)
    found = [each.probability for each in observed.predictions]
    np.testing.assert_allclose(found, np.exp(scores), rtol=1e-4)
    pieces = observed.tracks["predicted"].labels
    for piece, (probability, choices) in zip(pieces, observed.predictions, strict=True):
        listed = [p for _, p in choices]
        assert listed == sorted(listed, reverse=True)
        assert len(choices) == MAX_CHOICES
        if probability > listed[-1]:
            np.testing.assert_allclose(dict(choices)[piece], probability, rtol=1e-5)


@pytest.mark.long
def test_attention_equals_that_of_alignments(run, observed):
    source, target = pair_of(run, observed)
    (expected,) = attend_pairs(run.task.model, run.params, source, target, run.task.config.decoding)
    np.testing.assert_allclose(
        observed.attention["cross"].weights[-1].mean(0), expected, rtol=1e-4, atol=1e-6
    )
    for attention in observed.attention.values():
        np.testing.assert_allclose(attention.weights.sum(-1), 1, rtol=1e-5)
        tracks = [observed.tracks[name] for name in (attention.queries, attention.keys)]
        assert attention.weights.shape[2:] == tuple(len(track.labels) for track in tracks)
    assert observed.tracks["read"].labels == ["<s>", *observed.tracks["predicted"].labels[:-1]]


def test_every_kind_of_attention_has_norms(observed):
    assert list(observed.attention) == ["encoder", "decoder", "cross"]
    for attention in observed.attention.values():
        assert attention.joint_norms.shape == (len(attention.weights), *attention.weights.shape[2:])
        np.testing.assert_array_equal(attention.norms > 0, attention.weights > 0)


@pytest.mark.long
def test_long_translations_are_truncated(run, caplog):
    decoding = dataclasses.replace(run.task.config.decoding, min_length=9)
    task = type(run.task)(dataclasses.replace(run.task.config, decoding=decoding), run.task.tokenizer)
    with caplog.at_level("WARNING", "tfm"):
        found = observe_sentence(task, run.params, "red dog", max_tokens=6)
    assert "Drawing the first 6 of the" in caplog.text
    assert len(found.tracks["read"].labels) == found.attention["cross"].weights.shape[2] == 6
    assert len(found.predictions) == 6
    assert len(found.beam.steps) <= 6 < len(found.beam.finished[0][0])


@pytest.mark.parametrize("sentence", ["", "  \n", "\u3000"])
def test_empty_sentence_is_an_error(run, sentence):
    with pytest.raises(UserError, match="Expected a sentence to translate and draw, got an empty one"):
        observe_sentence(run.task, run.params, sentence)


@pytest.mark.long
@pytest.mark.parametrize("sentence", ["</script><b>", "🐕 läuft", "הכלב ישן", "\u200b", "a\u0301\u0000b"])
def test_any_text_can_be_observed(run, sentence):
    found = observe_sentence(run.task, run.params, sentence)
    assert found.tracks["source"].labels[-1] == "</s>"
    assert len(found.tracks["predicted"].labels) == len(found.predictions) > 0


@pytest.mark.long
def test_nan_parameters_are_an_error(run):
    broken = jax.tree.map(lambda x: x * jnp.nan, run.params)
    with pytest.raises(UserError, match=r"got NaN.*damaged"):
        observe_sentence(run.task, broken, SENTENCE)


@pytest.mark.long
def test_sentences_of_one_length_share_a_program(run, observed):
    with count_programs() as programs:
        observe_sentence(run.task, run.params, "blue cat runs")
    assert not programs


def pair_of(run, observed):
    """Returns the ids of the source and of the observed target, each in a list of one row."""
    tokenizer = run.task.tokenizer
    pieces = tokenizer.pieces(range(len(tokenizer)))
    source = [*tokenizer.encode([SENTENCE])[0], 2]
    return [source], [[pieces.index(label) for label in observed.tracks["predicted"].labels]]
