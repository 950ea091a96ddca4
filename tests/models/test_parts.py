"""Parts of the real Transformer replaced from outside, as a user's own package does it."""

import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from tests.support.initialize import random_parameters
from tests.support.programs import FAST
from tfm import layers
from tfm.attention import attention_weights, dot_product_attention, weights_of
from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.decoding.generate import DecodingConfig, search_batch
from tfm.decoding.parameters import search_parameters
from tfm.errors import UserError
from tfm.layers.collected_attention import attention_of
from tfm.losses import smoothed_cross_entropy
from tfm.models import Transformer, TransformerConfig

VOCABULARY = 14
CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0)


# What a user writes: a part, and the model that has it.


def sigmoid_attention(query, key, value, *, mask):
    logits = jnp.einsum("blhk,bmhk->bhlm", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhlm,bmhv->blhv", jnp.where(mask, jax.nn.sigmoid(logits), 0.0), value)


class SigmoidAttention(Transformer):
    def make_attention(self):
        return super().make_attention().clone(attention=sigmoid_attention)


class SwiGLU(nn.Module):
    features: int
    hidden: int

    @nn.compact
    def __call__(self, x, *, train):
        gate, value = nn.Dense(self.hidden)(x), nn.Dense(self.hidden)(x)
        return nn.Dense(self.features)(nn.swish(gate) * value)


class Gated(Transformer):
    def make_feed_forward(self):
        return SwiGLU(self.config.d_model, self.config.d_ff)


class RMSNorm(Transformer):
    def make_norm(self, name=None):
        return nn.RMSNorm(name=name)


def rotate(x, positions):
    first, second = jnp.split(x, 2, axis=-1)
    frequencies = 10_000.0 ** -(jnp.arange(first.shape[-1]) / first.shape[-1])
    angles = positions[..., None, None] * frequencies  # [L, 1, K / 2] or with a batch axis
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


class Rotary(Transformer):
    def make_positions(self):
        return None

    def make_mixer(self):
        return super().make_mixer().clone(encode_positions=rotate)


class Nearness(nn.Module):
    """The mean of all positions, nearer ones first; nothing to learn and no keys."""

    def __call__(self, x, memory, *, mask, positions, memory_positions, **_):
        distance = jnp.abs(positions[..., :, None] - memory_positions[..., None, :])
        weights = jnp.where(mask[:, 0], jnp.exp(-1.0 * distance), 0.0)
        return weights @ memory / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)  # padding attends to none

    def keys_values(self, memory, positions):
        return jnp.zeros((*memory.shape[:2], 1, 0)), memory[:, :, None]

    def attend_cached(self, x, key, value, **where):
        return self(x, value[:, 0], **where)


class NearnessMixer(Transformer):
    def make_mixer(self):
        return Nearness()


class OwnOutput(layers.Embedding):
    def setup(self):
        super().setup()
        self.output_table = self.param("output", nn.initializers.normal(0.1), self.table.shape)


class Untied(Transformer):
    def make_embedding(self):
        return OwnOutput(self.vocabulary_size, self.config.d_model)


class AllAtOnce(Rotary, Gated, RMSNorm, SigmoidAttention):
    pass


# Up to here.

MODELS = {
    cls.__name__: cls(CONFIG, VOCABULARY)
    for cls in (Transformer, SigmoidAttention, Gated, RMSNorm, Rotary, NearnessMixer, Untied, AllAtOnce)
}
MECHANISMS = {
    "positions": "relative_bias",
    "key_value_heads": 1,
    "attention_window": 3,
    "gated": True,
    "tied_embeddings": "none",
}
MODELS["fields"] = Transformer(dataclasses.replace(CONFIG, **MECHANISMS), VOCABULARY)
USERS = (sigmoid_attention, SigmoidAttention, SwiGLU, Gated, RMSNorm, rotate, Rotary, NearnessMixer, Untied)
RNG = np.random.default_rng(0)
BATCH, LENGTH = 8, 5
INPUTS = np.concatenate([RNG.integers(3, 14, (BATCH, LENGTH)), np.full((BATCH, 1), 2)], axis=1)
INPUTS[1, 3:] = (2, 0, 0)
TARGETS = np.where(INPUTS > 2, (INPUTS - 3 + 5) % 11 + 3, INPUTS)  # each token has its translation
SHIFTED = np.concatenate([np.full((BATCH, 1), BOS_ID), TARGETS[:, :-1]], axis=1)
STEPS, EXTRA, BEAM, SHORTEST = 20, 3, 3, 5


class Result(NamedTuple):
    """Of one model: its losses, and hypotheses of a beam with their teacher-forced logits."""

    losses: jax.Array
    found: Any
    logits: jax.Array


@functools.cache
def initialize(model):
    """Parameters of a model."""
    return random_parameters(model, INPUTS, SHIFTED)


def loss(params, model):
    logits = model.apply({"params": params}, INPUTS, SHIFTED, train=True)
    total, count = smoothed_cross_entropy(logits, TARGETS, TARGETS > 0, smoothing=0.0)
    return total / count


def train(params, model):
    """The losses of 20 steps."""
    optimizer = optax.adam(3e-3)
    flat, unravel = ravel_pytree(params)  # one array compiles sooner than many

    def step(carry, _):
        flat, state = carry
        value, gradient = jax.value_and_grad(lambda flat: loss(unravel(flat), model))(flat)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(flat, updates), state), value

    return jax.lax.scan(step, (flat, optimizer.init(flat)), length=STEPS)[1]


def search(params, model, beam):
    config = DecodingConfig(beam_size=beam, max_extra_tokens=EXTRA, min_length=SHORTEST, length_penalty=0.0)
    return search_batch.__wrapped__(model, (search_parameters(params),), INPUTS, config, beam)


def teacher_forced(params, model, tokens):
    """Logits [B, N, L, V] of a full forward pass over each of the hypotheses [B, N, L]."""

    def one(tokens):
        shifted = jnp.roll(tokens, 1, axis=-1).at[:, 0].set(BOS_ID)
        return model.apply({"params": params}, INPUTS, shifted, train=False)

    return jax.vmap(one, in_axes=1, out_axes=1)(tokens)


@pytest.fixture(scope="module")
def results():
    """{name: `Result`}, of one program for all models."""

    def run_all(initial):
        results = {}
        for name, params in initial.items():
            model = MODELS[name]
            # Not those of the trained model, which agree on short outputs.
            found = search(params, model, BEAM)
            logits = teacher_forced(params, model, found.tokens)
            results[name] = Result(train(params, model), found, logits)
        return results

    initial = {name: initialize(model) for name, model in MODELS.items()}
    return jax.jit(run_all, compiler_options=FAST)(initial)


@pytest.mark.parametrize("part", USERS, ids=lambda part: part.__name__)
def test_parts_take_at_most_ten_lines(part):
    assert len(inspect.getsource(part).rstrip().splitlines()) <= 10


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_models_with_other_parts_train(results, name):
    losses = results[name].losses
    assert losses[-1] < 0.8 * losses[0]
    assert name == "Transformer" or not np.allclose(losses, results["Transformer"].losses, rtol=1e-4)


@pytest.mark.long
def test_greedy_search_equals_the_forward_argmax():
    def run(params):
        found = search(params, model, 1)
        return found, teacher_forced(params, model, found.tokens)

    model = MODELS["AllAtOnce"]
    found, logits = jax.jit(run, compiler_options=FAST)(initialize(model))
    tokens, _, lengths = map(np.asarray, found)
    logits = np.array(logits)
    logits[..., :2] = -np.inf  # padding and BOS are no words
    logits[:, :, : SHORTEST - 1, EOS_ID] = -np.inf
    best = logits.argmax(-1)
    for row, length in enumerate(lengths[:, 0]):
        limit = (INPUTS[row] > 0).sum() + EXTRA
        length -= length == limit  # there, EOS is the only choice
        np.testing.assert_array_equal(tokens[row, 0, :length], best[row, 0, :length])
    assert lengths.min() >= SHORTEST


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_beam_scores_equal_the_forward_pass(results, name):
    tokens, scores, lengths = map(np.asarray, results[name].found)
    log_probabilities = jax.nn.log_softmax(results[name].logits)
    each = np.take_along_axis(np.asarray(log_probabilities), tokens[..., None], axis=-1)[..., 0]
    each = np.where(np.arange(tokens.shape[-1]) < lengths[..., None], each, 0)
    np.testing.assert_allclose(scores, each.sum(-1), rtol=1e-4)
    assert lengths.min() >= SHORTEST


@functools.partial(jax.jit, static_argnames="model", compiler_options=FAST)
def attend(params, model):
    """(logits, the collected attention)."""
    return model.apply({"params": params}, INPUTS, SHIFTED, train=False, mutable=["attention"])


class Spelled(Transformer):
    """The paper's parts once more, as a user would give them."""

    def make_norm(self, name=None):
        return nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, name=name)

    def make_attention(self):
        def attention(query, key, value, *, mask):
            weights = attention_weights(query, key, mask=mask)
            return jnp.einsum("bhlm,bmhv->blhv", weights, value)

        return super().make_attention().clone(attention=attention, encode_positions=lambda x, positions: x)

    def make_feed_forward(self):
        return layers.FeedForward(self.config.d_model, self.config.d_ff, lambda x: jnp.maximum(x, 0))

    def make_residual(self):
        return layers.Residual(self.config.norm_order, self.config.dropout, self.make_norm)


@pytest.mark.long
def test_explicit_default_parts_change_nothing():
    plain, by_hand = MODELS["Transformer"], Spelled(CONFIG, VOCABULARY)
    params = initialize(plain)

    @functools.partial(jax.jit, compiler_options=FAST)
    def init(key):
        return [model.init(key, INPUTS, SHIFTED, train=False) for model in (plain, by_hand)]

    jax.tree.map(np.testing.assert_array_equal, *init(jax.random.key(0)))
    found, expected = attend(params, by_hand), attend(params, plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@functools.cache
def gradient_of(model):
    gradient = jax.jit(jax.grad(loss), static_argnums=1, compiler_options=FAST)
    return gradient(initialize(MODELS["AllAtOnce"]), model)


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"remat": True}, {"remat": True, "scan": True}])
def test_remat_and_scan_of_other_parts(fields):
    model = AllAtOnce(dataclasses.replace(CONFIG, **fields), VOCABULARY)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        gradient_of(model),
        gradient_of(MODELS["AllAtOnce"]),
    )


class Stretched(Transformer):
    """Queries and keys grow with their absolute position, in every attention."""

    def make_attention(self):
        def stretch(x, positions):
            return x * (1 + positions[..., None, None])

        return super().make_attention().clone(encode_positions=stretch)


STRETCHED = Stretched(CONFIG, VOCABULARY)


@functools.partial(jax.jit, compiler_options=FAST)
def stretched(params, inputs, targets, **packing):
    return STRETCHED.apply({"params": params}, inputs, targets, train=False, **packing)


@functools.partial(jax.jit, compiler_options=FAST)
def stretched_steps(params, inputs, targets):
    """Logits [L, B, V] of cached decoding."""

    def step(cache, now):
        tokens, position = now
        options = {"method": "decode_step"}
        logits, cache = STRETCHED.apply({"params": params}, tokens[:, None], cache, position, **options)
        return cache, logits[:, 0]

    options = {"width": 1, "max_length": targets.shape[1], "method": "init_cache"}
    cache = STRETCHED.apply({"params": params}, inputs, **options)
    return jax.lax.scan(step, cache, (targets.T, jnp.arange(targets.shape[1])))[1]


@pytest.mark.long
def test_packed_positions_reach_every_attention():
    params = initialize(MODELS["Transformer"])
    first, second = np.array([[5, 6, 2]]), np.array([[7, 8, 9, 2]])
    packed = {
        f"{side}_{what}": value
        for side in ("input", "target")
        for what, value in (
            ("positions", np.array([[0, 1, 2, 0, 1, 2, 3]])),
            ("segments", np.array([[1, 1, 1, 2, 2, 2, 2]])),
        )
    }
    both = np.concatenate([first, second], axis=1)
    found = stretched(params, both, both, **packed)
    alone = np.zeros_like(INPUTS)  # as many as the program of the other test takes
    alone[0, :3], alone[1, :4] = first, second
    expected = stretched(params, alone, alone)
    np.testing.assert_allclose(found[0, :3], expected[0, :3], atol=1e-5)
    np.testing.assert_allclose(found[0, 3:], expected[1, :4], atol=1e-5)


@pytest.mark.long
def test_cached_positions_reach_every_attention():
    params = initialize(MODELS["Transformer"])
    full = stretched(params, INPUTS, SHIFTED)
    plain, _ = attend(params, MODELS["Transformer"])
    assert np.abs(full - plain)[:, 1:].max(-1).min() > 1e-4
    found = stretched_steps(params, INPUTS, SHIFTED)
    np.testing.assert_allclose(found.swapaxes(0, 1), full, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("keys", [3, 8, 9])
def test_weights_of_an_attention_function(keys):
    query, key = (RNG.normal(size=(2, length, 3, 4)).astype(np.float32) for length in (5, keys))
    mask = RNG.random((2, 1, 5, keys)) < 0.7
    wrapped = functools.partial(dot_product_attention, scale=0.3)
    np.testing.assert_allclose(
        weights_of(wrapped, query, key, mask=mask),
        attention_weights(query, key, mask=mask, scale=0.3),
        atol=1e-6,
    )
    np.testing.assert_array_equal(
        weights_of(dot_product_attention, query, key, mask=mask), attention_weights(query, key, mask=mask)
    )
    terms = {"scale": 0.3, "bias": RNG.normal(size=(2, 3, 5, keys)).astype(np.float32)}
    for attention in (functools.partial(dot_product_attention), dot_product_attention):
        np.testing.assert_allclose(
            weights_of(attention, query, key, mask=mask, **terms),
            attention_weights(query, key, mask=mask, **terms),
            atol=1e-6,
        )


@pytest.mark.long
def test_weights_where_features_must_be_equal():
    """JAX's own takes values only as wide as keys."""
    query, key = (RNG.normal(size=(2, length, 3, 4)).astype(np.float32) for length in (5, 6))
    mask = np.tril(np.ones((5, 6), bool))[None, None]
    np.testing.assert_allclose(
        weights_of(jax.nn.dot_product_attention, query, key, mask=mask),
        attention_weights(query, key, mask=mask),
        atol=1e-6,
    )


def test_a_mixer_without_weights_is_a_user_error():
    _, collected = attend(initialize(MODELS["NearnessMixer"]), MODELS["NearnessMixer"])
    assert attention_of(collected, "decoder", "cross_attention").shape[:3] == (1, BATCH, 2)
    for stack in ("encoder", "decoder"):
        with pytest.raises(UserError, match=f"no attention weights of {stack} mixer"):
            attention_of(collected, stack, "mixer")


@pytest.mark.long
def test_unknown_activations_are_errors():
    with pytest.raises(ValueError, match=r"activation must be a function or one of .*'gelu_tanh'"):
        layers.FeedForward(4, 8, "sine").init(jax.random.key(0), np.zeros((1, 4)), train=False)
