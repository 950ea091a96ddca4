"""The whole model: against NumPy, its parameter counts, causality, packing and cached decoding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.initialize import random_parameters
from tests.support.programs import FAST, count_foreign_calls, decode_steps
from tfm import backend
from tfm import config as config_module
from tfm.config import from_mapping
from tfm.errors import UserError
from tfm.matmul import MAX_SKINNY_ROWS, onednn
from tfm.models import Transformer, TransformerConfig

TINY = TransformerConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=24, heads=2, dropout=0.1)
LEARNED = {"positions": "learned", "max_positions": 7}  # as many as the source has
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(3, 30, (3, 7))
INPUTS[1, 4:] = 0
TARGETS = RNG.integers(3, 30, (3, 6))


@functools.cache
def build(config=TINY):
    model = Transformer(config, vocabulary_size=30)
    return model, random_parameters(model, INPUTS, TARGETS)


MODEL = Transformer(TINY, vocabulary_size=30)


def parameters():
    return build()[1]


@functools.partial(jax.jit, static_argnames=("model", "mutable"), compiler_options=FAST)
def apply(params, inputs, targets, model, seed=0, **keywords):
    rngs = {"dropout": jax.random.key(seed)}
    return model.apply({"params": params}, inputs, targets, train=False, rngs=rngs, **keywords)


def logits(inputs, targets, params=None, model=MODEL, **keywords):
    return np.asarray(apply(params or parameters(), inputs, targets, model, **keywords))


@functools.cache
def count_each(vocabulary_size, config):
    """{path: numbers} of each parameter of a model."""
    model, token = Transformer(config, vocabulary_size), jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), token, token, train=False))
    return {jax.tree_util.keystr(path): x.size for path, x in jax.tree_util.tree_leaves_with_path(shapes)}


def count(vocabulary_size=37_000, **fields):
    return sum(count_each(vocabulary_size, TransformerConfig(**fields)).values())


def count_equal_layers(vocabulary_size, **fields):
    """`count` of 6 + 6 layers by one of each, which is traced sooner."""
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, **fields)
    each = count_each(vocabulary_size, config)
    return sum(size * (6 if "layers_0" in path else 1) for path, size in each.items())


@pytest.mark.long
@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
def test_forward_pass_against_numpy(order):
    model, params = build(dataclasses.replace(TINY, norm_order=order))
    expected = numpy64.transformer(params, INPUTS, TARGETS, order)
    np.testing.assert_allclose(logits(INPUTS, TARGETS, params, model), expected, atol=2e-5)


@pytest.mark.long
def test_every_norm_uses_the_configured_epsilon(monkeypatch):
    fields = {
        "norm_order": "pre",
        "layer_norm_epsilon": 0.3,
    }  # norms of residuals, and the last of each stack
    model, params = build(dataclasses.replace(TINY, **fields))
    monkeypatch.setattr(numpy64, "layer_norm", functools.partial(numpy64.layer_norm, epsilon=0.3))
    expected = numpy64.transformer(params, INPUTS, TARGETS, "pre")
    np.testing.assert_allclose(logits(INPUTS, TARGETS, params, model), expected, atol=2e-5)


BIG = {"d_model": 1024, "d_ff": 4096, "heads": 16}
ANCHORS = [
    ({}, 63_045_632),
    ({"attention_bias": True}, 63_082_496),
    (BIG, 214_171_648),
    ({"positions": "learned", "max_positions": 256}, 63_045_632 + 2 * 256 * 512),
]


@pytest.mark.long
@pytest.mark.parametrize(("fields", "parameters"), ANCHORS)
def test_parameter_counts_are_exact(fields, parameters):
    assert count(**fields) == parameters


@pytest.mark.parametrize(("fields", "parameters"), [({}, 44_101_632), (BIG, 176_283_648)])
def test_parameter_counts_without_embedding(fields, parameters):
    assert count(**fields) - 37_000 * fields.get("d_model", 512) == parameters


TABLE_3 = {
    "base": ({}, 65.13),
    "A, 1 head": ({"heads": 1}, 65.13),
    "A, 32 heads": ({"heads": 32}, 65.13),
    "B, d_k 16": ({"key_features": 16}, 58.03),
    "B, d_k 32": ({"key_features": 32}, 60.40),
    "C, 2 layers": ({"encoder_layers": 2, "decoder_layers": 2}, 35.70),
    "C, 4 layers": ({"encoder_layers": 4, "decoder_layers": 4}, 50.41),
    "C, 8 layers": ({"encoder_layers": 8, "decoder_layers": 8}, 79.84),
    "C, d 256": ({"d_model": 256, "key_features": 32, "value_features": 32}, 27.86),
    "C, d 1024": ({"d_model": 1024, "key_features": 128, "value_features": 128}, 167.98),
    "C, d_ff 1024": ({"d_ff": 1024}, 52.53),
    "C, d_ff 4096": ({"d_ff": 4096}, 90.32),
    "big": (BIG, 218.33),
}


@pytest.mark.long
@pytest.mark.parametrize("row", TABLE_3)
def test_parameter_counts_of_table_3(row):
    """That code has biases in attention, a vocabulary of 40,960 and a table of 32 "target spaces" of its own,
    which is no part of the paper's model and is added here."""
    fields, millions = TABLE_3[row]
    count_layers = count if row in ("base", "big") or "encoder_layers" in fields else count_equal_layers
    total = count_layers(attention_bias=True, vocabulary_size=40_960, **fields)
    assert round((total + 32 * fields.get("d_model", 512)) / 1e6, 2) == millions


def test_parameter_counts_of_the_authors_code():
    for fields, features, expected in (({}, 512, 65_126_400), (BIG, 1024, 218_333_184)):
        total = count(attention_bias=True, vocabulary_size=40_960, **fields)
        assert total + 32 * features == expected
        assert count_equal_layers(attention_bias=True, vocabulary_size=40_960, **fields) == total


@pytest.mark.long
def test_causality_by_zero_gradients():
    """Logits at a position depend on the target embeddings up to it and on no later one."""

    def at_position(delta, position, params):
        def shifted_embed(module, stack, tokens, *positions, train):
            x = original(module, stack, tokens, *positions, train=train)
            return x + delta if tokens.shape == TARGETS.shape else x

        with pytest.MonkeyPatch.context() as patch:
            original = Transformer._embed
            patch.setattr(Transformer, "_embed", shifted_embed)
            return MODEL.apply({"params": params}, INPUTS, TARGETS, train=False)[:, position].sum()

    gradient_at = jax.jit(jax.grad(at_position), compiler_options=FAST)
    for position in (0, 2, 5):
        gradient = np.asarray(gradient_at(np.zeros((*TARGETS.shape, 16), np.float32), position, parameters()))
        assert not gradient[:, position + 1 :].any()
        assert np.abs(gradient[:, : position + 1]).max(-1).min() > 0


@pytest.mark.long
def test_targets_depend_on_source_but_not_padding():
    plain = logits(INPUTS, TARGETS)
    wider = np.pad(INPUTS, ((0, 0), (0, 5)))
    np.testing.assert_allclose(logits(wider, TARGETS), plain, atol=1e-5)
    for position in range(4):
        changed = INPUTS.copy()
        changed[1, position] = 3 + (changed[1, position] - 2) % 27
        difference = np.abs(logits(changed, TARGETS) - plain).max(-1)
        assert (difference[1] > 1e-6).all()
        assert not difference[[0, 2]].any()


@pytest.mark.long
@pytest.mark.parametrize("fields", [{}, LEARNED])
def test_packed_rows_equal_separate_sentences(fields):
    model, params = build(dataclasses.replace(TINY, **fields))
    first, second = INPUTS[:1, :5], INPUTS[2:, :4]
    first_target, second_target = TARGETS[:1, :3], TARGETS[2:, :6]
    # Padded, so that the program of other tests computes them: targets depend on no padding.
    alone = np.zeros_like(INPUTS), np.zeros_like(TARGETS)
    alone[0][0, :5], alone[1][0, :3] = first, first_target
    alone[0][2, :4], alone[1][2] = second, second_target

    def pack(a, b):
        tokens = np.concatenate([a, b, [[0, 0]]], axis=1)
        segments = np.repeat([1, 2, 0], [a.shape[1], b.shape[1], 2])[None]
        positions = np.concatenate([np.arange(a.shape[1]), np.arange(b.shape[1]), [0, 0]])[None]
        return tokens, segments, positions

    inputs, input_segments, input_positions = pack(first, second)
    targets, target_segments, target_positions = pack(first_target, second_target)
    packed = logits(
        inputs,
        targets,
        input_positions=input_positions,
        input_segments=input_segments,
        target_positions=target_positions,
        target_segments=target_segments,
        params=params,
        model=model,
    )
    expected = logits(*alone, params, model)
    np.testing.assert_allclose(packed[0, :3], expected[0, :3], atol=1e-5)
    np.testing.assert_allclose(packed[0, 3:9], expected[2], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("width", [1, 3])
def test_cached_decoding_equals_the_forward_pass(width):
    """Hypotheses extend random parents, as a beam does; each must see its own ancestors' tokens alone."""
    rng, length = np.random.default_rng(1), 6
    tokens, parents = rng.integers(3, 30, (length, 3, width)), rng.integers(0, width, (length, 3, width))
    found = decode_steps(MODEL, parameters(), INPUTS, tokens, parents, length + 2)
    history = np.zeros((3, width, 0), int)
    for position in range(length):
        history = np.concatenate([history, tokens[position][..., None]], axis=-1)
        padded = np.pad(history, ((0, 0), (0, 0), (0, length - position - 1)))  # later tokens do not matter
        for w in range(width):
            full = logits(INPUTS, padded[:, w])
            np.testing.assert_allclose(found[position][:, w], full[:, position], atol=1e-5)
        history = np.take_along_axis(history, parents[position][..., None], axis=1)


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"norm_order": "pre"}, LEARNED])
def test_cached_decoding_of_other_models(fields):
    model, params = build(dataclasses.replace(TINY, **fields))
    tokens = TARGETS.T[..., None]
    found = decode_steps(model, params, INPUTS, tokens, np.zeros_like(tokens), 6)
    full = logits(INPUTS, TARGETS, params, model)
    np.testing.assert_allclose(found[:, :, 0].swapaxes(0, 1), full, atol=1e-5)


@pytest.mark.long
def test_dropout_in_training_only():
    model, params = build(dataclasses.replace(TINY, encoder_layers=1, decoder_layers=1))

    @functools.partial(jax.jit, compiler_options=FAST)
    def train(params, seed):
        rngs = {"dropout": jax.random.key(seed)}
        return model.apply({"params": params}, INPUTS, TARGETS, train=True, rngs=rngs)

    assert not np.allclose(train(params, 0), train(params, 1))
    first, second = (logits(INPUTS, TARGETS, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(first, second)


@pytest.mark.long
def test_bfloat16_is_near_float32():
    model, params = build(dataclasses.replace(TINY, dtype="bfloat16"))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    found = logits(INPUTS, TARGETS, params, model)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), logits(INPUTS, TARGETS), atol=0.2)


@functools.cache
def initialization(model):
    """The program that initializes a model, as text: equal programs make equal parameters."""
    init = jax.jit(functools.partial(model.init, train=False))
    return init.lower(jax.random.key(0), INPUTS, TARGETS).as_text()


@functools.cache
def gradient_without_dropout(**fields):
    """The gradient of the squares of the logits, and the logits."""
    # One layer in the encoder: two in one stack are enough, and take long to compile.
    config = dataclasses.replace(TINY, dropout=0.0, encoder_layers=1)
    params = build(config)[1]
    model = Transformer(dataclasses.replace(config, **fields), vocabulary_size=30)

    def loss(params):
        logits = model.apply({"params": params}, INPUTS, TARGETS, train=True)
        return (logits**2).sum(), logits

    return jax.jit(jax.grad(loss, has_aux=True), compiler_options=FAST)(params)


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"remat": True}, {"scan": True}, {"remat": True, "scan": True}])
def test_remat_and_scan_change_no_results(fields):
    model = Transformer(dataclasses.replace(TINY, dropout=0.0, **fields), vocabulary_size=30)
    assert initialization(model) == initialization(MODEL)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        gradient_without_dropout(**fields),
        gradient_without_dropout(),
    )


@pytest.mark.long
@pytest.mark.skipif(
    not onednn.multiplies_bfloat16(), reason="oneDNN or instructions for bfloat16 are not here"
)
@pytest.mark.parametrize("fields", [{}, {"remat": True, "scan": True}], ids=str)
def test_bfloat16_by_onednn_has_the_gradient(fields):
    """All products of layers and logits are its own, forward and backward, and as exact as XLA's."""
    inputs, targets = (np.tile(x, (40, 1)) for x in (INPUTS, TARGETS))
    assert min(inputs.size, targets.size) > MAX_SKINNY_ROWS

    def gradient(params, dtype="bfloat16"):
        config = dataclasses.replace(TINY, dropout=0.0, dtype=dtype, **fields)
        model = Transformer(config, vocabulary_size=30)

        def loss(params):
            logits = model.apply({"params": params}, inputs, targets, train=True)
            return (logits.astype(jnp.float32) ** 2).mean()

        return jax.grad(loss)(params)

    def compute(*arguments):
        return jax.tree.leaves(
            jax.jit(gradient, static_argnums=1, compiler_options=FAST)(parameters(), *arguments)
        )

    products = 6 * TINY.encoder_layers + 10 * TINY.decoder_layers + 1
    assert fields or count_foreign_calls(gradient, parameters()) == 3 * products
    found, exact = compute(), compute("float32")
    with backend.no_foreign_calls():
        assert count_foreign_calls(gradient, parameters()) == 0
        plain = compute()
    for x, y, expected in zip(found, plain, exact, strict=True):
        error, of_xla = (jnp.linalg.norm(each - expected) for each in (x, y))
        assert error < 1.1 * of_xla + 1e-4
        assert error < 0.1 * jnp.linalg.norm(expected) + 1e-4


@pytest.mark.long
def test_scanned_layers_drop_differently():
    model = Transformer(dataclasses.replace(TINY, scan=True, dropout=0.5), vocabulary_size=30)

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(params, seed):
        rngs = {"dropout": jax.random.key(seed)}
        return model.apply({"params": params}, INPUTS, TARGETS, train=True, rngs=rngs)

    first, second, again = (run(parameters(), seed) for seed in (0, 1, 0))
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(first, again)


@pytest.mark.long
def test_attention_weights_are_collected():
    _, collected = apply(parameters(), INPUTS, TARGETS, MODEL, mutable=("attention",))
    leaves = jax.tree.leaves(collected["attention"])
    assert (
        sorted(leaf.shape for leaf in leaves) == [(3, 2, 6, 6)] * 2 + [(3, 2, 6, 7)] * 2 + [(3, 2, 7, 7)] * 2
    )
    own = collected["attention"]["decoder"]["layers_0"]["mixer"]["weights"][0]
    np.testing.assert_allclose(own.sum(-1), 1, atol=1e-5)
    assert not np.triu(np.asarray(own), 1).any()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation", "tanh"),
        ("norm_order", "middle"),
        ("positions", "spiral"),
        ("norm", "batch_norm"),
        ("tied_embeddings", "four"),
        ("max_positions", 0),
        ("layer_norm_epsilon", 0.0),
        ("dtype", "float8"),
        ("d_model", 0),
        ("d_model", 514),
        ("heads", 0),
        ("encoder_layers", 0),
        ("dropout", 1.0),
        ("attention_dropout", -0.1),
        ("attention", "flash"),
    ],
)
def test_impossible_configs_are_errors(field, value):
    with pytest.raises(UserError, match=rf"model\.{field} "):
        TransformerConfig(**{field: value})


@pytest.mark.long
def test_gelu_of_old_configs_is_tanh(caplog):
    older = dataclasses.asdict(TransformerConfig(activation="gelu"))
    del older["layer_norm_epsilon"]
    config_module._warn_once.cache_clear()
    read = [from_mapping(TransformerConfig, older, "config.model") for _ in range(2)]
    assert read == [TransformerConfig(activation="gelu_tanh")] * 2
    (message,) = caplog.messages
    beginning = "The config was written by an older version: config.model.activation 'gelu' was the"
    assert message.startswith(beginning)
    del older["activation"]
    for config in (TransformerConfig(), TransformerConfig(activation="gelu")):
        assert from_mapping(TransformerConfig, dataclasses.asdict(config)) == config
    assert from_mapping(TransformerConfig, older) == TransformerConfig()
    assert len(caplog.messages) == 1
