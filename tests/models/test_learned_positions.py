"""Tests of learned positions (Table 3, row E) and of reads beyond their tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import transformer
from tfm.data.config import PairsConfig
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.positions import sinusoidal_encoding
from tfm.tasks.translation.task import Config
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

TABLES = ("encoder_positions", "decoder_positions")
MODEL = transformer(positions="learned", max_positions=9)
SOURCES, TARGETS = np.random.default_rng(0).integers(3, 20, (2, 2, 7))
PARAMS = random_parameters(MODEL, SOURCES, TARGETS)


@quick_jit(static_argnums=0)
def logits(model, params, sources=SOURCES, targets=TARGETS, **positions):
    return model.apply({"params": params}, sources, targets, train=False, **positions)


@pytest.mark.long
def test_learned_positions_with_tables_of_sinusoids_equal_sinusoids():
    tables = {name: {"table": sinusoidal_encoding(jnp.arange(9), 16)} for name in TABLES}
    expected = logits(transformer(), {name: x for name, x in PARAMS.items() if name not in TABLES})
    np.testing.assert_allclose(logits(MODEL, PARAMS | tables), expected, atol=1e-5)


@pytest.mark.long
def test_gradients_reach_only_the_rows_that_were_read():
    positions = {"input_positions": np.array([[0, 1, 2, 0, 1, 2, 3]] * 2)}
    run = logits.__wrapped__
    gradient = quick_jit(jax.grad(lambda params: (run(MODEL, params, **positions) ** 2).sum()))(PARAMS)
    for name, rows in zip(TABLES, (4, 7), strict=True):
        used = np.abs(gradient[name]["table"]).max(-1) > 0
        assert used.tolist() == [position < rows for position in range(9)]


def test_positions_beyond_the_table_give_nan():
    found = np.asarray(logits(MODEL, PARAMS, input_positions=np.arange(7) + np.array([[0], [3]])))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_config_with_lengths_beyond_the_table_is_an_error():
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


@pytest.mark.long
def test_table_may_be_as_short_as_the_longest_text():
    config = DecodingConfig(beam_size=2, max_extra_tokens=2)
    sources, targets = [[*SOURCES[0, :6], EOS_ID], [7, EOS_ID]], [[*TARGETS[0], 4, EOS_ID], [EOS_ID]]
    table, found = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32), []
    for positions in (9, 16):
        model = transformer(positions="learned", max_positions=positions)
        params = PARAMS | {name: {"table": table[:positions]} for name in TABLES}
        ids = [each[0].ids for each in translate_ids(model, params, sources, config)]
        found.append((ids, score_pairs(model, params, sources, targets, config)))
    assert found[0][0] == found[1][0]
    for exact, longer in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(exact, longer, rtol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda *model, config: translate_ids(*model, [[5] * 8], config),
        lambda *model, config: translate_ids(*model, [[5] * 3], config, prefixes=[[5] * 5]),
        lambda *model, config: score_pairs(*model, [[5] * 10], [[5]], config),
        lambda *model, config: score_pairs(*model, [[5]], [[5] * 10], config),
    ],
)
def test_text_longer_than_the_table_is_an_error(call):
    with pytest.raises(UserError, match=r"at most 9 tokens.* 10\b"):
        call(MODEL, PARAMS, config=DecodingConfig(max_extra_tokens=2))
