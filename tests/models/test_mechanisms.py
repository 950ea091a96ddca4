"""Tests of the properties of single options, in addition to the contract of all models."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import LANGUAGE_MODELS, USERS, decoder_lm, transformer
from tfm import interpret
from tfm.attention import masked_softmax
from tfm.errors import UserError
from tfm.layers.observe import read_attention
from tfm.models import Transformer
from tfm.positions import sinusoidal_encoding
from tfm.testing.models import WIDTH, quick_jit
from tfm.testing.parameters import random_parameters

TOKENS = np.random.default_rng(0).integers(3, 20, (2, 7))
LENGTH = TOKENS.shape[1]


def build(**fields):
    model = transformer(**fields)
    return model, random_parameters(model, TOKENS, TOKENS)


@quick_jit(static_argnums=0)
def encode(model, params, tokens):
    return model.apply({"params": params}, tokens, method="encode")


@quick_jit(static_argnums=0)
def logits(model, params, tokens, start=0, stride=1):
    where = start + stride * jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    packing = {"input_positions": where, "target_positions": where}
    return model.apply({"params": params}, tokens, tokens, train=False, **packing)


@pytest.mark.parametrize(
    ("positions", "expected"), [("none", True), ("interleaved", False), ("alibi", False)]
)
def test_encoder_is_permutation_equivariant_only_without_positions(positions, expected):
    model, params = build(positions=positions)
    order = np.array([4, 0, 6, 2, 5, 1, 3])
    plain, permuted = (encode(model, params, tokens) for tokens in (TOKENS, TOKENS[:, order]))
    assert np.allclose(permuted, plain[:, order], atol=1e-5) == expected


@pytest.mark.long
@pytest.mark.parametrize("positions", ["rotary", "relative_keys", "relative_bias", "alibi"])
def test_relative_positions_ignore_the_first_position_of_the_text(positions):
    model, params = build(positions=positions)
    np.testing.assert_allclose(logits(model, params, TOKENS, 50), logits(model, params, TOKENS), atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("positions", ["interleaved", "concatenated"])
def test_first_position_shifts_the_sinusoids(positions):
    plain, params = build(positions=positions)
    shifted, _ = build(positions=positions, first_position=2)
    np.testing.assert_allclose(logits(shifted, params, TOKENS), logits(plain, params, TOKENS, 2), atol=1e-5)


class AddsSinusoids(Transformer):
    """A Transformer that always adds the sinusoids of the paper."""

    def make_positions(self):
        return functools.partial(sinusoidal_encoding, features=self.config.d_model, layout="interleaved")


@pytest.mark.long
def test_interleaved_and_rotary_adds_sinusoids_to_rotary_positions():
    model, params = build(positions="interleaved_and_rotary")
    both = AddsSinusoids(transformer(positions="rotary").config, model.vocabulary_size)
    np.testing.assert_array_equal(logits(model, params, TOKENS), logits(both, params, TOKENS))
    for other in ("rotary", "interleaved"):
        alone, _ = build(positions=other)
        assert np.abs(logits(model, params, TOKENS) - logits(alone, params, TOKENS)).max() > 1e-3


def reached(model, params, position):
    """Returns for each position of the encoder output whether it depends on the token at `position`."""
    other = TOKENS[:1].copy()
    other[0, position] = 3 + other[0, position] % 7
    difference = encode(model, params, TOKENS[:1]) - encode(model, params, other)
    return (np.abs(difference)[0].max(-1) > 1e-6).tolist()


def test_window_of_three_reaches_the_neighbours_through_one_layer():
    model, params = build(attention_window=3)
    assert reached(model, params, 3) == [False, False, True, True, True, False, False]


@pytest.mark.parametrize(("kernel", "expected"), [(3, [1, 2, 3, 4, 5]), (2, [3, 4, 5])])
def test_two_convolutions_reach_the_neighbours_of_the_neighbours(kernel, expected):
    """With a window of one, attention reaches no other position. An even kernel reads one position before."""
    model, params = build(attention_window=1, feed_forward_kernel=kernel)
    assert np.flatnonzero(reached(model, params, 3)).tolist() == expected


@pytest.mark.long
@pytest.mark.parametrize("kernel", [3, 5])
def test_prefix_in_pieces_of_different_lengths_equals_a_forward_pass_with_convolutions(kernel):
    """A later piece continues the tokens of a row, not the padding after them."""
    model = decoder_lm(feed_forward_kernel=kernel)
    pieces = np.array([[5, 6, 7], [9, 0, 0]]), np.array([[4, 0], [8, 3]])
    rows = np.array([[5, 6, 7, 4, 11], [9, 8, 3, 11, 0]])
    params = random_parameters(model, rows)

    @quick_jit
    def run(params):
        apply = functools.partial(model.apply, {"params": params})
        cache = apply(pieces[0], width=WIDTH, max_length=2, method="init_cache")
        cache = apply(pieces[1], cache, method="prefill")
        tokens = np.full((2, WIDTH), 11)
        return apply(tokens, cache, 0, method="decode_step")[0], apply(rows, train=False)

    decoded, forward = run(params)
    for hypothesis in range(WIDTH):
        np.testing.assert_allclose(decoded[:, hypothesis], forward[[0, 1], [4, 3]], atol=1e-5)


def test_both_ends_reach_all_positions_with_ends_only_attention():
    model = USERS["EndsOnly"]
    params = random_parameters(model, TOKENS, TOKENS)
    assert all(reached(model, params, 0))
    assert all(reached(model, params, 6))
    assert reached(model, params, 2) == [position == 2 for position in range(LENGTH)]


@pytest.mark.long
def test_decoder_has_no_buckets_for_later_positions():
    """All 32 buckets of the decoder are for earlier positions.

    The first 16 of them have a single distance each, but only the first 8 of each direction in the encoder.
    """
    model, params = build(positions="relative_bias")
    run = logits.__wrapped__
    gradient = quick_jit(jax.grad(lambda params: (run(model, params, TOKENS[:1], 0, 2) ** 2).sum()))(params)
    used = {
        stack: np.flatnonzero(
            np.abs(gradient[stack]["layers_0"]["self_attention"]["position_bias"]["biases"]).max(-1)
        ).tolist()
        for stack in ("encoder", "decoder")
    }
    assert used["decoder"] == [0, 2, 4, 6, 8, 10, 12]
    assert used["encoder"] == [0, 2, 4, 6, 8, 9, 18, 20, 22, 24, 25]


@pytest.mark.long
def test_recorded_logits_include_scale_and_bias():
    model, params = build(positions="relative_keys", key_value_heads=2, scale_attention=False)
    names = [f"decoder.layers_0.self_attention.{name}" for name in ("logits", "weights")]

    @quick_jit
    def read(params):
        output, reads = interpret.run(model, params, TOKENS, TOKENS, read=names)
        return output, *(reads[name] for name in names)

    output, products, weights = read(params)
    np.testing.assert_allclose(output, logits(model, params, TOKENS), atol=1e-5)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    np.testing.assert_allclose(weights, masked_softmax(products, causal[None]), atol=1e-5)


@pytest.mark.long
def test_one_hot_positions_next_to_the_input_equal_learned_positions():
    model, learned = USERS["OneHotPositions"], transformer(positions="learned")
    params = random_parameters(model, TOKENS, TOKENS)
    tables = {
        f"{stack}_positions": {"table": params[f"{stack}_positions"]["rows"]["kernel"]}
        for stack in ("encoder", "decoder")
    }
    found = logits(model, params, TOKENS)
    np.testing.assert_allclose(found, logits(learned, params | tables, TOKENS), atol=1e-5)


def test_hypotheses_share_one_cache_of_their_prefix():
    model = LANGUAGE_MODELS["GPT-2"]
    variables = {"params": random_parameters(model, TOKENS)}
    options = {"width": WIDTH, "max_length": 5, "method": "init_cache"}
    cache = jax.eval_shape(lambda: model.apply(variables, TOKENS[:, :6], **options))
    assert cache.layers[0].key.shape[-1] == 6 + WIDTH * 5
    empty = jax.eval_shape(lambda: model.apply(variables, TOKENS[:, :0], **options))
    assert empty.prefix_mask.shape == (2, 0)


@pytest.mark.parametrize("length", [13, 8])
def test_more_positions_than_rows_of_the_table_are_an_error(length):
    model = LANGUAGE_MODELS["GPT-2"]
    params, tokens = random_parameters(model, TOKENS), np.ones((1, length), int)
    arguments = {"train": False} if length > 12 else {"width": 1, "max_length": 5, "method": "init_cache"}
    with pytest.raises(ValueError, match=r"12 positions .*model\.max_positions.*got 13"):
        model.apply({"params": params}, tokens, **arguments)


@pytest.mark.long
def test_reading_weights_of_an_attention_without_weights_is_an_error():
    model = USERS["NearnessAttention"]
    params = random_parameters(model, TOKENS, TOKENS)
    apply = functools.partial(model.apply, {"params": params}, TOKENS, TOKENS, train=False)
    point = model.attention_points["encoder"]
    with pytest.raises(UserError, match=re.escape(point)):
        jax.eval_shape(lambda: read_attention(point, apply))
