"""Tests that the sizes of tiny runs differ, so that no test can confuse two of them."""

import inspect
import pathlib

import pytest

from tests.support import images, tiny, tiny_lm, tiny_regression, tiny_trees


def translation():
    config = tiny.make_config(pathlib.Path())
    model, data = config.model, config.data
    return config, [
        *(model.encoder_layers, model.decoder_layers, model.heads, model.d_model // model.heads),
        *(model.d_model, model.d_ff, data.row_length, data.max_length, data.batch_tokens // data.row_length),
        data.vocabulary_size,
    ]


def language_modeling():
    config = tiny_lm.make_lm_config(pathlib.Path())
    model, data = config.model, config.data
    return config, [
        *(model.layers, model.heads, model.d_model // model.heads, model.d_model, model.d_ff),
        *(data.row_length, config.stride, data.batch_tokens // data.row_length, model.max_positions),
    ]


def classification():
    model = images.MODEL
    return None, [
        *(model.image_size, model.channels, model.patch_size, model.patches, model.classes),
        *(model.encoder_layers, model.heads, model.d_model // model.heads, model.d_model, model.d_ff),
    ]


def regression():
    return tiny_regression.make_config(), [tiny_regression.ROWS, tiny_regression.FEATURES]


@pytest.mark.parametrize("make", [translation, language_modeling, classification, regression])
def test_all_sizes_differ(make):
    _, sizes = make()
    assert len(sizes) == len(set(sizes))


@pytest.mark.parametrize("make", [translation, language_modeling, regression])
def test_last_step_of_runs_is_not_a_logged_step(make):
    training = make()[0].training
    assert training.steps % training.log_every
    intervals = [training.log_every, training.eval_every, training.checkpoint_every]
    assert len(set(intervals)) > 1


@pytest.mark.parametrize("write", [tiny.write_corpus, tiny_lm.write_documents])
def test_splits_of_texts_differ_in_size(write):
    sizes = dict(inspect.signature(write).parameters["sizes"].default)
    assert len(set(sizes.values())) == 3


@pytest.mark.parametrize("module", [tiny_trees, tiny_regression])
def test_splits_of_examples_differ_in_size(module):
    assert len(set(module.SIZES.values())) == 3
