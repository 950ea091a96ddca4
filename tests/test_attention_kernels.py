"""The contract of all implementations of attention: they equal equation 1 for every form of a mask.

Only a CUDA device has cuDNN. Elsewhere, a function with its rules takes its place.
"""

import dataclasses
import functools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.numeric_gradients import assert_gradient_close
from tests.support import tiny
from tests.support.layer_cases import noisy
from tfm import layers, tasks
from tfm.attention import dot_product_attention
from tfm.attention_kernels import choose_implementation
from tfm.blockwise_attention import blockwise_attention
from tfm.devices import backend
from tfm.errors import UserError
from tfm.masks import AttentionMask, mask_to_array
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.testing.models import quick_jit
from tfm.training.task import Context

IS_GPU = jax.default_backend() == "gpu"
B, H = 3, 4


def attend_like_cudnn(query, key, value, *, mask=None, scale=None, implementation, **terms):
    """Computes attention by the rules of cuDNN's kernel: a visible query without keys gets NaN.

    Queries and keys after the lengths of a row are left out. The outputs of such queries are zeros.
    """
    assert implementation == "cudnn"
    assert query.dtype == key.dtype == value.dtype == jnp.bfloat16
    length, keys = query.shape[1], key.shape[1]
    distance = jnp.arange(keys) - jnp.arange(length)[:, None]
    visible = jnp.ones((len(query), query.shape[2], length, keys), bool)
    if mask is not None:
        assert mask.shape == visible.shape
        visible &= mask
    if terms.get("is_causal"):
        visible &= distance <= 0
    if terms.get("local_window_size") is not None:
        before, after = terms["local_window_size"]
        assert after == 0
        assert terms["is_causal"]
        visible &= distance >= -before
    lengths = {name: terms.get(f"{name}_seq_lengths") for name in ("query", "key_value")}
    if lengths["key_value"] is not None:
        visible &= (jnp.arange(keys) < lengths["key_value"][:, None])[:, None, None]
    is_query = jnp.ones((len(query), length), bool)
    if lengths["query"] is not None:
        is_query = jnp.arange(length) < lengths["query"][:, None]
    logits = jnp.einsum("blhk,bmhk->bhlm", query, key).astype(jnp.float32)
    logits *= query.shape[-1] ** -0.5 if scale is None else scale
    weights = jax.nn.softmax(jnp.where(visible | ~is_query[:, None, :, None], logits, -jnp.inf))
    output = jnp.einsum("bhlm,bmhv->blhv", weights.astype(value.dtype), value)
    return jnp.where(is_query[..., None, None], output, 0)


@pytest.fixture(params=["xla", "blockwise", "cudnn"])
def implementation(request, monkeypatch):
    if request.param == "cudnn" and not IS_GPU:
        monkeypatch.setattr(jax.nn, "dot_product_attention", attend_like_cudnn)
    return request.param


def make_masks(length):
    """Returns a mask of each form. One row has no token, and some queries see no key."""
    rng = np.random.default_rng(1)
    tokens = np.arange(length) < np.array([[length], [length // 2 + 3], [0]])
    segments = np.sort(rng.integers(0, 4, (B, length)))[:, ::-1].copy()
    array = rng.random((B, H, length, length)) < 0.2
    array[:, 1, 3::5] = False
    return {
        "none": None,
        "causal": AttentionMask(causal=True),
        "keys": AttentionMask(None, tokens),
        "tokens": AttentionMask(tokens, tokens),
        "causal tokens": AttentionMask(tokens, tokens, causal=True),
        "source": AttentionMask(tokens[::-1], tokens),
        "packed": AttentionMask(segments, segments),
        "causal packed": AttentionMask(segments, segments, causal=True),
        "window": AttentionMask(tokens, tokens, window=10),
        "causal window": AttentionMask(tokens, tokens, causal=True, window=7),
        "causal window of the keys": AttentionMask(None, tokens, causal=True, window=7),
        "causal window of the source": AttentionMask(tokens[::-1], tokens, causal=True, window=8),
        "causal packed window": AttentionMask(segments, segments, causal=True, window=7),
        "array": array,
        "array of all heads": array[:, :1],
        "array of all rows": array[0, :1],
    }


def run(inputs, mask, **options):
    """Returns the output and the gradients of query, key and value."""

    def total(*inputs):
        output = dot_product_attention(*inputs, mask=mask, **options)
        return (output.astype(jnp.float32) ** 2).sum(), output

    gradients, output = quick_jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*inputs)
    return [np.asarray(x, np.float32) for x in (output, *gradients)]


def random_inputs(length, dtype, features=16):
    arrays = np.random.default_rng(0).normal(size=(3, B, length, H, features))
    return list(jnp.asarray(arrays, dtype))


@pytest.mark.parametrize("name", make_masks(8))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_implementations_equal_the_equation(implementation, dtype, name):
    if implementation == "cudnn" and dtype == "float32":
        pytest.skip("cuDNN's kernel computes in bfloat16")
    length = 300 if implementation == "blockwise" else 64
    inputs, mask = random_inputs(length, dtype), make_masks(length)[name]
    expected = run(inputs, mask_to_array(mask, length, length), implementation=None)
    rtol, atol = (1e-5, 1e-5) if dtype == "float32" else (0.05, 0.05)
    for outcome, other in zip(run(inputs, mask, implementation=implementation), expected, strict=True):
        np.testing.assert_allclose(outcome, other, rtol=rtol, atol=atol * np.abs(other).max())


@pytest.mark.parametrize("length", [64, 128, *(pytest.param(n, marks=pytest.mark.long) for n in (192, 256))])
def test_queries_without_keys_are_finite_in_cudnn(monkeypatch, length):
    if not IS_GPU:
        monkeypatch.setattr(jax.nn, "dot_product_attention", attend_like_cudnn)
    inputs, masks = random_inputs(length, "bfloat16"), make_masks(length)
    windows = ("causal window of the keys", "causal window of the source")
    for name in ("array", "causal tokens", "packed", "source", *windows):
        outcomes = run(inputs, masks[name], implementation="cudnn")
        expected = run(inputs, masks[name])
        for outcome, other in zip(outcomes, expected, strict=True):
            np.testing.assert_allclose(outcome, other, rtol=0.05, atol=0.05 * np.abs(other).max())
        blind = ~np.asarray(mask_to_array(masks[name], length, length)).any(-1)
        assert blind.any()
        blind = np.broadcast_to(blind, (B, H, length)).swapaxes(1, 2)
        for outcome in outcomes[:2]:  # the output and the gradient of the query
            assert not outcome[blind].any()


@pytest.mark.parametrize("block", [4, 16, 50])
@pytest.mark.parametrize("name", ["none", "causal", "causal packed", "window", "causal window", "array"])
def test_blocks_of_any_size_compute_the_same(name, block):
    length, keys = 50, 41
    query, key, value = random_inputs(length, "float32")
    mask, value = make_masks(length)[name], value[..., :5]
    if isinstance(mask, np.ndarray):
        mask = mask[..., :keys]
    elif mask is not None and mask.key_segments is not None:
        mask = dataclasses.replace(mask, key_segments=mask.key_segments[:, :keys])
    output = blockwise_attention(query, key[:, :keys], value[:, :keys], mask=mask, scale=0.3, block=block)
    array = mask_to_array(mask, length, keys)
    expected = dot_product_attention(query, key[:, :keys], value[:, :keys], mask=array, scale=0.3)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_output_and_gradients_equal_the_equation_in_numpy(scale):
    """Values have other features than keys, so the default scale shows whose features it counts."""
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(2, length, 2, features)) for length, features in ((7, 4), (10, 4), (10, 3))]
    factors, sees = rng.normal(size=(2, 7, 2, 3)), rng.random((2, 2, 7, 10)) < 0.6
    sees[0, 0, 2] = False  # a query without keys

    def reference(inputs):
        query, key, value = inputs
        output = np.zeros((2, 7, 2, 3))
        for b, i, h in np.ndindex(2, 7, 2):
            visible = sees[b, h, i]
            logits = key[b, visible, h] @ query[b, i, h] * (scale or 0.5)
            weights = np.exp(logits)
            output[b, i, h] = weights / max(weights.sum(), 1e-9) @ value[b, visible, h]
        return output

    def loss(inputs):
        output = blockwise_attention(*inputs, mask=sees, scale=scale, block=4)
        return (output * factors).sum(), output

    gradient, output = quick_jit(jax.grad(loss, has_aux=True))([np.float32(x) for x in inputs])
    np.testing.assert_allclose(output, reference(inputs), atol=1e-5)
    assert_gradient_close(gradient, lambda inputs: (reference(inputs) * factors).sum(), inputs, directions=5)


def test_scale_of_the_logits_is_applied_to_the_queries():
    """Queries may be many fewer than keys, as in decoding, so a scaled copy of the keys would cost more."""
    query, key, value = np.zeros((1, 4, 1, 8)), np.zeros((1, 64, 1, 8)), np.zeros((1, 64, 1, 8))
    equations = jax.make_jaxpr(functools.partial(blockwise_attention, block=4))(query, key, value).eqns
    scaled = [x.aval.shape for eqn in equations if eqn.primitive.name == "mul" for x in eqn.outvars]
    assert scaled == [query.shape]


def test_blocks_skip_hidden_keys():
    """Keys of NaN would spoil every block that visits them."""
    query, key, value = random_inputs(64, "float32")
    value = value.at[:, 48:].set(jnp.nan)
    output = blockwise_attention(query, key, value, mask=AttentionMask(causal=True), block=16)
    assert jnp.isfinite(output[:, :48]).all()
    value = value.at[:, :16].set(jnp.nan)
    output = blockwise_attention(query, key, value, mask=AttentionMask(causal=True, window=8), block=16)
    assert jnp.isfinite(output[:, 32:48]).all()


@pytest.mark.parametrize("window", [None, 7, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_and_windows_have_one_meaning(implementation, groups, window):
    dtype = jnp.bfloat16 if implementation == "cudnn" else jnp.float32
    x = np.random.default_rng(0).normal(size=(B, 32, 32)).astype(np.float32)
    module = layers.MultiHeadAttention(32, 4, key_value_heads=groups, window=window, dtype=dtype)
    mask = make_masks(32)["causal tokens"]
    array = mask_to_array(mask, 32, 32)
    params = noisy(module.init(jax.random.key(0), x, x, mask=array, train=False))
    expected = module.apply({"params": params}, x, x, mask=array, train=False)
    fused = module.clone(implementation=implementation)
    for each in (mask, array):
        output = fused.apply({"params": params}, x, x, mask=each, train=False)
        atol = 1e-5 if dtype == jnp.float32 else 0.1
        np.testing.assert_allclose(np.float32(output), np.float32(expected), atol=atol)


@pytest.mark.parametrize("kind", ["translation", "language model"])
def test_tokens_and_segments_of_one_sentence_mean_the_same(kind):
    tokens = np.array([[5, 6, 7, 8], [5, 6, 0, 0]])
    if kind == "translation":
        config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=2)
        model, inputs = Transformer(config, 10), (tokens, tokens)
        names = ("input_segments", "target_segments")
    else:
        model, inputs = DecoderLM(DecoderLMConfig(layers=1, d_model=8, d_ff=8, heads=2), 10), (tokens,)
        names = ("segments",)
    params = noisy(model.init(jax.random.key(0), *inputs, train=False))
    packed, single = (
        model.apply({"params": params}, *inputs, train=False, **dict.fromkeys(names, segments))
        for segments in ((tokens > 0).astype(np.int32), tokens > 0)
    )
    np.testing.assert_array_equal(packed, single)


def kernel_calls(text):
    """Returns (kernel, form of its mask) of each forward call of cuDNN in a program."""
    pattern = r"__cudnn\$fmha(\w*Softmax)\(.*?mask_type\\22: \\22(\w+)"
    return re.findall(pattern, text)


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        ("buckets", {("Softmax", "PADDING"), ("Softmax", "PADDING_CAUSAL")}),
        ("packed", {("ScaleBiasSoftmax", "NO_MASK")}),
    ],
)
def test_training_tells_cudnn_the_form_of_the_mask(monkeypatch, corpus, tmp_path, batching, expected):
    """Only packed rows need a mask that is an array."""
    fused_attention = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    if not IS_GPU:
        monkeypatch.setattr(fused_attention, "check_cudnn_version", lambda: 91000)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = tiny.make_config(corpus)
    model = dataclasses.replace(config.model, attention="cudnn", dtype="bfloat16", dropout=0.0)
    data = dataclasses.replace(config.data, batching=batching)
    task = tasks.find(config.task).create(dataclasses.replace(config, model=model, data=data), str(tmp_path))
    variables = jax.eval_shape(task.init, jax.random.key(0))
    batch = jax.tree.map(lambda x: jnp.zeros((2, 16), x.dtype), task.open_data().example())

    def loss(variables):
        total, count = task.loss(variables, batch, Context()).terms["loss"]
        return total / count

    traced = jax.jit(jax.grad(loss)).trace(variables)
    calls = kernel_calls(traced.lower(lowering_platforms=("cuda",)).as_text())
    assert len(calls) == 2 + 3 * 2
    assert set(calls) == expected


@pytest.mark.parametrize(
    ("capability", "length", "changes", "expected", "reason"),
    [
        (0.0, 64, {}, None, "CUDA device"),
        (9.0, 64, {}, "cudnn", "cuDNN"),
        (9.0, 5000, {}, "cudnn", "cuDNN"),
        (8.0, 64, {"features": 136}, None, "capability 9"),
        (9.0, 64, {"features": 136}, "cudnn", "cuDNN"),
        (9.0, 65, {}, None, "even lengths, got 65"),
        (9.0, 64, {"dtype": "float32"}, None, "bfloat16, got float32"),
        (9.0, 64, {"dropout_rate": 0.1}, None, "dropout"),
        (9.0, 64, {"bias": True}, None, "add to the logits"),
        (0.0, 1024, {}, "blockwise", "1,024 keys"),
        (0.0, 1024, {"dropout_rate": 0.1}, None, "CUDA device.* blockwise .*dropout"),
    ],
)
def test_auto_chooses_by_device_and_options(monkeypatch, capability, length, changes, expected, reason):
    monkeypatch.setattr(backend, "cuda_capability", lambda: capability)
    monkeypatch.setattr(backend, "is_cpu", lambda: not capability)
    options = {"features": 64, "dtype": "bfloat16"} | changes
    x = jax.ShapeDtypeStruct((2, length, 4, options.pop("features")), options.pop("dtype"))
    chosen, text = choose_implementation(x, x, x, **options)
    assert chosen == expected
    assert re.search(reason, text)


def test_programs_for_absent_devices_use_no_kernel():
    with backend.compile_for("cuda"):
        assert backend.cuda_capability() == 0


def test_training_logs_once_which_attention_runs(caplog):
    x = np.zeros((1, 4, 8), np.float32)
    module = layers.MultiHeadAttention(8, 2, implementation="auto")
    variables = module.init(jax.random.key(0), x, x, mask=None, train=False)
    layers.attention.log_once.cache_clear()
    with caplog.at_level(logging.INFO, "tfm.layers.attention"):
        for train in (False, True, True):
            module.apply(variables, x, x, mask=None, train=train)
    (record,) = caplog.records
    assert re.search("equation 1, because cudnn needs a CUDA device", record.message) or IS_GPU


def test_odd_lengths_are_an_error_before_a_step_is_compiled():
    x = jnp.zeros((1, 5, 16), jnp.bfloat16)
    module = layers.MultiHeadAttention(16, 2, dtype=jnp.bfloat16)
    variables = module.init(jax.random.key(0), x, x, mask=None, train=False)
    with pytest.raises(UserError, match=r"model\.attention 'cudnn' .*even lengths, got 5 queries and 5 keys"):
        module.clone(implementation="cudnn").apply(variables, x, x, mask=None, train=True)


def test_auto_leaves_another_attention_function_alone():
    """A function such as this one has no keyword for the implementation, and its masks are booleans."""

    def attention(query, key, value, *, mask):
        assert mask.dtype == bool
        return value

    x = np.ones((1, 4, 8), np.float32)
    module = layers.MultiHeadAttention(8, 2, implementation="auto", attention=attention)
    module.init_with_output(jax.random.key(0), x, x, mask=AttentionMask(causal=True), train=True)


@pytest.mark.long
def test_training_on_8192_tokens_takes_bounded_memory():
    """The logits of equation 1 alone would take 256 MiB here."""
    sizes = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 1, "dropout": 0.0, "attention_dropout": 0.0}
    config = DecoderLMConfig(**sizes, positions="interleaved")
    tokens = np.random.default_rng(0).integers(1, 50, (1, 8192))
    segments = np.arange(8192)[None] // 3000 + 1

    def compile_step(attention):
        model = DecoderLM(dataclasses.replace(config, attention=attention), 50)
        params = model.init(jax.random.key(0), tokens[:, :2], train=False)

        def loss(params):
            logits = model.apply(params, tokens, train=True, segments=segments)[:, :-1]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

        def step(params):
            value, gradient = jax.value_and_grad(loss)(params)
            return value, jax.tree.map(lambda x, y: x - 0.1 * y, params, gradient)

        return jax.jit(step).lower(params).compile(), params

    step, params = compile_step("auto")
    assert step.memory_analysis().temp_size_in_bytes < 64 << 20
    equation, _ = compile_step(None)
    assert equation.memory_analysis().temp_size_in_bytes > 256 << 20
    first, params = step(params)
    second, params = step(params)
    assert second < first
