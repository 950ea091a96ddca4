"""Teacher-forced scoring: scores and alignments of given pairs, and the shapes of their batches."""

import jax
import numpy as np
import pytest

import tfm
from tests.references import numpy_transformer as numpy64
from tests.support.tiny import randomize_weights
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.models import Transformer, TransformerConfig
from tfm.workdir import runs


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(randomize_weights(runs.load(str(tiny_run))))


@pytest.mark.long
def test_scores_equal_the_forward_pass(translator):
    """Against the model's full forward pass, one pair at a time, of sides as unlike as can be."""
    run = translator.run
    sources, targets = ["red dog", "big cat runs " * 4, "cat", ""], ["rot hund", "", "gross " * 7, ""]
    found = translator.score(sources, targets)
    for source, target, scores in zip(sources, targets, found, strict=True):
        source_ids = [*run.task.tokenizer.encode([source])[0], EOS_ID]
        target_ids = [*run.task.tokenizer.encode([target])[0], EOS_ID]
        inputs, shifted = np.array([source_ids]), np.array([[BOS_ID, *target_ids[:-1]]])
        logits = numpy64.transformer(run.params, inputs, shifted)[0]
        expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        np.testing.assert_allclose(scores, expected[range(len(target_ids)), target_ids], rtol=1e-5)


def test_alignments_name_a_source_word_each(translator):
    aligned, none = translator.align(["red dog runs", "cat"], ["rot hund", ""])
    assert [pair.split("-")[1] for pair in aligned.split()] in (["0", "1"], ["1", "0"])
    assert none == ""


def test_words_the_vocabulary_counts_otherwise(translator, caplog):
    """An invisible character is a word of its own for white space alone."""
    found = translator.align(
        ["red \u200b dog", "red dog", "red dog"], ["rot hund", "rot\x85hund", "rot hund"]
    )
    assert found[0] == found[1] == "" != found[2]
    assert "2 pairs have no alignment" in caplog.text


class Noting:
    """A model that notes what it is asked for: the method, and the shapes of both sides."""

    def __init__(self, model):
        self.model, self.config, self.calls = model, model.config, []
        self.attention_points = model.attention_points

    def apply(self, variables, inputs, targets, **options):
        self.calls.append((options.get("method"), inputs.shape, targets.shape))
        return self.model.apply(variables, inputs, targets, **options)


@pytest.mark.long
@pytest.mark.parametrize("function", [score_pairs, attend_pairs])
def test_scoring_batches_have_minimal_shapes(translator, function):
    model = Noting(translator.run.task.model)
    sources = [[7] * (length - 1) + [EOS_ID] for length in (40, 37, 3)]
    targets = [[9] * (length - 1) + [EOS_ID] for length in (20, 11, 2)]
    found = function(model, translator.run.params, sources, targets, DecodingConfig(batch_size=2))
    assert model.calls == [("features", (2, 48), (2, 24)), ("features", (1, 8), (1, 8))]
    assert [len(each) for each in found] == [20, 11, 2]


TINY = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=2, dropout=0.0)


@pytest.mark.long
def test_ensemble_scores_average_probabilities():
    model, sources, targets = (
        Transformer(TINY, vocabulary_size=12),
        [[3, 4, 5, EOS_ID], [3, 4, EOS_ID]],
        [[3, 4, EOS_ID], [3, 4, 5, 6, 7, EOS_ID]],
    )
    token = np.ones((1, 1), int)
    init = jax.jit(lambda seed: model.init(jax.random.key(seed), token, token, train=False)["params"])
    members = (init(0), init(1))
    found = score_pairs(model, members, sources, targets, DecodingConfig())
    for source, target, scores in zip(sources, targets, found, strict=True):
        shifted, probabilities = np.array([[BOS_ID, *target[:-1]]]), 0.0
        for params in members:
            exponentials = np.exp(numpy64.transformer(params, np.array([source]), shifted)[0])
            probabilities += exponentials / exponentials.sum(-1, keepdims=True) / len(members)
        expected = np.log(probabilities[range(len(target)), target])
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
