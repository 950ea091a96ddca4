"""Tests of the checks whether a model can translate or generate."""

import itertools
import types

import pytest

from tfm.decoding.protocol import (
    SequenceToSequence,
    check_continues,
    check_translates,
    read_cross_attention,
)
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig

NEEDED = {
    check_translates: ("encode", "features", "init_cache", "decode_step", "attention_points"),
    check_continues: ("prefill", "features", "init_cache", "decode_step"),
}


def test_transformer_fulfils_the_protocol_of_translation():
    model = Transformer(TransformerConfig(), vocabulary_size=9)
    assert isinstance(model, SequenceToSequence)
    check_translates(model)


def make_model(names):
    """Returns a model that has only these attributes and a config."""
    config = types.SimpleNamespace(name="gpt", max_length=None)
    return types.SimpleNamespace(config=config, **dict.fromkeys(names))


@pytest.mark.parametrize("check", NEEDED)
def test_model_with_all_attributes_is_accepted(check):
    check(make_model(NEEDED[check]))


@pytest.mark.parametrize("check", NEEDED)
def test_error_names_all_missing_attributes(check):
    needed = NEEDED[check]
    for count in range(1, len(needed) + 1):
        for missing in itertools.combinations(needed, count):
            message = rf"'gpt' .*: it has no {' and no '.join(missing)}\."
            with pytest.raises(UserError, match=message):
                check(make_model({*needed} - {*missing}))


@pytest.mark.parametrize(("config", "name"), [({"name": "gpt"}, "gpt"), ({}, "SimpleNamespace")])
def test_model_without_cross_attention_is_an_error_that_names_it(config, name):
    model = types.SimpleNamespace(config=types.SimpleNamespace(**config), attention_points={})
    with pytest.raises(UserError, match=f"'{name}' has no 'cross'"):
        read_cross_attention(model, lambda: None)
