"""Losses against NumPy in float64, in value, gradient and memory."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_foreign_calls
from tfm import backend
from tfm.losses import (
    chunked_log_probabilities,
    fused_linear_cross_entropy,
    smoothed_cross_entropy,
    smoothing_entropy,
)
from tfm.matmul import onednn


def loss_case(seed=0, shape=(3, 4), classes=7):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(*shape, classes))
    return (
        logits.astype(np.float32),
        rng.integers(0, classes, shape),
        (rng.random(shape) < 0.7).astype(np.float32),
    )


@pytest.mark.long
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2])
def test_loss_against_smoothed_labels_in_float64(smoothing):
    logits, labels, weights = loss_case()
    total, classes = 0.0, logits.shape[-1]
    for index in np.ndindex(*labels.shape):
        target = np.full(classes, smoothing / (classes - 1))
        target[labels[index]] = 1 - smoothing
        row = logits[index].astype(np.float64)
        log_probabilities = row - row.max() - np.log(np.exp(row - row.max()).sum())
        total -= weights[index] * (target * log_probabilities).sum()
    found, count = smoothed_cross_entropy(logits, labels, weights, smoothing=smoothing)
    np.testing.assert_allclose(found, total, rtol=1e-5)
    assert count == weights.sum()


@pytest.mark.long
def test_sums_and_counts_add_up_over_splits():
    logits, labels, weights = loss_case()
    whole = smoothed_cross_entropy(logits, labels, weights, smoothing=0.1)
    parts = [
        smoothed_cross_entropy(logits[s], labels[s], weights[s], smoothing=0.1)
        for s in (slice(1), slice(1, 3))
    ]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)


@pytest.mark.long
def test_smoothing_entropy_is_the_lowest_loss():
    smoothing, classes = 0.1, 9
    best = np.full((1, classes), np.log(smoothing / (classes - 1)), np.float32)
    best[0, 4] = np.log(1 - smoothing)
    label, weight = np.array([4]), np.ones(1)
    lowest, _ = smoothed_cross_entropy(best, label, weight, smoothing=smoothing)
    np.testing.assert_allclose(lowest, smoothing_entropy(smoothing, classes), rtol=1e-5)
    gradient = jax.grad(lambda x: smoothed_cross_entropy(x, label, weight, smoothing=smoothing)[0])(best)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    assert smoothing_entropy(0, classes) == 0


def test_loss_of_bfloat16_logits_is_float32():
    logits, labels, weights = loss_case()
    total, _ = smoothed_cross_entropy(jnp.asarray(logits, jnp.bfloat16), labels, weights, smoothing=0.1)
    assert total.dtype == jnp.float32


@pytest.mark.long
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 5, 12, 64])
def test_fused_loss_and_gradient_equal_the_plain(smoothing, chunk):
    rng = np.random.default_rng(1)
    _, labels, weights = loss_case(classes=7)
    features = rng.normal(size=(3, 4, 6)).astype(np.float32)
    table = rng.normal(size=(7, 6)).astype(np.float32)

    def plain(features, table):
        total, count = smoothed_cross_entropy(features @ table.T, labels, weights, smoothing=smoothing)
        return 3 * total, count

    def fused(features, table):
        total, count = fused_linear_cross_entropy(features, table, labels, weights, smoothing, chunk)["loss"]
        return 3 * total, count

    expected = jax.value_and_grad(plain, (0, 1), has_aux=True)(features, table)
    found = jax.value_and_grad(fused, (0, 1), has_aux=True)(features, table)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.long
@pytest.mark.parametrize("products", [contextlib.nullcontext, backend.no_foreign_calls])
def test_fused_loss_of_bfloat16_sums_in_float32(products):
    """Features and the gradient that goes back to them are rounded; the loss between is as in float32."""
    rng = np.random.default_rng(1)
    _, labels, weights = loss_case(classes=7)
    features = jnp.asarray(rng.normal(size=(3, 4, 6)), jnp.bfloat16)
    table = jnp.asarray(rng.normal(size=(7, 6)), jnp.bfloat16).astype(jnp.float32)

    def loss(features, table):
        return fused_linear_cross_entropy(features, table, labels, weights, 0.1, 5)["loss"][0]

    with products():
        found, (gradient, table_gradient) = jax.value_and_grad(loss, (0, 1))(features, table)
        calls = count_foreign_calls(jax.value_and_grad(loss, (0, 1)), features, table)
    by_onednn = products is contextlib.nullcontext and onednn.multiplies_bfloat16()
    assert calls == (3 if by_onednn else 0)
    expected, (wide, wide_table) = jax.value_and_grad(loss, (0, 1))(features.astype(jnp.float32), table)
    assert (found.dtype, gradient.dtype, table_gradient.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.astype(jnp.float32), wide, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(table_gradient, wide_table, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("chunk", [1, 5, 12, 64])
def test_chunked_log_probabilities_equal_whole(chunk):
    rng = np.random.default_rng(2)
    features, table = rng.normal(size=(3, 4, 6)), rng.normal(size=(7, 6))
    labels = rng.integers(0, 7, (3, 4))
    exponentials = np.exp(features @ table.T)
    expected = np.log(np.take_along_axis(exponentials, labels[..., None], -1)[..., 0] / exponentials.sum(-1))
    found = chunked_log_probabilities(jnp.float32(features), jnp.float32(table), labels, chunk)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fused_loss_reports_nll_and_accuracy():
    logits, labels, weights = loss_case()
    metrics = fused_linear_cross_entropy(logits, np.eye(7, dtype=np.float32), labels, weights, 0.1, 5)
    nll = smoothed_cross_entropy(logits, labels, weights, smoothing=0)
    np.testing.assert_allclose(metrics["nll"], nll, rtol=1e-5)
    correct = ((logits.argmax(-1) == labels) * weights).sum()
    np.testing.assert_allclose(metrics["accuracy"], (correct, weights.sum()))
    plain = smoothed_cross_entropy(logits, labels, weights, smoothing=0.1)
    np.testing.assert_allclose(metrics["loss"], plain, rtol=1e-5)


def test_chunked_functions_never_hold_all_logits():
    features, table = jnp.ones((4, 250, 8)), jnp.ones((333, 8))
    labels, weights = jnp.ones((4, 250), jnp.int32), jnp.ones((4, 250))

    def loss(features, table):
        return fused_linear_cross_entropy(features, table, labels, weights, 0.1, 10)["loss"][0]

    def log_probabilities(features, table):
        return chunked_log_probabilities(features, table, labels, 10)

    for function in (jax.grad(loss, (0, 1)), log_probabilities):
        text = jax.jit(function).lower(features, table).as_text()
        assert "4x2x333x" in text
        assert "4x250x333x" not in text
        assert "1000x333x" not in text


@pytest.mark.long
@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_out_of_range_is_an_error(smoothing):
    with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1"):
        smoothed_cross_entropy(jnp.zeros((2, 3)), jnp.zeros(2, int), jnp.ones(2), smoothing=smoothing)
    arrays = jnp.zeros((1, 2, 4)), jnp.zeros((3, 4)), jnp.zeros((1, 2), int), jnp.ones((1, 2))
    with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1"):
        fused_linear_cross_entropy(*arrays, smoothing, 8)


def test_one_class_cannot_be_smoothed():
    with pytest.raises(ValueError, match="smoothing needs two classes"):
        smoothed_cross_entropy(jnp.zeros((2, 1)), jnp.zeros(2, int), jnp.ones(2), smoothing=0.1)


@pytest.mark.long
@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("shape", [(2, 1), (2, 2, 1), ()])
def test_weights_are_not_broadcast(shape):
    """They would be counted once and summed several times."""
    with pytest.raises(ValueError, match=r"expected logits .*, got shapes \(2, 2, 3\), \(2, 2\) and"):
        smoothed_cross_entropy(jnp.zeros((2, 2, 3)), jnp.zeros((2, 2), int), jnp.ones(shape), smoothing=0.0)
