"""Tests of the errors of invalid model configs."""

import dataclasses

import pytest

from tfm.errors import UserError
from tfm.models import TransformerConfig, check_positions
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.systems.conv_s2s.model import ConvS2SConfig
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.vit.model import ViTConfig

# The error names at least one of the fields.
OF_EVERY_BLOCK = [
    {"activation": "tanh"},
    {"norm_order": "middle"},
    {"positions": "spiral"},
    {"norm": "batch_norm"},
    {"max_positions": 0},
    {"layer_norm_epsilon": 0.0},
    {"dtype": "float8"},
    {"d_model": 0},
    {"d_model": 514, "heads": 8},
    {"heads": 0},
    {"heads": 5, "d_model": 768},
    {"dropout": 1.0},
    {"attention_dropout": -0.1},
    {"attention": "flash"},
    {"attention": "xla", "attention_dropout": 0.1},
    {"key_features": 3, "positions": "rotary"},
    {"key_features": 3, "positions": "interleaved_and_rotary"},
    {"key_value_heads": 3, "heads": 4, "d_model": 16},
    {"deep_norm": True, "norm_order": "pre"},
    {"positions": "alibi", "attention": "cudnn", "attention_dropout": 0.0},
    {"attention_window": 0},
    {"feed_forward_kernel": 0},
    {"d_model": 9, "heads": 3, "positions": "interleaved"},
]
OF_ONE_MODEL = [
    (TransformerConfig, {"tied_embeddings": "four"}),
    (TransformerConfig, {"encoder_layers": 0}),
    (DecoderLMConfig, {"layers": 0}),
    (ViTConfig, {"patch_size": 5}),
    (ViTConfig, {"classes": 1}),
    (ViTConfig, {"heads": 5}),
    (ViTConfig, {"activation": "sine"}),
    (ViTConfig, {"attention": "xla", "attention_dropout": 0.1}),
    (RNNConfig, {"tie_output": True}),
    (RNNConfig, {"attention": "dot"}),
    (RNNConfig, {"attention": "multiplicative"}),
    (RNNConfig, {"forget_bias": 1.0}),
    (RNNConfig, {"hidden_features": 0}),
    (RNNConfig, {"cell": "rnn"}),
]
POSITIONS = DecoderLMConfig(positions="learned", max_positions=40, random_start=8)
CASES = [(config, fields) for config in (TransformerConfig, DecoderLMConfig) for fields in OF_EVERY_BLOCK]


@pytest.mark.parametrize(("config", "fields"), [*CASES, *OF_ONE_MODEL], ids=str)
def test_error_of_an_invalid_config_names_the_field_and_its_value(config, fields):
    with pytest.raises(UserError) as error:
        config(**fields)
    value = next(value for name, value in fields.items() if name in str(error.value))
    assert isinstance(value, bool | float) or str(value) in str(error.value)


def test_error_of_rows_that_are_too_long_names_values_that_work():
    with pytest.raises(UserError, match=r"=32\)\. Decrease data\.row_length to 32, .*max_positions to 41\."):
        check_positions(POSITIONS, "data.row_length", 33)
    check_positions(POSITIONS, "data.row_length", 32)
    check_positions(dataclasses.replace(POSITIONS, max_positions=41), "data.row_length", 33)


def test_error_of_rows_that_are_too_long_names_only_fields_of_the_model():
    with pytest.raises(UserError, match=r"\(model\.max_positions=32\).*max_positions to 33\."):
        check_positions(ConvS2SConfig(max_positions=32), "data.max_length", 33)
