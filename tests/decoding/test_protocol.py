"""Which models translate, and what is said of those that do not."""

import types

import pytest

from tfm.decoding.protocol import SequenceToSequence, check_translates
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig

METHODS = ("features", "encode", "init_cache", "decode_step", "attention_points")


def model_with(*methods):
    config = types.SimpleNamespace(name="gpt", max_length=None)
    return types.SimpleNamespace(config=config, **dict.fromkeys(methods, print))


def test_the_transformer_translates():
    model = Transformer(TransformerConfig(), vocabulary_size=9)
    assert isinstance(model, SequenceToSequence)
    check_translates(model)
    check_translates(model_with(*METHODS))


@pytest.mark.parametrize("missing", METHODS)
def test_a_missing_method_is_named(missing):
    with pytest.raises(UserError, match=rf"The model 'gpt' does not translate: .*`?{missing}"):
        check_translates(model_with(*(name for name in METHODS if name != missing)))


def test_a_model_without_encoder_is_told_so():
    with pytest.raises(UserError, match=r"The model 'gpt' does not translate: it has no encoder"):
        check_translates(model_with("features", "init_cache", "decode_step"))
