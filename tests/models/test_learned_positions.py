"""Learned positions (Table 3, row E): what the tables do, and that nothing reads beyond them unnoticed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import transformer
from tests.support.tiny import make_config
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.positions import sinusoidal_encoding
from tfm.tasks import translation
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.workdir import runs
from tfm.workdir.translator import Translator

TABLES = ("encoder_positions", "decoder_positions")
MODEL = transformer(positions="learned", max_positions=9)
SOURCES, TARGETS = np.random.default_rng(0).integers(3, 20, (2, 2, 7))
PARAMS = random_parameters(MODEL, SOURCES, TARGETS)
LIMIT = 28  # no bucket's width: batches of 32 are cut


@quick_jit(static_argnums=0)
def logits(model, params, sources=SOURCES, targets=TARGETS, **positions):
    return model.apply({"params": params}, sources, targets, train=False, **positions)


def test_tables_of_sinusoids_are_sinusoids():
    tables = {name: {"table": sinusoidal_encoding(jnp.arange(9), 16)} for name in TABLES}
    expected = logits(transformer(), {name: x for name, x in PARAMS.items() if name not in TABLES})
    np.testing.assert_allclose(logits(MODEL, PARAMS | tables), expected, atol=1e-5)


def test_gradients_reach_only_the_rows_of_each_table_that_were_read():
    positions = {"input_positions": np.array([[0, 1, 2, 0, 1, 2, 3]] * 2)}
    run = logits.__wrapped__
    gradient = quick_jit(jax.grad(lambda params: (run(MODEL, params, **positions) ** 2).sum()))(PARAMS)
    for name, rows in zip(TABLES, (4, 7), strict=True):
        used = np.abs(gradient[name]["table"]).max(-1) > 0
        assert used.tolist() == [position < rows for position in range(9)]


def test_a_position_beyond_the_table_is_nan():
    found = np.asarray(logits(MODEL, PARAMS, input_positions=np.arange(7) + np.array([[0], [3]])))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_a_config_whose_lengths_exceed_the_table_is_refused():
    model = TransformerConfig(positions="learned", max_positions=300, d_model=15, heads=3)
    fits = {
        "decoding": DecodingConfig(max_input=250, max_extra_tokens=50),
        "data": PairsConfig(max_length=300),
    }
    Config(model=model, **fits)
    Config(model=transformer().config, data=PairsConfig(max_length=3000))
    for too_long in (
        {"data": PairsConfig(max_length=301)},
        {"decoding": DecodingConfig(max_input=250, max_extra_tokens=51)},
    ):
        with pytest.raises(UserError, match=r"301.*=300"):
            Config(model=model, **fits | too_long)


@pytest.fixture(scope="module")
def tokenizer(corpus, tmp_path_factory):
    return translation.create(make_config(corpus), str(tmp_path_factory.mktemp("vocabulary"))).tokenizer


def translator(corpus, tokenizer, positions):
    """A translator with random parameters whose tables begin alike, whatever their length."""
    config = make_config(corpus)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, positions="learned", max_positions=positions),
        data=dataclasses.replace(config.data, max_length=LIMIT),
        decoding=DecodingConfig(beam_size=2, max_input=LIMIT - 2, max_extra_tokens=2),
    )
    task, token = Translation(config, tokenizer), np.ones((1, 1), np.int32)
    params = random_parameters(task.model, token, token)
    params["embedding"]["table"] *= 3  # for sharper logits: all hypotheses would be much alike
    table = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)[:positions]
    return Translator(runs.Run(task, {"params": params | {name: {"table": table} for name in TABLES}}, [0]))


def text_of(tokenizer, tokens):
    """A text of this number of tokens, the end of the sentence counted."""
    return tokenizer.decode(tokenizer.encode(["red dog runs " * 40])[0][: tokens - 1])


def test_a_table_as_long_as_the_longest_text_is_long_enough(corpus, tokenizer):
    texts = ["red dog", text_of(tokenizer, LIMIT - 2), text_of(tokenizer, 20)]
    targets = [text_of(tokenizer, LIMIT), "rot", text_of(tokenizer, LIMIT)]
    exact, longer = (translator(corpus, tokenizer, positions) for positions in (LIMIT, 64))
    assert exact.translate(texts) == longer.translate(texts)
    for a, b in zip(exact.score(texts, targets), longer.score(texts, targets), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (lambda translator, text: translator.translate([text(30)], max_input=40), 32),
        (lambda translator, text: translator.hypotheses([text(20)], prefixes=[text(9)]), 30),
        (lambda translator, text: translator.score(["red"], [text(29)]), 29),
        (lambda translator, text: translator.score([text(29)], ["rot"]), 29),
    ],
)
def test_a_text_longer_than_the_table_is_refused(call, tokens, corpus, tokenizer):
    with pytest.raises(UserError, match=rf"at most {LIMIT} tokens.* {tokens}\b"):
        call(translator(corpus, tokenizer, LIMIT), lambda length: text_of(tokenizer, length))
