"""The decoder-only model: GPT-2's counts, against NumPy, causality, packing and decoding over a cache."""

import dataclasses
import functools
import itertools

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.references import numpy_decoder_lm as numpy64
from tests.support.initialize import random_parameters
from tfm.errors import UserError
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig

TINY = DecoderLMConfig(layers=2, d_model=16, d_ff=24, heads=2, max_positions=12)
SINUSOIDS = dataclasses.replace(
    TINY, positions="interleaved", norm_order="post", scale_embedding=True, attention_bias=False
)
VOCABULARY = 13
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (3, 10))
LENGTHS = np.array([6, 3, 1])  # of the prefixes, which are padded
WIDTH = 2


@functools.cache
def build(config=TINY):
    """The model, and parameters none of which is zero."""
    model = DecoderLM(config, vocabulary_size=VOCABULARY)
    return model, random_parameters(model, TOKENS, deviation=0.2)


@functools.partial(jax.jit, static_argnames="model")
def apply(params, tokens, model, **keywords):
    return model.apply({"params": params}, tokens, train=False, **keywords)


def apply_padded(params, texts, model):
    """Logits of at most 3 texts, of one program for all lengths: what follows a token does not matter."""
    tokens = np.zeros_like(TOKENS)
    for row, text in zip(tokens, texts, strict=False):
        row[: len(text)] = text
    return apply(params, tokens, model)


@functools.partial(jax.jit, static_argnames="model")
def init_cache(params, context, model):
    options = {"width": WIDTH, "max_length": 6, "method": "init_cache"}
    return model.apply({"params": params}, context, **options)


@functools.partial(jax.jit, static_argnames="model")
def prefill(params, tokens, cache, model):
    return model.apply({"params": params}, tokens, cache, method="prefill")


@functools.partial(jax.jit, static_argnames="model")
def decode_step(params, tokens, cache, position, model):
    return model.apply({"params": params}, tokens, cache, position, method="decode_step")


@pytest.mark.long
@pytest.mark.parametrize(
    ("layers", "d_model", "heads", "count"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
    ],
)
def test_parameter_counts_of_gpt2(layers, d_model, heads, count):
    """Of the small model by all layers and by one; of the others, which take long to trace, by one."""
    config = DecoderLMConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)
    for traced in (1, 12) if layers == 12 else (1,):
        assert count_parameters(config, traced) == count
    assert DecoderLM(config, vocabulary_size=50_257).memory_estimate.count_parameters() == count


def count_parameters(config, traced):
    """Numbers in the parameters, of which so many layers are traced, and each counts for several."""
    model = DecoderLM(dataclasses.replace(config, layers=traced), vocabulary_size=50_257)
    init = functools.partial(model.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), np.ones((1, 1), int))["params"]
    stack = shapes["decoder"]
    in_layers = sum(x.size for i in range(traced) for x in jax.tree.leaves(stack[f"layers_{i}"]))
    others = sum(x.size for x in jax.tree.leaves(shapes)) - in_layers
    return others + in_layers * config.layers // traced


MECHANISMS = [
    dataclasses.replace(TINY, positions="rotary", key_value_heads=1, norm="rms_norm", gated=True),
    dataclasses.replace(TINY, positions="relative_keys", attention_window=4, scale_attention=False),
    dataclasses.replace(TINY, positions="relative_bias", tied_embeddings=False),
    dataclasses.replace(TINY, positions="alibi", norm_order="post", deep_norm=True),
]


@pytest.mark.parametrize(
    "config", [SINUSOIDS, dataclasses.replace(TINY, key_features=3, value_features=5), *MECHANISMS]
)
def test_estimated_count_is_exact(config):
    model, params = build(config)
    assert model.memory_estimate.count_parameters() == sum(x.size for x in jax.tree.leaves(params))


def test_forward_pass_against_numpy():
    model, params = build()
    np.testing.assert_allclose(apply(params, TOKENS, model), numpy64.decoder_lm(params, TOKENS), atol=2e-5)


@pytest.mark.long
def test_initialization_of_gpt2():
    config = dataclasses.replace(TINY, d_model=64, d_ff=256, layers=8)
    model = DecoderLM(config, vocabulary_size=500)

    @jax.jit
    def init(key):
        params = model.init(key, TOKENS, train=False)["params"]
        return params["decoder"]["layers_3"], params["embedding"], params["positions"]  # no other is compiled

    layer, *tables = init(jax.random.key(0))
    for inner in (layer["mixer"]["query"], layer["feed_forward"]["hidden"]):
        assert float(inner["kernel"].std()) == pytest.approx(0.02, rel=0.05)
        assert not inner["bias"].any()
    for output in (layer["mixer"]["output"], layer["feed_forward"]["output"]):
        assert float(output["kernel"].std()) == pytest.approx(0.02 / 4, rel=0.05)
    for table in tables:
        assert float(table["table"].std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("config", [TINY, SINUSOIDS])
def test_no_gradient_from_later_tokens(config):
    model, params = build(config)

    def logits_at(x, position):
        """Logits at a position as a function of the embeddings."""
        embed = lambda *_: x  # noqa: E731
        with nn.intercept_methods(
            lambda call, arguments, keywords, context: (
                embed()
                if context.module.name == "embedding" and context.method_name == "__call__"
                else call(*arguments, **keywords)
            )
        ):
            return model.apply({"params": params}, TOKENS[:1], train=False)[0, position].sum()

    x = np.random.default_rng(0).normal(size=(1, TOKENS.shape[1], TINY.d_model)).astype(np.float32)
    gradient = np.abs(np.asarray(jax.jit(jax.grad(logits_at), static_argnums=1)(x, 4))).sum((0, 2))
    assert (gradient[:5] > 0).all()
    assert (gradient[5:] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("config", [TINY, *MECHANISMS[:2]])
def test_packed_texts_equal_each_alone(config):
    model, params = build(config)
    row = np.concatenate([TOKENS[:1, :4], TOKENS[1:2, :5], np.zeros((1, 1), int)], axis=1)
    segments = np.array([[1] * 4 + [2] * 5 + [0]])
    positions = np.array([[*range(4), *range(5), 0]])
    packed = apply(params, row, model, positions=positions, segments=segments)
    alone = apply_padded(params, [TOKENS[0, :4], TOKENS[1, :5]], model)
    np.testing.assert_allclose(packed[0, :4], alone[0, :4], atol=1e-5)
    np.testing.assert_allclose(packed[0, 4:9], alone[1, :5], atol=1e-5)


def padded(first, last):
    """Columns `first` to `last` of the prefixes, 0 behind each one's own length."""
    columns = np.arange(first, last)
    return np.where(columns < LENGTHS[:, None], TOKENS[:, first:last], 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "chunks"),
    [
        *itertools.product(
            (TINY, SINUSOIDS, dataclasses.replace(TINY, scan=True)), ([(0, 6)], [(0, 2), (2, 6)])
        ),
        *((config, [(0, 2), (2, 6)]) for config in MECHANISMS),
    ],
)
def test_cached_decoding_equals_forward_pass(config, chunks):
    """After a prefix that is read in one pass or in two, whose rows differ in length; beams change places."""
    model, params = build(config)
    cache = init_cache(params, padded(*chunks[0]), model)
    for chunk in chunks[1:]:
        cache = prefill(params, padded(*chunk), cache, model)
    rng = np.random.default_rng(1)
    histories = [[list(TOKENS[row, :length]) for _ in range(WIDTH)] for row, length in enumerate(LENGTHS)]
    for position in range(4):
        tokens = rng.integers(3, VOCABULARY, (3, WIDTH))
        logits, cache = decode_step(params, tokens, cache, position, model)
        parents = rng.integers(0, WIDTH, (3, WIDTH))
        for beam in range(WIDTH):
            for row in range(3):
                histories[row][beam] = [*histories[row][beam], tokens[row, beam]]
            full = np.asarray(apply_padded(params, [each[beam] for each in histories], model))
            np.testing.assert_allclose(logits[:, beam], full[range(3), LENGTHS + position], atol=1e-5)
        for row in range(3):
            histories[row] = [list(histories[row][parent]) for parent in parents[row]]
        cache = cache.reorder(parents)


@pytest.mark.long
def test_cache_without_a_prefix():
    model, params = build()
    cache = init_cache(params, np.zeros((3, 0), np.int32), model)
    assert cache.prefix_mask.shape == (3, 0)
    logits, _ = decode_step(params, TOKENS[:, :1].repeat(WIDTH, 1), cache, 0, model)
    np.testing.assert_allclose(logits[:, 1], apply_padded(params, TOKENS[:, :1], model)[:, 0], atol=1e-5)


def test_samples_share_one_prefix():
    """The prefix has one slot a position in the pool, whatever the width."""
    model, params = build()
    cache = init_cache(params, padded(0, 6), model)
    assert cache.layers[0].key.shape[-1] == 6 + WIDTH * 6
    assert cache.layers[0].prefix == 6


def test_too_many_positions_are_refused():
    model, params = build()
    with pytest.raises(ValueError, match="13 positions are more than the 12 of model"):
        model.apply({"params": params}, np.ones((1, 13), int), train=False)
    with pytest.raises(ValueError, match="13 positions are more than the 12 of model"):
        model.apply({"params": params}, np.ones((1, 8), int), width=1, max_length=5, method="init_cache")


@pytest.mark.long
def test_dropout_only_in_training():
    model, params = build()
    rngs = {"dropout": jax.random.key(0)}
    trained = jax.jit(functools.partial(model.apply, train=True))({"params": params}, TOKENS, rngs=rngs)
    assert not np.allclose(trained, apply(params, TOKENS, model))


def test_parts_are_replaced_by_a_subclass():
    class Ours(DecoderLM):
        def make_norm(self, name=None):
            return nn.RMSNorm(name=name)

    params = random_parameters(Ours(TINY, vocabulary_size=VOCABULARY), TOKENS)
    assert set(params["decoder"]["norm"]) == {"scale"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 5}, "model.d_model 768 does not divide into 5 heads"),
        ({"layers": 0}, "model.layers must be from 1 to 1,000"),
        ({"positions": "spiral"}, "model.positions must be one of"),
        ({"d_model": 9, "heads": 3, "positions": "interleaved"}, "model.d_model must be even"),
        ({"attention": "xla"}, "model.attention 'xla' has no dropout of attention weights"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(UserError, match=message):
        DecoderLMConfig(**fields)
