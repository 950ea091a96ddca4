"""Tests of scores and alignments of texts. test_pairs_of_features.py compares the numbers with NumPy."""

import pytest

import tfm
from tests.support.comparison import assert_trees_equal
from tests.support.tiny import randomize_weights
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.workdir import runs


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(randomize_weights(runs.load(str(tiny_run))))


@pytest.mark.long
def test_scores_of_texts_equal_the_scores_of_their_ids(translator):
    run = translator.run
    sources, targets = ["red dog", "big cat runs " * 4 + "dog", ""], ["rot hund", "", "gross " * 7 + "rot"]
    sides = [[[*ids, EOS_ID] for ids in run.task.tokenizer.encode(texts)] for texts in (sources, targets)]
    expected = score_pairs(run.task.model, run.params, *sides, run.task.config.decoding)
    assert_trees_equal(translator.score(sources, targets), expected)


@pytest.mark.long
def test_alignment_has_a_source_word_for_each_target_word(translator):
    aligned, none = translator.align(["red dog runs", "cat"], ["rot hund", ""])
    assert [pair.split("-")[1] for pair in aligned.split()] in (["0", "1"], ["1", "0"])
    assert none == ""


def test_text_whose_words_the_tokenizer_counts_differently_has_no_alignment(translator, caplog):
    """Python separates words at U+0085, but the tokenizer does not."""
    found = translator.align(["red dog", "red \u200b dog"], ["rot\x85hund", "rot hund"])
    assert found[0] == "" != found[1]
    assert "1 pairs have no alignment" in caplog.text


def test_alignment_reads_the_texts_in_the_form_of_the_model(translator, monkeypatch):
    task = translator.run.task
    expected = translator.align(["red dog"], ["rot hund"])
    monkeypatch.setattr(task.form, "read_source", str.lower)
    monkeypatch.setattr(task.form, "read_target", str.lower)
    assert translator.align(["RED Dog"], ["ROT HUND"]) == expected != [""]
    monkeypatch.setattr(
        task.form, "read_target", "now {}".format
    )  # another number of words than the user's text
    assert translator.align(["red dog"], ["rot hund"]) == [""]


class RecordingModel:
    """A model that records the method and the shapes of both sides of each call."""

    def __init__(self, model):
        self.model, self.config, self.calls = model, model.config, []
        self.attention_points = model.attention_points

    def apply(self, variables, inputs, targets, **options):
        self.calls.append((options.get("method"), inputs.shape, targets.shape))
        return self.model.apply(variables, inputs, targets, **options)


@pytest.mark.long
@pytest.mark.parametrize("function", [score_pairs, attend_pairs])
def test_batches_of_scoring_have_minimal_shapes(translator, function):
    model = RecordingModel(translator.run.task.model)
    sources = [[7] * (length - 1) + [EOS_ID] for length in (40, 37, 3)]
    targets = [[9] * (length - 1) + [EOS_ID] for length in (20, 11, 2)]
    found = function(model, translator.run.params, sources, targets, DecodingConfig(batch_size=2))
    assert model.calls == [("features", (2, 48), (2, 24)), ("features", (1, 8), (1, 8))]
    assert [len(each) for each in found] == [20, 11, 2]
