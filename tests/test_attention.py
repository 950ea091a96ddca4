"""Tests of attention against NumPy in float64 and fused kernels, and of its rules for masks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.attention import (
    attention_weights,
    dot_product_attention,
    infer_attention_weights,
    masked_softmax,
    weighted_sum,
)
from tfm.dropout import dropout
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.testing.models import quick_jit


def reference(query, key, value, mask=None, bias=None, scale=None):
    """Returns equation 1 in float64, computed for one head and one query at a time."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch = query.shape[:-3]
    length, heads, features = query.shape[-3:]
    full = (*batch, heads, length, key.shape[-3])
    mask = np.broadcast_to(True if mask is None else mask, full)
    bias = np.broadcast_to(0.0 if bias is None else bias, full)
    output = np.zeros((*batch, length, heads, value.shape[-1]))
    for index in np.ndindex(*batch, heads, length):
        *b, h, i = index
        logits = key[(*b, slice(None), h)] @ query[(*b, i, h)] * (features**-0.5 if scale is None else scale)
        logits = logits + bias[index]
        allowed = mask[index]
        if not allowed.any():
            continue
        weights = np.zeros(len(allowed))
        weights[allowed] = np.exp(logits[allowed] - logits[allowed].max())
        output[(*b, i, h)] = weights / weights.sum() @ value[(*b, slice(None), h)]
    return output


def random_inputs(batch=(2,), length=5, keys=7, heads=3, features=4, value_features=6):
    """Returns query, key, value, mask and bias. One query sees no key."""
    rng = np.random.default_rng(0)
    shapes = (length, heads, features), (keys, heads, features), (keys, heads, value_features)
    arrays = [rng.normal(size=(*batch, *shape)).astype(np.float32) for shape in shapes]
    mask = rng.random((*batch, heads, length, keys)) < 0.6
    mask[..., 1, 2, :] = False
    return *arrays, mask, rng.normal(size=mask.shape).astype(np.float32)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_attention_is_equation_1(batch):
    *inputs, mask, bias = random_inputs(batch)
    options = [
        {"mask": each[0], "bias": each[1], "scale": each[2]}
        for each in itertools.product((None, mask), (None, bias), (None, 0.3))
    ]
    outputs = quick_jit(lambda inputs: [dot_product_attention(*inputs, **each) for each in options])(inputs)
    for output, each in zip(outputs, options, strict=True):
        np.testing.assert_allclose(output, reference(*inputs, **each), atol=1e-5)


def test_weights_are_a_distribution_over_visible_keys():
    query, key, _, mask, _ = random_inputs()
    weights = np.asarray(attention_weights(query, key, mask=mask))
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), atol=1e-6)
    assert not weights[~mask].any()
    assert (weights[mask] > 0).all()


def test_fully_masked_rows_have_zero_gradients():
    query, key, value, mask, _ = random_inputs()

    def total(*inputs):
        return (dot_product_attention(*inputs, mask=mask) ** 2).sum()

    gradients = quick_jit(jax.grad(total, argnums=(0, 1, 2)))(query, key, value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][:, 2, 1].any()
    assert np.abs(gradients[0][:, 2, 0]).min() > 0


def test_huge_logits_do_not_overflow():
    query, key, value, mask, _ = random_inputs()
    output = dot_product_attention(1e4 * query, 1e4 * key, value, mask=mask)
    np.testing.assert_allclose(output, reference(1e4 * query, 1e4 * key, value, mask), atol=1e-5)


def test_bfloat16_inputs_keep_a_float32_softmax():
    """A sum of 1,000 equal bfloat16 numbers would stop at 256."""
    query, key = jnp.ones((1, 1, 4), jnp.bfloat16), jnp.ones((1000, 1, 4), jnp.bfloat16)
    weights = attention_weights(query, key)
    assert weights.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(weights, np.float64).sum(), 1, rtol=1e-2)
    assert dot_product_attention(query, key, key).dtype == jnp.bfloat16


@pytest.mark.long
def test_attention_dropout_is_applied_to_the_weights():
    *inputs, mask, _ = random_inputs()
    key = jax.random.key(0)
    dropped = dropout(key, attention_weights(*inputs[:2], mask=mask), 0.3)
    output = dot_product_attention(*inputs, mask=mask, dropout_rate=0.3, dropout_rng=key)
    np.testing.assert_array_equal(output, weighted_sum(dropped, inputs[2]))
    assert np.abs(output - dot_product_attention(*inputs, mask=mask)).max() > 0.1


@pytest.mark.long
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_mask_without_the_axis_of_heads_is_an_error(implementation):
    """With as many heads as batch rows, broadcasting would treat the rows of the mask as heads."""
    query, key, value, mask, _ = random_inputs((3,), value_features=4)
    attend = functools.partial(dot_product_attention, query, key, value, implementation=implementation)
    with pytest.raises(ValueError, match=r"mask .* 4 axes.*got \(3, 5, 7\).*mask\[\.\.\., None, :, :\]"):
        attend(mask=mask[:, 0])
    np.testing.assert_array_equal(attend(mask=mask[0, :1]), attend(mask=mask[:1, :1]))
    if implementation is None:
        with pytest.raises(ValueError, match="mask"):
            masked_softmax(np.zeros(mask.shape, np.float32), mask[:, 0])


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_additive_mask_is_an_error(implementation):
    """The numbers 0 and -inf, read as booleans, would mean the opposite."""
    x = np.ones((1, 3, 2, 4), np.float32)
    for mask in (np.where(np.tri(3), 0.0, -np.inf)[None], np.tri(3, dtype=np.int32)[None]):
        with pytest.raises(ValueError, match=f"mask .* booleans .*True where a query may.*got {mask.dtype}"):
            dot_product_attention(x, x, x, mask=mask, implementation=implementation)


# Only a CUDA device has cuDNN.
KERNELS = ["xla", *(["cudnn"] if jax.default_backend() == "gpu" else [])]


@pytest.mark.parametrize("mask_axes", [0, 3, 4])
def test_xla_kernel_equals_the_equation(mask_axes):
    *inputs, mask, bias = random_inputs(value_features=4)
    options = {"mask": {0: None, 3: mask[0, 1:2], 4: mask}[mask_axes], "bias": bias[0], "scale": 0.3}
    output = dot_product_attention(*inputs, **options, implementation="xla")
    np.testing.assert_allclose(output, dot_product_attention(*inputs, **options), atol=1e-5)


@pytest.mark.parametrize("implementation", KERNELS)
def test_kernels_equal_the_equation_in_bfloat16(implementation):
    *inputs, mask, _ = random_inputs((2,), 64, 64, 4, 64, 64)
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in inputs]

    def run(implementation):
        def total(inputs):
            output = dot_product_attention(*inputs, mask=mask, implementation=implementation)
            return (output.astype(jnp.float32) ** 2).sum(), output

        results = quick_jit(jax.grad(total, has_aux=True))(inputs)
        return [np.asarray(x, np.float32) for x in jax.tree.leaves(results)]

    for output, expected in zip(run(implementation), run(None), strict=True):
        np.testing.assert_allclose(output, expected, rtol=0.05, atol=0.05)


SUPPORTED = {"key_features": 256, "value_features": 256, "attention_dropout": 0.0, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("attention", "fields"),
    [
        ("cudnn", {}),
        ("cudnn", {"key_features": 8, "value_features": 8}),
        ("xla", {"key_features": 9, "value_features": 9, "dtype": "float32"}),
        (None, {"key_features": 3, "attention_dropout": 0.5, "dtype": "float32"}),
    ],
)
def test_configs_accept_the_options_that_a_kernel_supports(attention, fields):
    assert TransformerConfig(attention=attention, **SUPPORTED | fields).attention == attention


@pytest.mark.parametrize(
    ("attention", "fields", "reason"),
    [
        ("xla", {"attention_dropout": 0.01}, r"dropout.* got 0\.01"),
        ("xla", {"key_features": 255}, "equal key and value features, got 255 and 256"),
        ("cudnn", {"dtype": "float32"}, "bfloat16, got float32"),
        ("cudnn", {"key_features": 12, "value_features": 12}, "multiples of 8.* got 12"),
        ("cudnn", {"key_features": 264, "value_features": 264}, "at most 256, got 264"),
    ],
)
def test_options_that_a_kernel_does_not_support_are_errors(attention, fields, reason):
    fields = SUPPORTED | fields
    with pytest.raises(UserError, match=rf"model\.attention '{attention}' .*{reason}"):
        TransformerConfig(attention=attention, **fields)
    key, value = (jnp.ones((1, 2, 1, fields[f"{x}_features"]), fields["dtype"]) for x in ("key", "value"))
    options = {"implementation": attention, "dropout_rate": fields["attention_dropout"]}
    with pytest.raises(ValueError, match=rf"implementation='{attention}' .*{reason}"):
        dot_product_attention(key, key, value, **options)


def test_unknown_kernels_and_additional_batch_axes_are_errors():
    query, key, *_ = random_inputs()
    with pytest.raises(ValueError, match=r"implementation .* 'xla', 'cudnn'.*got 'flash'"):
        dot_product_attention(query, key, key, implementation="flash")
    with pytest.raises(ValueError, match=r"\[B, L, H, K\], got \(1, 2, 5, 3, 4\)"):
        dot_product_attention(query[None], key[None], key[None], implementation="xla")


def test_cudnn_without_a_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    model = Transformer(TransformerConfig(attention="cudnn", dtype="bfloat16"), vocabulary_size=50)
    token = jnp.ones((1, 1), jnp.int32)
    with pytest.raises(UserError, match=r"'cudnn' needs a CUDA device, but this is a cpu.*attention=xla"):
        jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), token, token)


def gradient_size(features, scale):
    """Returns the mean over 200 queries of the largest derivative of a weight by its logit, for 8 keys."""
    query, key = np.random.default_rng(0).normal(size=(2, 200, 8, features)).astype(np.float32)
    weights = attention_weights(query[:, :1, None], key[:, :, None], scale=scale)[:, 0, 0]
    return float((weights * (1 - weights)).max(-1).mean())


@pytest.mark.long
def test_unscaled_softmax_gradients_vanish():
    """In section 3.2.1, products of K features have the variance K, which saturates the softmax."""
    scaled, unscaled = ([gradient_size(n, scale) for n in (4, 64, 4096)] for scale in (None, 1.0))
    np.testing.assert_allclose(scaled, scaled[0], rtol=0.1)
    assert unscaled == sorted(unscaled, reverse=True)
    assert unscaled[2] < 0.1 * scaled[2]


@pytest.mark.long
@pytest.mark.parametrize("keys", [3, 4, 5, 9])  # with 4 features, the last two need more than one call
@pytest.mark.parametrize(
    "attention", [functools.partial(dot_product_attention), jax.nn.dot_product_attention]
)
def test_weights_are_inferred_from_the_outputs_of_an_attention_function(attention, keys):
    query, key, _, mask, bias = random_inputs(keys=keys)
    mask[..., 0] = True  # JAX attends to all keys if a query sees none
    terms = {"mask": mask, "bias": bias, "scale": 0.3}
    expected = attention_weights(query, key, **terms)
    np.testing.assert_allclose(infer_attention_weights(attention, query, key, **terms), expected, atol=1e-6)
    inferred = infer_attention_weights(dot_product_attention, query, key, **terms)
    np.testing.assert_array_equal(inferred, expected)
