"""Tests of multi-head attention against NumPy in float64."""

import functools

import jax
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tests.references.numpy_transformer import wide
from tests.support.layer_cases import B, D, H, L, M, attention, noisy, random
from tfm import layers
from tfm.layers.observe import read_attention
from tfm.masks import first_and_last_mask
from tfm.testing.models import quick_jit


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_bias": True, "key_features": 3, "value_features": 5},
        {"use_bias": True, "key_value_heads": 1},
        {"key_value_heads": 2},
    ],
    ids=str,
)
def test_multi_head_attention_equals_numpy(fields):
    """Heads of a group share their keys and values, which are cached once for each group."""
    module, heads = layers.MultiHeadAttention(D, 4, **fields), fields.get("key_value_heads", 4)
    x, keys = random(B, L, D), random(B, M, D, seed=1)
    mask = np.random.default_rng(2).random((B, 1, L, M)) < 0.7
    params = noisy(module.init(jax.random.key(0), x, keys, mask=mask, train=False))
    found = module.apply({"params": params}, x, keys, mask=mask, train=False)
    cached = module.apply({"params": params}, keys, method="keys_values")
    assert [x.shape[2] for x in cached] == [heads, heads]
    repeated = {
        name: {key: np.repeat(x, 4 // heads, axis=-2) for key, x in params[name].items()}
        for name in ("key", "value")
    }
    np.testing.assert_allclose(found, numpy64.attention({**params, **repeated}, x, keys, mask), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"features": 10}, r"heads to divide features \(10\), got 4"),
        ({"key_value_heads": 3}, r"key_value_heads to divide heads \(4\), got 3"),
    ],
)
def test_number_of_heads_must_divide_evenly(fields, message):
    module, x = layers.MultiHeadAttention(**{"features": D, "heads": 4} | fields), random(1, 2, D)
    with pytest.raises(ValueError, match=message):
        module.init(jax.random.key(0), x, x, mask=None, train=False)


@pytest.mark.long
def test_attention_dropout_applies_only_in_training():
    plain, dropping = attention(), attention(dropout_rate=0.5)
    x, keys = random(B, L, D), random(B, M, D, seed=1)
    params = noisy(plain.init(jax.random.key(0), x, keys, mask=None, train=False))

    def run(module, train, **keywords):
        return module.apply({"params": params}, x, keys, mask=None, train=train, **keywords)

    np.testing.assert_array_equal(run(dropping, False), run(plain, False))  # without a random key
    rngs = {"dropout": jax.random.key(1)}
    assert not np.allclose(run(dropping, True, rngs=rngs), run(plain, True))
    np.testing.assert_array_equal(run(plain, True, rngs=rngs), run(plain, False))


@quick_jit(static_argnums=0)
def collect(module, params, x, positions, mask):
    """Returns the output of self-attention at positions [B, L], and its weights [B, H, L, M]."""
    where = {"positions": positions, "key_positions": positions}
    apply = functools.partial(module.apply, {"params": params}, x, x, mask=mask, **where, train=False)
    output, (weights,) = read_attention("weights", apply)
    return output, weights


def relative_keys(params, distance, query):
    """Returns the product of the query and the vector of the distance, clipped at 2 (Shaw et al. 2018)."""
    return wide(params["keys"])[np.clip(distance, -2, 2) + 2] @ query


def relative_bias(params, distance, query):
    """Returns the bias of each head for a distance.

    Each direction has 4 of the 8 buckets up to distance 6. They begin at 0, 1, 2 and 4, because
    2 * 3^(1/2) = 3.46.
    """
    bucket = np.searchsorted([1, 2, 4], abs(distance), side="right") + 4 * (distance > 0)
    return wide(params["biases"])[bucket]


@pytest.mark.long
@pytest.mark.parametrize(
    ("bias", "reference"),
    [
        (layers.RelativeKeys(max_distance=2), relative_keys),
        (layers.RelativeBias(H, buckets=8, max_distance=6), relative_bias),
    ],
    ids=["keys", "bias"],
)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_relative_positions_equal_loops_in_numpy(bias, reference, scale, implementation):
    module = attention(position_bias=bias, scale=scale, implementation=implementation)
    x, positions = random(B, L, D), np.array([[0, 1, 2, 3, 4], [3, 0, 1, 9, 2]])
    mask = np.random.default_rng(2).random((B, 1, L, L)) < 0.7
    where = {"positions": positions, "key_positions": positions}
    params = noisy(module.init(jax.random.key(0), x, x, mask=mask, **where, train=False))
    output, found = collect(module, params, x, positions, mask)
    query, key, value = (
        numpy64.project(params[name], x, "bld,dhk->blhk") for name in ("query", "key", "value")
    )
    scale = scale or key.shape[-1] ** -0.5
    weights = np.zeros((B, H, L, L))
    for b, h, i in np.ndindex(B, H, L):
        distances = positions[b] - positions[b, i]
        terms = [
            np.broadcast_to(reference(params["position_bias"], d, scale * query[b, i, h]), H)[h]
            for d in distances
        ]
        logits = scale * key[b, :, h] @ query[b, i, h] + np.array(terms)
        exponentials = np.where(mask[b, 0, i], np.exp(logits), 0)
        weights[b, h, i] = exponentials / max(exponentials.sum(), 1e-9)
    np.testing.assert_allclose(found, weights, atol=1e-5)
    expected = numpy64.project(
        params["output"], np.einsum("bhlm,bmhv->blhv", weights, value), "blhv,hvd->bld"
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.long
def test_restrict_mask_limits_attention_to_the_ends():
    module = attention(restrict_mask=lambda mask, *positions: first_and_last_mask(mask))
    x, positions = random(B, L, D), np.broadcast_to(np.arange(L), (B, L))
    mask = np.arange(L) < np.array([5, 3])[:, None, None, None]
    params = noisy(attention().init(jax.random.key(0), x, x, mask=mask, train=False))
    output, weights = collect(module, params, x, positions, np.broadcast_to(mask, (B, 1, L, L)))
    seen = np.asarray(weights > 0)
    np.testing.assert_array_equal(seen[0].any((0, 1)), [True, False, False, False, True])
    np.testing.assert_array_equal(seen[1].any((0, 1)), [True, False, True, False, False])
    np.testing.assert_allclose(output, numpy64.attention(params, x, x, first_and_last_mask(mask)), atol=1e-5)
