"""Tests of the parameters of a search: dtypes and 8-bit quantization."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_foreign_calls
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.decoding.parameters import apply_model, search_parameters, with_dtype
from tfm.decoding.translate import translate_ids
from tfm.layers.quantization import QuantizedWeights
from tfm.matmul import onednn
from tfm.matmul.products import MAX_ROWS_OF_XLA
from tfm.models import TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.models.rnn_seq2seq import RNNConfig, RNNSeq2Seq
from tfm.models.transformer import Transformer
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
QUANTIZED = {"transformer": 6 + 10 + 1, "decoder_lm": 6 + 1}  # number of products: projections and logits


def parameters(name):
    """Returns parameters that are large enough for probabilities that differ."""
    params = random_parameters(MODELS[name], *INPUTS[name], deviation=0.05)
    return jax.tree.map(lambda x: 4 * x, params)


def forward(name, params, dtype, *inputs):
    """Returns the logits of a forward pass."""
    model = with_dtype(MODELS[name], dtype)
    apply = jax.jit(lambda weights, inputs: apply_model(model, weights, *inputs, train=False))
    return np.asarray(apply(search_parameters(params, dtype), inputs or INPUTS[name]), np.float32)


@pytest.mark.parametrize("dtype", ["", "float32", "bfloat16"])
def test_parameters_and_model_have_the_dtype(dtype):
    params = {"hidden": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
    expected = dtype or "float32"
    assert {str(x.dtype) for x in jax.tree.leaves(search_parameters(params, dtype))} == {expected}
    assert with_dtype(TRANSFORMER, dtype).config.dtype == expected
    assert with_dtype(TRANSFORMER, "int8") is TRANSFORMER  # only the parameters change


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


@pytest.mark.parametrize("dtype", ["", "int8"])
def test_search_works_with_a_parameter_at_the_top_level(dtype):
    table = np.random.default_rng(0).normal(size=(V, V)).astype(np.float32)
    config = GenerationConfig(samples=0, max_tokens=3, dtype=dtype)
    ((found,),) = generate_ids(TopLevel(), {"kernel": table}, [[7]], config)
    expected, token = [], 7
    while len(expected) < 3 and token != EOS_ID:
        token = int(np.where(np.isin(np.arange(V), [0, BOS_ID]), -np.inf, table[token]).argmax())
        expected.append(token)
    assert [token for token in found.ids if token != EOS_ID] == [x for x in expected if x != EOS_ID]


@pytest.mark.parametrize("name", MODELS)
def test_8_bit_logits_are_close_to_float32_logits(name):
    params = parameters(name)
    expected, found = forward(name, params, "float32"), forward(name, params, "int8")
    errors = np.abs(found - expected)
    assert 0 < errors.mean() < 0.03 * expected.std()
    assert errors.max() < 0.2 * expected.std()


@pytest.mark.parametrize("name", QUANTIZED)
def test_all_projections_and_logits_use_8_bits(name, monkeypatch):
    multiply, used = QuantizedWeights.multiply, []
    monkeypatch.setattr(
        QuantizedWeights, "multiply", lambda self, x: used.append(x.shape) or multiply(self, x)
    )
    forward(name, parameters(name), "int8")
    assert len(used) == QUANTIZED[name]


def most_probable(name, params, *inputs):
    """Returns the most probable token after each position of the first row in 8 bits."""
    return forward(name, params, "int8", *inputs)[0, :, BOS_ID + 1 :].argmax(-1) + BOS_ID + 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_greedy_8_bit_search_equals_the_8_bit_forward_pass(name):
    params, config = parameters(name), DecodingConfig(beam_size=1, dtype="int8", max_extra_tokens=3)
    (best,), (other,) = translate_ids(MODELS[name], params, [[5, 6, 7, 8, EOS_ID], [9, 4, EOS_ID]], config)
    for source, (*ids, end) in ((SOURCE[:1], best.ids), (SOURCE[1:], other.ids)):
        assert most_probable(name, params, source, np.array([[BOS_ID, *ids]]))[:-1].tolist() == ids
        assert end == EOS_ID  # at the limit at the latest
    assert best.ids != other.ids


@pytest.mark.long
def test_greedy_8_bit_generation_equals_the_8_bit_forward_pass():
    params = parameters("decoder_lm")
    config = GenerationConfig(samples=0, max_tokens=5, dtype="int8")
    ((found,),) = generate_ids(LM, params, [[7, 8, 9]], config)
    *ids, _ = found.ids
    predicted = most_probable("decoder_lm", params, np.array([[BOS_ID, 7, 8, 9, *ids]]))
    assert predicted[3:-1].tolist() == ids


@pytest.mark.skipif(onednn.load_native_package() is None, reason="tfm-native is not installed")
@pytest.mark.parametrize("name", QUANTIZED)
def test_onednn_computes_all_projections_and_logits_in_float32(name):
    """XLA computes the logits of few rows."""
    params = search_parameters(parameters(name))
    model = with_dtype(MODELS[name], "")
    for copies, of_xla in ((1, 1), (MAX_ROWS_OF_XLA, 0)):
        inputs = [x.repeat(copies, axis=0) for x in INPUTS[name]]

        def apply(params, inputs=inputs):
            return apply_model(model, params, *inputs, train=False)

        assert count_foreign_calls(apply, params) == QUANTIZED[name] - of_xla
