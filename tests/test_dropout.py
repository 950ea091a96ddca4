"""Tests of the values of dropout and the statistics of its masks on one device."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy

from tfm.devices import backend
from tfm.devices.rows import make_device_key
from tfm.dropout import STEPS, dropout, hash_indices

SIGNIFICANT = 1e-6  # p-value below which a test fails. With fixed keys, a test always fails or never.
LEAST, MOST = SIGNIFICANT / 2, 1 - SIGNIFICANT / 2


bits = jax.jit(hash_indices, static_argnums=1)


def numbers(seed, *shape):
    """Returns float32 numbers that are uniform from -1 to 1, from the 16-bit hashes of a key."""
    return np.asarray(bits(jax.random.key(seed), shape), np.float32) / (STEPS / 2) - 1


def assert_uncorrelated(a, b):
    """Asserts that a and b are uncorrelated.

    The correlation of n independent pairs is normal with deviation 1 / sqrt(n).
    """
    a, b = a.ravel(), b.ravel()
    z = np.corrcoef(a, b)[0, 1] * np.sqrt(a.size)
    assert 2 * scipy.stats.norm.sf(abs(z)) > SIGNIFICANT


def assert_uniform(counts):
    """Asserts that counts are uniform.

    The test uses both tails of chi-square, because counts that are too even are not random either.
    """
    expected = counts.sum() / counts.size
    assert expected > 5
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert LEAST < scipy.stats.chi2.cdf(chi_square, counts.size - 1) < MOST


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_scales_kept_values(rate):
    x = jnp.ones(200_000)
    dropped = np.asarray(dropout(jax.random.key(3), x, rate))
    kept = dropped != 0
    assert LEAST < scipy.stats.binom.cdf(kept.sum(), x.size, 1 - rate) < MOST
    np.testing.assert_allclose(dropped[kept], 1 / (1 - rate), rtol=1e-4)
    assert dropped.dtype == x.dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_kept_values_are_scaled_and_rounded_once(dtype, rate):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(0).normal(size=4096).astype(dtype)
    found = np.asarray(jax.jit(lambda *arguments: dropout(*arguments, rate))(jax.random.key(0), x))
    share_kept = 1 - round(rate * STEPS) / STEPS
    expected = (x.astype(np.float32) * np.float32(1 / share_kept)).astype(dtype)
    kept = found != 0
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[kept], expected[kept])
    assert 0.5 < kept.mean() < 1


@pytest.mark.long
def test_dropout_is_equal_under_jit_and_in_gradients():
    x, rng = jnp.arange(1.0, 1001.0), jax.random.key(5)
    plain = dropout(rng, x, 0.3)
    np.testing.assert_allclose(plain, jax.jit(lambda x: dropout(rng, x, 0.3))(x), rtol=1e-6)
    gradient = jax.grad(lambda x: dropout(rng, x, 0.3).sum())(x)
    np.testing.assert_allclose(gradient, np.where(plain != 0, plain / x, 0), rtol=1e-6)


@pytest.mark.long
def test_ten_million_draws_are_uniform():
    """Counts all 2 ** 16 values, and pairs of neighbours by the upper 6 bits of each."""
    words = np.asarray(bits(jax.random.key(0), (10_000_000,)))
    assert_uniform(np.bincount(words, minlength=STEPS))
    pairs = words.reshape(-1, 2) >> 10
    assert_uniform(np.bincount(pairs[:, 0] << 6 | pairs[:, 1], minlength=1 << 12))


@pytest.mark.long
def test_neighbours_and_rows_are_uncorrelated():
    """Compares an activation [B, L, D] along each axis at distances that are powers of two."""
    values = numbers(2, 16, 128, 512)
    for axis in range(3):
        length = values.shape[axis]
        for distance in (1, 2, 3, length // 4, length // 2):
            ahead = np.take(values, range(distance, length), axis)
            assert_uncorrelated(ahead, np.take(values, range(length - distance), axis))
    flat = values.ravel()
    for bit in range(20):  # indices that differ in one bit
        index = np.flatnonzero(~np.arange(flat.size) >> bit & 1)
        assert_uncorrelated(flat[index], flat[index | 1 << bit])


@pytest.mark.long
def test_masks_of_steps_layers_and_keys_are_uncorrelated():
    """Derives keys as training does: folds in neighbouring steps, and then neighbouring layers."""
    root = jax.random.key(3)
    steps = [jax.random.fold_in(root, step) for step in range(8)]
    layers = [jax.random.fold_in(steps[0], layer) for layer in range(8)]
    seeds = [jax.random.key(seed) for seed in range(8)]
    masks = [np.asarray(bits(key, (300_000,)), np.float32) for key in (*steps, *layers, *seeds)]
    correlations = np.corrcoef(masks)[np.triu_indices(len(masks), 1)]
    z = correlations * np.sqrt(masks[0].size)
    assert 2 * scipy.stats.norm.sf(np.abs(z).max()) > SIGNIFICANT
    assert (
        scipy.stats.kstest(z, "norm").pvalue > 1e-4
    )  # all of them together are distributed like independent ones


@pytest.mark.long
def test_kept_counts_by_row_are_binomial():
    """Rows and features are not dropped more often than by chance."""
    rate, shape = 0.1, (1000, 1000)
    kept = np.asarray(dropout(jax.random.key(4), jnp.ones(shape), rate)) != 0
    share = 1 - round(rate * STEPS) / STEPS
    for axis in range(2):
        z = (kept.sum(axis) - 1000 * share) / np.sqrt(1000 * share * (1 - share))
        assert np.abs(z).max() < 5.5
        assert LEAST < scipy.stats.chi2.cdf((z**2).sum(), z.size) < MOST


def test_masks_of_keys_that_share_a_hash_word_are_uncorrelated(monkeypatch):
    """The hash takes two words from the key; two keys may agree in one of them."""
    halves = {}
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(halves["words"], jnp.uint32))
    masks = []
    for words in ((1, 2), (1, 3), (0, 2), (2, 1), (1 << 31, 2)):
        halves["words"] = words
        masks.append(np.asarray(hash_indices(None, (500_000,)), np.float32))
    z = np.corrcoef(masks)[np.triu_indices(len(masks), 1)] * np.sqrt(masks[0].size)
    assert 2 * scipy.stats.norm.sf(np.abs(z).max()) > SIGNIFICANT


@pytest.mark.parametrize("rate", [-0.5, 1.0, 2.0, float("nan")])
def test_dropout_rate_out_of_range_is_an_error(rate):
    with pytest.raises(ValueError, match="rate of dropout must be at least 0 and below 1"):
        dropout(jax.random.key(0), jnp.ones(3), rate)


def test_dropout_rate_above_0_without_a_key_is_an_error():
    with pytest.raises(ValueError, match=r"needs a random key, got none for rate 0\.5"):
        dropout(None, jnp.ones(3), 0.5)


def test_highest_dropout_rate_keeps_finite_values():
    x = dropout(jax.random.key(0), jnp.ones(1 << 18), 1 - 1e-9)
    assert set(np.unique(x)) <= {0.0, 2.0**16}


def test_dropout_rate_of_0_drops_nothing():
    x = jnp.ones(3)
    assert dropout(None, x, 0.0) is x


def test_dropped_elements_do_not_depend_on_the_device():
    """A program for an accelerator drops the same elements as one for a CPU."""
    masks = []
    for platform in ("cpu", "tpu", "cuda"):
        with backend.compile_for(platform):
            masks.append(
                str(jax.make_jaxpr(lambda key: dropout(key, jnp.ones((3, 5)), 0.5))(jax.random.key(0)))
            )
    assert len(set(masks)) == 1


def test_hash_is_fused_into_the_operation_that_uses_it():
    x = jnp.ones((48, 32, 20))
    program = jax.jit(lambda key, x: dropout(key, x, 0.1)).lower(jax.random.key(0), x).compile().as_text()
    entry = program[program.index("ENTRY") :]
    assert "f32[48,32,20]" in entry
    assert not re.search(r"(u32|s32|pred)\[(48,32,20|30720)\]", entry)


def test_device_key_of_a_single_device_is_the_key():
    key = jax.random.key(0)
    assert make_device_key(key) is key
