"""Scaled dot-product attention against NumPy in float64, Flax and JAX's own, and at the edges."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tfm.attention import attention_weights, dot_product_attention, weights_of
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig


def reference(query, key, value, mask=None, bias=None, scale=None):
    """Equation 1 in float64, one head and one query at a time, over the last three axes."""
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


def random_inputs(seed=0, batch=(2,), length=5, keys=7, heads=3, features=4, value_features=6):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return (
        draw(*batch, length, heads, features),
        draw(*batch, keys, heads, features),
        draw(*batch, keys, heads, value_features),
        rng.random((*batch, heads, length, keys)) < 0.6,
        draw(*batch, heads, length, keys),
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("use_mask", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_attention_is_equation_1(batch, scale, use_mask, use_bias):
    query, key, value, mask, bias = random_inputs(batch=batch)
    chosen = {"mask": mask if use_mask else None, "bias": bias if use_bias else None, "scale": scale}
    found = dot_product_attention(query, key, value, **chosen)
    np.testing.assert_allclose(found, reference(query, key, value, **chosen), atol=1e-5)


def test_output_is_weights_times_values():
    query, key, value, mask, _ = random_inputs()
    mask[..., 0] = True
    weights = attention_weights(query, key, mask=mask)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert not np.asarray(weights)[~mask].any()
    mixed = np.einsum("bhlm,bmhv->blhv", weights, value)
    np.testing.assert_allclose(dot_product_attention(query, key, value, mask=mask), mixed, atol=1e-6)


@pytest.mark.long
def test_fully_masked_rows_are_zero():
    query, key, value, mask, _ = random_inputs()
    mask[0, 1, 2] = False

    def total(query, key, value):
        return (dot_product_attention(query, key, value, mask=mask) ** 2).sum()

    output = dot_product_attention(query, key, value, mask=mask)
    assert not np.asarray(output[0, 2, 1]).any()
    gradients = jax.grad(total, argnums=(0, 1, 2))(query, key, value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not np.asarray(gradients[0][0, 2, 1]).any()


@pytest.mark.parametrize(
    ("keys", "mask_shape", "dtype"),
    [(6, (1, 1, 5, 6), np.int32), (7, (1, 1, 5, 6), np.bool_), (6, (1, 3, 5, 6), np.bool_)],
)
def test_tests_check_types_and_shapes(keys, mask_shape, dtype):
    query, key, mask = np.ones((1, 5, 2, 4)), np.ones((1, keys, 2, 4)), np.ones(mask_shape, dtype)
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_weights(query, key, mask=mask)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_numbers_are_no_mask(implementation):
    """Of an additive mask, 0 would be taken for False and -inf for True."""
    x = np.ones((1, 3, 2, 4), np.float32)
    for mask in (np.where(np.tri(3), 0.0, -np.inf), np.tri(3, dtype=np.int32)):
        with pytest.raises(
            ValueError, match=r"mask must be bool, .* numbers to add to the logits are the bias"
        ):
            dot_product_attention(x, x, x, mask=mask, implementation=implementation)
    with pytest.raises(ValueError, match="query must be of a float type"):
        attention_weights(x.astype(np.int32), x)
    if implementation is None:
        with pytest.raises(ValueError, match="value must be of a float type"):
            dot_product_attention(x, x, x.astype(np.int32))


@pytest.mark.usefixtures("no_shape_checks")
def test_keys_have_heads_and_features_of_queries():
    query = np.ones((1, 5, 2, 4), np.float32)
    for shape in ((1, 6, 1, 4), (1, 6, 2, 3)):
        with pytest.raises(ValueError, match=r"the same heads H and features K, got \(1, 5, 2, 4\) and"):
            attention_weights(query, np.ones(shape, np.float32))


def test_huge_logits_do_not_overflow():
    query, key, value, mask, _ = random_inputs()
    output = dot_product_attention(1e4 * query, 1e4 * key, value, mask=mask)
    np.testing.assert_allclose(output, reference(1e4 * query, 1e4 * key, value, mask), atol=1e-5)


def test_attention_against_flax():
    query, key, value, mask, bias = random_inputs()
    mask[..., 0] = True  # Flax spreads an empty row evenly
    expected = nn.dot_product_attention(query, key, value, bias=bias, mask=mask)
    np.testing.assert_allclose(
        dot_product_attention(query, key, value, mask=mask, bias=bias), expected, atol=1e-5
    )


@pytest.mark.parametrize("use_mask", [False, True])
def test_library_implementation_is_equal(use_mask):
    query, key, value, mask, bias = random_inputs(value_features=4)
    mask[0, 1, 2] = False
    chosen = {"mask": mask if use_mask else None, "bias": bias}
    plain = dot_product_attention(query, key, value, **chosen)
    library = dot_product_attention(query, key, value, **chosen, implementation="xla")
    np.testing.assert_allclose(plain, library, atol=1e-5)


# What is to be had here beside "xla": a CUDA device has the fused kernel.
FUSED = ["xla", *(["cudnn"] if jax.default_backend() == "gpu" else [])]


@pytest.mark.parametrize("implementation", FUSED)
def test_fused_attention_in_bfloat16(implementation):
    """Values and gradients, with a mask that leaves one query nothing to attend to."""
    rng = np.random.default_rng(2)
    query, key, value = (jnp.asarray(rng.normal(size=(2, 64, 4, 64)), jnp.bfloat16) for _ in range(3))
    mask = rng.random((2, 1, 64, 64)) < 0.7
    mask[0, 0, 2] = False

    def total(inputs, implementation):
        output = dot_product_attention(*inputs, mask=mask, implementation=implementation)
        return (output.astype(jnp.float32) ** 2).sum(), output

    def both(implementation):
        step = jax.jit(jax.grad(lambda inputs: total(inputs, implementation), has_aux=True))
        return jax.tree.map(lambda x: np.asarray(x, np.float32), step((query, key, value)))

    jax.tree.map(
        lambda found, expected: np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05),
        both(implementation),
        both(None),
    )


def test_bfloat16_inputs_keep_a_float32_softmax():
    """Over 1,000 equal keys a bfloat16 sum would stick at 256; the weights must still sum to one."""
    query, key = jnp.ones((1, 1, 4), jnp.bfloat16), jnp.ones((1000, 1, 4), jnp.bfloat16)
    weights = attention_weights(query, key)
    assert weights.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(weights, np.float64).sum(), 1, rtol=1e-2)
    assert dot_product_attention(query, key, key).dtype == jnp.bfloat16


@pytest.mark.long
def test_dropout_of_weights_keeps_the_mean():
    query, key, value, mask, _ = random_inputs()
    plain = dot_product_attention(query, key, value, mask=mask)
    rngs = jax.random.split(jax.random.key(0), 2000)
    dropped = jax.vmap(
        lambda rng: dot_product_attention(query, key, value, mask=mask, dropout_rate=0.3, dropout_rng=rng)
    )(rngs)
    assert not np.allclose(dropped[0], plain)
    np.testing.assert_allclose(dropped.mean(0), plain, atol=0.15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"implementation": "flash"}, "must be one of"),
        ({"implementation": "xla", "dropout_rate": 0.1}, "no dropout"),
        ({"implementation": "xla"}, "equal key and value features"),
    ],
)
def test_unsupported_options_are_errors(arguments, message):
    query, key, value, *_ = random_inputs()
    with pytest.raises(ValueError, match=message):
        dot_product_attention(query, key, value, **arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "xla", "attention_dropout": 0.1}, "'xla' has no dropout of attention weights"),
        ({"attention": "xla", "value_features": 32}, "equal key and value features, got 64 and 32;"),
        ({"attention": "xla", "key_features": 32, "value_features": 64}, "got 32 and 64;"),
        ({"attention": "cudnn"}, "'cudnn' computes in bfloat16, got float32;"),
        (
            {"attention": "cudnn", "dtype": "bfloat16", "key_features": 20, "value_features": 20},
            "multiples of 8.* got 20;",
        ),
        (
            {"attention": "cudnn", "dtype": "bfloat16", "key_features": 264, "value_features": 264},
            "at most 256, got 264;",
        ),
    ],
)
def test_unsuitable_implementations_are_errors(fields, message):
    with pytest.raises(UserError, match=rf"model\.attention .*{message}"):
        TransformerConfig(**fields)


@pytest.mark.parametrize(
    ("attention", "features"), [("xla", 32), ("xla", 264), ("cudnn", 32), ("cudnn", 256)]
)
def test_suitable_implementations_are_accepted(attention, features):
    sizes = {"key_features": features, "value_features": features}
    assert TransformerConfig(attention=attention, dtype="bfloat16", **sizes).attention == attention


def test_cudnn_without_a_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    model = Transformer(TransformerConfig(attention="cudnn", dtype="bfloat16"), vocabulary_size=50)
    token = jnp.ones((1, 1), jnp.int32)
    with pytest.raises(UserError, match=r"'cudnn' needs a CUDA device, but this is a cpu: .*attention=xla"):
        jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), token, token)


def gradient_sizes(features, scale):
    """Mean over 200 queries of the largest derivative of a weight by its logit, of 8 normal keys."""
    query, key = np.random.default_rng(0).normal(size=(2, 200, 8, features)).astype(np.float32)
    weights = attention_weights(query[:, :1, None], key[:, :, None], scale=scale)[:, 0, 0]
    return float((weights * (1 - weights)).max(-1).mean())


@pytest.mark.long
def test_unscaled_softmax_gradients_vanish():
    """Section 3.2.1: products of K features have variance K, and push the softmax where it is flat."""
    scaled, unscaled = (
        [gradient_sizes(features, scale) for features in (4, 64, 4096)] for scale in (None, 1.0)
    )
    np.testing.assert_allclose(scaled, scaled[0], rtol=0.1)
    assert unscaled == sorted(unscaled, reverse=True)
    assert unscaled[2] < 0.1 * scaled[2]


@pytest.mark.long
@pytest.mark.parametrize("keys", [3, 8, 9])
def test_weights_of_an_attention_function(keys):
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, length, 3, 4)).astype(np.float32) for length in (5, keys))
    mask = rng.random((2, 1, 5, keys)) < 0.7
    wrapped = functools.partial(dot_product_attention, scale=0.3)
    np.testing.assert_allclose(
        weights_of(wrapped, query, key, mask=mask),
        attention_weights(query, key, mask=mask, scale=0.3),
        atol=1e-6,
    )
    np.testing.assert_array_equal(
        weights_of(dot_product_attention, query, key, mask=mask), attention_weights(query, key, mask=mask)
    )
    terms = {"scale": 0.3, "bias": rng.normal(size=(2, 3, 5, keys)).astype(np.float32)}
    for attention in (functools.partial(dot_product_attention), dot_product_attention):
        np.testing.assert_allclose(
            weights_of(attention, query, key, mask=mask, **terms),
            attention_weights(query, key, mask=mask, **terms),
            atol=1e-6,
        )


@pytest.mark.long
def test_weights_where_features_must_be_equal():
    """JAX's own function accepts only values that are as wide as the keys."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, length, 3, 4)).astype(np.float32) for length in (5, 6))
    mask = np.tril(np.ones((5, 6), bool))[None, None]
    np.testing.assert_allclose(
        weights_of(jax.nn.dot_product_attention, query, key, mask=mask),
        attention_weights(query, key, mask=mask),
        atol=1e-6,
    )
