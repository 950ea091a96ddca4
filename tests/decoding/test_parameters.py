"""Tests of the parameters of a search: dtypes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.decoding.protocol import search_parameters, with_dtype
from tfm.models import TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.models.transformer import Transformer
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.model import RNNSeq2Seq
from tfm.testing.parameters import random_parameters

V = 30
TRANSFORMER = Transformer(
    TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2), vocabulary_size=V
)
LM = DecoderLM(DecoderLMConfig(layers=1, d_model=16, d_ff=24, heads=2, max_positions=24), vocabulary_size=V)
RNN = RNNSeq2Seq(RNNConfig(hidden_features=12, embedding_features=8), vocabulary_size=V)
SOURCE = np.array([[5, 6, 7, 8, EOS_ID], [9, 4, EOS_ID, 0, 0]])
TARGET = np.array([[BOS_ID, 12, 13, 14], [BOS_ID, 20, 21, 22]])
INPUTS = {"transformer": (SOURCE, TARGET), "decoder_lm": (TARGET,), "rnn": (SOURCE, TARGET)}
MODELS = {"transformer": TRANSFORMER, "decoder_lm": LM, "rnn": RNN}


def parameters(name):
    """Returns parameters that are large enough for probabilities that differ."""
    params = random_parameters(MODELS[name], *INPUTS[name], deviation=0.05)
    return jax.tree.map(lambda x: 4 * x, params)


def forward(name, params, dtype, *inputs):
    """Returns the logits of a forward pass."""
    model = with_dtype(MODELS[name], dtype)
    apply = jax.jit(lambda weights, inputs: model.apply({"params": weights}, *inputs, train=False))
    return np.asarray(apply(search_parameters(params, dtype), inputs or INPUTS[name]), np.float32)


@pytest.mark.parametrize("dtype", ["", "float32", "bfloat16"])
def test_parameters_and_model_have_the_dtype(dtype):
    params = {"hidden": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
    expected = dtype or "float32"
    assert {str(x.dtype) for x in jax.tree.leaves(search_parameters(params, dtype))} == {expected}
    assert with_dtype(TRANSFORMER, dtype).config.dtype == expected


class TopLevel(nn.Module):
    """A bigram language model whose only parameter is at the top level and has the name kernel."""

    max_length = None
    dtype = "float32"

    @property
    def config(self):
        """Returns the model itself, which has the fields of a config."""
        return self

    @nn.compact
    def decode_step(self, tokens, cache, position):
        """Returns logits that depend on the last tokens."""
        return self.param("kernel", nn.initializers.normal(), (V, V))[tokens], cache

    def init_cache(self, context, *, width, max_length):
        """Returns an empty state."""
        return ()


@pytest.mark.long
def test_search_works_with_a_parameter_at_the_top_level():
    table = np.random.default_rng(0).normal(size=(V, V)).astype(np.float32)
    config = GenerationConfig(samples=0, max_tokens=3)
    ((found,),) = generate_ids(TopLevel(), {"kernel": table}, [[7]], config)
    expected, token = [], 7
    while len(expected) < 3 and token != EOS_ID:
        token = int(np.where(np.isin(np.arange(V), [0, BOS_ID]), -np.inf, table[token]).argmax())
        expected.append(token)
    assert [token for token in found.ids if token != EOS_ID] == [x for x in expected if x != EOS_ID]
