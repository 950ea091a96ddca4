"""Tests of the hooks of layers and models. Each test uses a small module of a published system."""

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import decoder_lm, transformer
from tfm import layers
from tfm.errors import UserError
from tfm.layers.kv_cache import DecodingCache
from tfm.losses import fused_linear_cross_entropy
from tfm.masks import causal_mask
from tfm.models import Transformer
from tfm.models.decoder_lm import DecoderLM
from tfm.search.state import gather_beams
from tfm.testing.models import assert_trees_close, quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
B, L, D, F, H = 2, 5, 8, 12, 2
X = RNG.normal(size=(B, L, D)).astype(np.float32)
TOKENS = RNG.integers(3, 20, (B, L))
CAUSAL = causal_mask(jnp.arange(L), jnp.arange(L))[None]


def make_layer(index=0, **fields):
    attention = layers.MultiHeadAttention(D, H)
    return layers.Layer(
        attention, layers.FeedForward(D, F), residual=functools.partial(layers.Residual, **fields)
    )


def initialize(module, *arguments, **keywords):
    """Returns random variables of a module."""
    init = quick_jit(lambda key: module.init(key, *arguments, **keywords))
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(x.dtype), init(jax.random.key(0)))


def apply(module, variables, *arguments, **keywords):
    return quick_jit(lambda variables: module.apply(variables, *arguments, **keywords))(variables)


def decode(stack, variables):
    """Returns the outputs [B, L, D] of a causal stack that reads X position by position."""

    @quick_jit
    def run(variables):
        call = functools.partial(stack.apply, variables)
        caches = call(X[:, :1], width=1, max_length=L, method="init_cache")
        cache = DecodingCache(layers=caches, ancestors=jnp.zeros((B, 1, L), jnp.int32))
        outputs = []
        for position in range(L):
            cache, where = cache.reorder(jnp.zeros((B, 1), jnp.int32)).begin_step(position)
            step = X[:, position : position + 1], cache.layers, position
            x, written = call(*step, **where, method="decode_step")
            cache = cache.replace(layers=written)
            outputs.append(x)
        return jnp.concatenate(outputs, axis=1)

    return run(variables)


def assert_decodes_like_the_forward_pass(stack):
    call = {"mask": CAUSAL, "positions": jnp.arange(L), "train": False}
    variables = initialize(stack, X, **call)
    np.testing.assert_allclose(decode(stack, variables), apply(stack, variables, X, **call), atol=1e-5)
    return variables


# BERT


class Typed(DecoderLM):
    """A model with a second embedding of the tokens, which normalizes the sum of all embeddings."""

    def setup(self):
        super().setup()
        self.types = layers.Embedding(2, self.config.d_model, scale=1.0)
        self.embedding_norm = self.make_norm()

    def make_embedding(self):
        return super().make_embedding().clone(use_bias=True)

    def embed(self, tokens):
        x = self.embedding(tokens) + self.types(tokens % 2)
        positions = jnp.arange(tokens.shape[-1])
        return self.add_positions(
            "encoder", x, self.positions, positions, norm=self.embedding_norm, train=False
        )


@pytest.mark.long
def test_subclass_may_add_a_norm_and_embeddings_to_the_input():
    model = Typed(decoder_lm().config, vocabulary_size=20)
    variables = quick_jit(lambda key: model.init(key, TOKENS, method="embed"))(jax.random.key(0))
    assert {"embedding", "types", "embedding_norm"} <= variables["params"].keys()
    x = apply(model, variables, TOKENS, method="embed")
    np.testing.assert_allclose(x.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(-1), 1, atol=1e-2)


@pytest.mark.long
def test_fused_loss_includes_the_bias_of_the_logits():
    rng = np.random.default_rng(1)
    embedding = layers.Embedding(20, D, use_bias=True)
    variables = initialize(embedding, TOKENS)
    variables["params"]["bias"] = rng.normal(size=20).astype(np.float32)
    logits = apply(embedding, variables, X, method="logits")
    expected = np.einsum("bld,vd->blv", X, variables["params"]["table"]) + variables["params"]["bias"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    inputs = embedding.apply(variables, X, method="fused_inputs")
    loss, _ = fused_linear_cross_entropy(*inputs, TOKENS, jnp.ones(TOKENS.shape), 0.0, 4)["loss"]
    log_probabilities = np.take_along_axis(jax.nn.log_softmax(expected), TOKENS[..., None], -1)
    np.testing.assert_allclose(loss, -log_probabilities.sum(), rtol=1e-5)


# ConvS2S


class LastInput(flax.struct.PyTreeNode):
    """A cache of the last input [B, W, D] of each hypothesis."""

    x: jax.Array

    def reorder(self, parents):
        return self.replace(x=gather_beams(self.x, parents))


class ConvolutionLayer(nn.Module):
    """A causal convolution of width 2 with a gate, in a residual connection (Gehring et al. 2017)."""

    def setup(self):
        self.project = nn.Dense(2 * D)
        self.residual = layers.Residual("pre", output_scale=0.5**0.5)

    def convolve(self, x, shift, train):
        def sublayer(x):
            value, gate = jnp.split(self.project(jnp.concatenate([shift(x), x], -1)), 2, -1)
            return value * nn.sigmoid(gate)

        return self.residual(x, sublayer, train=train)

    def __call__(self, x, *, mask, positions, train):
        return self.convolve(x, lambda x: jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0))), train)

    def init_cache(self, example, encoder_output=None, *, width, max_length):
        return LastInput(jnp.zeros((len(example), width, D)))

    def decode_step(self, x, cache, position, **where):
        inputs = []
        x = self.convolve(x, lambda x: inputs.append(x) or cache.x, train=False)
        return x, LastInput(inputs[0])


@pytest.mark.long
def test_convolution_layers_decode_with_their_own_cache():
    assert_decodes_like_the_forward_pass(layers.Stack(lambda index: ConvolutionLayer(), depth=2))


def test_reordering_a_cache_reorders_the_cache_of_each_layer():
    x = np.arange(12.0).reshape(2, 3, 2)
    cache = DecodingCache(layers=[LastInput(x)], ancestors=jnp.zeros((2, 3, 4), jnp.int32))
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    np.testing.assert_array_equal(
        cache.reorder(parents).layers[0].x, np.take_along_axis(x, parents[..., None], 1)
    )


@pytest.mark.parametrize("factor", [0.25, 2.0])
@pytest.mark.parametrize("order", layers.NORM_ORDERS)
def test_output_scale_multiplies_the_output_of_a_residual_connection(order, factor):
    plain, scaled = (layers.Residual(order, output_scale=scale) for scale in (1.0, factor))
    variables = initialize(plain, X, lambda x: x**2, train=False)
    outputs = [apply(module, variables, X, lambda x: x**2, train=False) for module in (plain, scaled)]
    np.testing.assert_allclose(outputs[1], factor * outputs[0], atol=1e-5)


# Universal Transformer


def add_step(x, index, positions):
    return x + jnp.sin(positions[..., None] + index)


class Ponder(nn.Module):
    """A module that returns the sum of all outputs by learned halting probabilities, and its cost."""

    @nn.compact
    def __call__(self, outputs, mask):
        weights = jax.nn.softmax(nn.Dense(1, name="halt")(jnp.stack(outputs)), axis=0)
        steps = jnp.arange(1, len(outputs) + 1)[:, None, None, None]
        return (weights * jnp.stack(outputs)).sum(0), (weights * steps).sum(0)[..., 0]


@pytest.mark.long
def test_shared_layer_runs_several_times_with_a_cache_for_each_step():
    stack = layers.Stack(make_layer, depth=3, shared=True, before_layer=add_step)
    variables = assert_decodes_like_the_forward_pass(stack)
    assert variables["params"].keys() == {"layers_0"}
    layer = {"params": variables["params"]["layers_0"]}
    x, where = X, {"mask": CAUSAL, "positions": jnp.arange(L), "train": False}
    for index in range(3):
        x = apply(make_layer(), layer, add_step(x, index, jnp.arange(L)), **where)
    np.testing.assert_allclose(apply(stack, variables, X, **where), x, atol=1e-5)


class Signal(nn.Module):
    """A module that adds a learned vector of the step and a sinusoid of the position."""

    @nn.compact
    def __call__(self, x, index, positions):
        steps = self.param("steps", nn.initializers.normal(1.0), (3, x.shape[-1]))
        return x + steps[index] + jnp.sin(positions[..., None])


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hooks", [{}, {"before_layer": add_step}, {"before_layer": Signal()}], ids=range(3))
@pytest.mark.parametrize("make_output", [None, Ponder])
def test_scan_equals_the_loop(shared, hooks, make_output):
    where = {"mask": CAUSAL, "positions": jnp.arange(L), "train": False}
    loop, scan = (
        layers.Stack(make_layer, depth=3, shared=shared, scan=scan, make_output=make_output, **hooks)
        for scan in (False, True)
    )
    variables = initialize(loop, X, **where)

    def gradient(stack):
        def loss(variables):
            return sum(jnp.sin(x).sum() for x in jax.tree.leaves(stack.apply(variables, X, **where)))

        return quick_jit(jax.value_and_grad(loss))(variables)

    assert_trees_close(gradient(scan), gradient(loop), rtol=1e-4, atol=1e-4)


def test_program_of_a_scanned_shared_layer_does_not_grow_with_the_depth():
    where = {"mask": CAUSAL, "positions": jnp.arange(L), "train": False}

    def count_lines(depth):
        stack = layers.Stack(make_layer, depth, shared=True, scan=True, before_layer=add_step)
        variables = stack.init(jax.random.key(0), X, **where)
        return str(jax.make_jaxpr(lambda variables: stack.apply(variables, X, **where))(variables)).count(
            "\n"
        )

    assert count_lines(9) == count_lines(3)


@pytest.mark.long
def test_stack_may_return_a_cost_with_its_output():
    stack = layers.Stack(make_layer, depth=3, shared=True, make_output=Ponder)
    where = {"mask": CAUSAL, "positions": jnp.arange(L), "train": False}
    x, cost = apply(stack, initialize(stack, X, **where), X, **where)
    assert x.shape == X.shape
    assert cost.shape == (B, L)
    assert (cost > 1).all()
    assert (cost < 3).all()


class MeanOfTokens(nn.Module):
    """A module that returns the mean of the last outputs over all tokens of the batch, without padding."""

    def __call__(self, outputs, mask):
        is_token = mask.any(-1)[:, 0, :, None]
        return (outputs[-1] * is_token).sum((0, 1)) / is_token.sum()


@pytest.mark.long
def test_output_of_a_stack_may_leave_out_padding():
    stack = layers.Stack(make_layer, depth=2, make_output=MeanOfTokens)
    is_token = jnp.arange(L) < jnp.array([[L], [2]])
    where = {"mask": (is_token[:, :, None] & is_token[:, None])[:, None], "train": False}
    variables = initialize(stack, X, **where)
    padded = jnp.where(is_token[..., None], X, 99.0)
    expected = apply(stack, variables, X, **where)
    np.testing.assert_allclose(apply(stack, variables, padded, **where), expected, atol=1e-5)


# Memory-compressed decoder


class EverySecond(layers.Layer):
    """A layer that attends to every second position.

    Its cache has half the slots, plus a slot that receives the other positions and is never read.
    """

    def __call__(self, x, *, mask, positions, train):
        even = jnp.arange(x.shape[1]) % 2 == 0
        return super().__call__(x, mask=mask & even, positions=positions, train=train)

    def init_cache(self, example, encoder_output=None, *, width, max_length):
        return super().init_cache(example, width=width, max_length=(max_length + 1) // 2 + 1)

    def decode_step(self, x, cache, position, *, mask, positions, key_positions):
        slots = jnp.arange(cache.key.shape[-1])
        visible = (2 * slots <= position) & (slots < len(slots) - 1)
        slot = jnp.where(position % 2 == 0, position // 2, len(slots) - 1)
        where = {"mask": visible[None, None, None], "positions": positions, "key_positions": 2 * slots}
        return super().decode_step(x, cache, slot, **where)


def alternate(index):
    if index % 2 == 0:
        return make_layer()
    return EverySecond(layers.MultiHeadAttention(D, H), layers.FeedForward(D, F))


@pytest.mark.long
def test_layers_may_alternate_and_a_cache_may_have_fewer_slots_than_positions():
    stack = layers.Stack(alternate, depth=3)
    assert_decodes_like_the_forward_pass(stack)
    variables = initialize(stack, X, mask=CAUSAL, positions=jnp.arange(L), train=False)
    caches = stack.apply(variables, X[:, :1], width=1, max_length=L, method="init_cache")
    assert [cache.key.shape[-1] for cache in caches] == [L, 4, L]


@pytest.mark.long
def test_scan_of_different_layers_is_an_error():
    stack = layers.Stack(
        lambda index: layers.Layer(layers.MultiHeadAttention(D, H), layers.FeedForward(D, F + index)),
        depth=2,
        scan=True,
    )
    where = {"mask": CAUSAL, "train": False}
    variables = stack.init(jax.random.key(0), X, **where)
    with pytest.raises(UserError, match=r"model\.scan"):
        stack.apply(variables, X, **where)


def test_scan_of_layers_with_state_is_an_error():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            return layers.BatchNorm(name="norm")(x, train=train)

    stack = layers.Stack(lambda index: Normed(), depth=2, scan=True)
    variables = stack.init(jax.random.key(0), X, train=False)
    with pytest.raises(UserError, match=r"model\.scan.* state"):
        stack.apply(variables, X, train=False)


# DETR


@pytest.mark.long
def test_values_of_attention_may_have_their_own_input():
    rng = np.random.default_rng(1)
    attention, keys, values = (
        layers.MultiHeadAttention(D, H),
        *rng.normal(size=(2, B, 3, D)).astype(np.float32),
    )
    where = {"mask": None, "train": False}
    variables = initialize(attention, X, keys, **where)
    call = functools.partial(apply, attention, variables, X)
    np.testing.assert_array_equal(call(keys, keys, **where), call(keys, **where))
    separate = call(keys, values, **where)
    np.testing.assert_allclose(call(keys, 2 * values, **where), 2 * separate, atol=1e-5)
    assert np.abs(separate - call(keys, **where)).max() > 0.01
    assert np.abs(separate - call(values, **where)).max() > 0.01


class EachOutput(nn.Module):
    """A module that applies the same norm to the outputs of all layers."""

    @nn.compact
    def __call__(self, outputs, mask):
        norm = nn.LayerNorm(name="norm")
        return [norm(x) for x in outputs]


@pytest.mark.long
def test_stack_may_return_the_outputs_of_all_layers():
    stack = layers.Stack(make_layer, depth=3, make_output=EachOutput)
    where = {"mask": None, "train": False}
    variables = initialize(stack, X, **where)
    outputs = apply(stack, variables, X, **where)
    params = variables["params"]
    second = {f"layers_{index}": params[f"layers_{index}"] for index in range(2)}
    shorter = layers.Stack(make_layer, depth=2, final_norm=lambda: nn.LayerNorm())
    expected = apply(shorter, {"params": second | {"norm": params["output"]["norm"]}}, X, **where)
    assert len(outputs) == 3
    np.testing.assert_allclose(outputs[1], expected, atol=1e-5)


# GAN


class Halved(nn.Module):
    """A projection whose output is halved, as an example for spectral norm."""

    inner: nn.Module

    @nn.compact
    def __call__(self, x):
        return 0.5 * self.inner(x)


class HalvedLM(DecoderLM):
    def make_dense(self, *arguments, name=None, **keywords):
        return Halved(super().make_dense(*arguments, **keywords, parent=None), name=name)


@pytest.mark.long
def test_model_may_replace_the_projections_of_all_sublayers():
    model, plain = HalvedLM(decoder_lm().config, vocabulary_size=20), decoder_lm()
    params = random_parameters(model, TOKENS)
    for layer in ("layers_0", "layers_1"):
        sublayers = params["decoder"][layer]
        names = [("self_attention", name) for name in ("query", "key", "value", "output")]
        for sublayer, name in [*names, ("feed_forward", "hidden"), ("feed_forward", "output")]:
            sublayers[sublayer][name] = jax.tree.map(lambda x: x / 2, sublayers[sublayer][name]["inner"])
    doubled = jax.tree.map(lambda x: x, params)
    assert jax.tree.structure(doubled) == jax.tree.structure(random_parameters(plain, TOKENS))
    found = apply(model, {"params": random_parameters(model, TOKENS)}, TOKENS, train=False)
    np.testing.assert_allclose(found, apply(plain, {"params": doubled}, TOKENS, train=False), atol=1e-5)


class Quiet(layers.MultiHeadAttention):
    """An attention whose output is halved."""

    def __call__(self, *arguments, **keywords):
        return super().__call__(*arguments, **keywords) / 2


class QuietTransformer(Transformer):
    attention_class = Quiet


def test_model_may_exchange_the_class_of_all_attentions():
    fields = {"attention_bias": True, "key_value_heads": 2, "attention_window": 2, "positions": "rotary"}
    model = transformer(cls=QuietTransformer, **fields)
    bound = model.bind({"params": random_parameters(model, TOKENS, TOKENS)})
    attentions = [
        bound.encoder.layers[0].self_attention,
        bound.decoder.layers[0].self_attention,
        bound.decoder.layers[0].cross_attention,
    ]
    assert {type(attention) for attention in attentions} == {Quiet}
    assert {attention.use_bias for attention in attentions} == {True}
    assert {attention.key_value_heads for attention in attentions} == {2}
    assert [attention.window for attention in attentions] == [2, 2, None]


# Prior of a discrete VAE


class RowsAndColumns(nn.Module):
    """The sum of learned vectors for the row and the column of a position in a grid of three columns."""

    @nn.compact
    def __call__(self, positions):
        row, column = jnp.divmod(positions, 3)
        return nn.Embed(4, 16, name="rows")(row) + nn.Embed(3, 16, name="columns")(column)


class GridLM(DecoderLM):
    def make_positions(self):
        return RowsAndColumns()


@pytest.mark.long
def test_positions_may_have_two_dimensions():
    model = GridLM(decoder_lm().config, vocabulary_size=20)
    variables = {"params": random_parameters(model, TOKENS)}
    assert {"rows", "columns"} == variables["params"]["positions"].keys()

    @quick_jit
    def run(variables):
        call = functools.partial(model.apply, variables)
        cache, outputs = call(TOKENS[:, :2], width=1, max_length=3, method="init_cache"), []
        for position in range(3):
            step = TOKENS[:, 2 + position][:, None], cache, position
            logits, cache = call(*step, method="decode_step")
            outputs.append(logits)
        return jnp.concatenate(outputs, 1), call(TOKENS, train=False)

    cached, forward = run(variables)
    np.testing.assert_allclose(cached, forward[:, 2:], atol=1e-5)
