"""Tests of losses against NumPy in float64, of their memory, and of their rules for labels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.losses import (
    chunked_log_probabilities,
    dropout_divergence,
    fused_linear_cross_entropy,
    smoothed_cross_entropy,
    smoothing_entropy,
)
from tfm.testing.models import assert_trees_close, quick_jit

CLASSES = 7
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(3, 4, 6)).astype(np.float32)
TABLE = RNG.normal(size=(CLASSES, 6)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, (3, 4))
WEIGHTS = (RNG.random((3, 4)) * (RNG.random((3, 4)) < 0.7)).astype(np.float32)
INVALID = [-100, -1, CLASSES, 10_000]
SMOOTHINGS = [0.0, 0.1, 0.3]


def plain(features, table, labels, weights, smoothing=0.1):
    return smoothed_cross_entropy(features @ table.T, labels, weights, smoothing=smoothing)


def fused(features, table, labels, weights, smoothing=0.1, chunk_size=5):
    return fused_linear_cross_entropy(features, table, labels, weights, smoothing, chunk_size)["loss"]


def reference(smoothing):
    """Returns (sum, count) of the loss in float64 from the probabilities of the smoothed target."""
    logits = FEATURES.astype(np.float64) @ TABLE.T.astype(np.float64)
    target = np.full(logits.shape, smoothing / (CLASSES - 1))
    np.put_along_axis(target, LABELS[..., None], 1 - smoothing, -1)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(WEIGHTS[..., None] * target * log_probabilities).sum(), WEIGHTS.sum()


def gradients(loss, labels=LABELS, weights=WEIGHTS):
    """Returns ((sum, count), gradients of three times the sum by features and table)."""

    def scaled(features, table):
        total, count = loss(features, table, labels, weights)
        return 3 * total, count

    return jax.value_and_grad(scaled, (0, 1), has_aux=True)(FEATURES, TABLE)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_equals_cross_entropy_with_smoothed_labels_in_float64(smoothing):
    for loss in (plain, fused):
        sums = quick_jit(functools.partial(loss, smoothing=smoothing))(FEATURES, TABLE, LABELS, WEIGHTS)
        np.testing.assert_allclose(sums, reference(smoothing), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("chunk_size", [1, 3, 5, 11, 12, 64])
def test_fused_gradients_equal_plain_gradients(smoothing, chunk_size):
    expected = gradients(functools.partial(plain, smoothing=smoothing))
    chunked = functools.partial(fused, smoothing=smoothing, chunk_size=chunk_size)
    assert_trees_close(quick_jit(lambda: gradients(chunked))(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [plain, fused])
@pytest.mark.parametrize("label", INVALID)
def test_labels_without_weight_do_not_matter(loss, label):
    """Sums and gradients do not depend on these labels, with and without jit."""
    weights = WEIGHTS.copy()
    weights[1] = 0
    labels = np.where(weights == 0, label, LABELS)
    expected = gradients(loss, LABELS, weights)
    for values in (
        gradients(loss, labels, weights),
        quick_jit(functools.partial(gradients, loss))(labels, weights),
    ):
        assert_trees_close(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [plain, fused])
@pytest.mark.parametrize("label", INVALID)
def test_invalid_labels_with_a_weight_are_errors_or_nan_under_jit(loss, label):
    labels, weights = LABELS.copy(), np.ones((3, 4))
    labels[0, 1] = label
    for arrays in ((labels, weights), (jnp.asarray(labels), jnp.asarray(weights))):
        with pytest.raises(ValueError, match=f"labels from 0 to {CLASSES - 1}.*got {label}"):
            loss(FEATURES, TABLE, *arrays)
    (total, count), (by_features, by_table) = quick_jit(functools.partial(gradients, loss))(labels, weights)
    assert (np.isnan(total), count) == (True, 12)
    np.testing.assert_array_equal(np.isnan(by_features).all(-1), labels == label)
    assert np.isnan(by_table).all()


def test_log_probabilities_of_invalid_labels_are_errors_or_nan_under_jit():
    get = functools.partial(chunked_log_probabilities, FEATURES, TABLE, chunk_size=5)
    for label in INVALID:
        labels = np.where(np.arange(4) == 2, label, LABELS)
        with pytest.raises(ValueError, match=f"labels .*got {label}"):
            get(labels)
        np.testing.assert_array_equal(np.isnan(quick_jit(get)(labels)), labels == label)


@pytest.mark.long
def test_loss_is_differentiable_by_the_weights():
    gradient = jax.grad(lambda weights: plain(FEATURES, TABLE, LABELS, weights)[0])(jnp.zeros((3, 4)))
    np.testing.assert_allclose((gradient * WEIGHTS).sum(), reference(0.1)[0], rtol=1e-5)


@pytest.mark.long
def test_sums_and_counts_add_up_over_splits():
    parts = [plain(FEATURES[s], TABLE, LABELS[s], WEIGHTS[s]) for s in (slice(1), slice(1, 3))]
    np.testing.assert_allclose(np.sum(parts, axis=0), reference(0.1), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_loss_of_empty_batches_is_zero(shape):
    arrays = np.zeros((*shape, 6), np.float32), TABLE, np.zeros(shape, int), np.zeros(shape)
    assert fused(*arrays) == plain(*arrays) == (0, 0)
    assert chunked_log_probabilities(*arrays[:3], 5).shape == shape


@pytest.mark.long
def test_entropy_of_smoothed_labels_is_the_lowest_loss():
    smoothing, classes = 0.1, 9
    best = np.full((1, classes), np.log(smoothing / (classes - 1)), np.float32)
    best[0, 4] = np.log(1 - smoothing)
    loss = lambda x: smoothed_cross_entropy(x, np.array([4]), np.ones(1), smoothing=smoothing)[0]  # noqa: E731
    lowest, gradient = jax.value_and_grad(loss)(best)
    np.testing.assert_allclose(lowest, smoothing_entropy(smoothing, classes), rtol=1e-5)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    assert smoothing_entropy(0, classes) == 0


def test_loss_of_bfloat16_logits_is_float32():
    logits = jnp.ones((3, 4, 7), jnp.bfloat16)
    total, _ = smoothed_cross_entropy(logits, LABELS, WEIGHTS, smoothing=0.1)
    assert total.dtype == jnp.float32


@pytest.mark.long
def test_fused_loss_of_bfloat16_features_sums_in_float32():
    """Features and their gradient are rounded. The loss is computed from them as in float32."""
    features = jnp.asarray(FEATURES, jnp.bfloat16)
    table = jnp.asarray(TABLE, jnp.bfloat16).astype(jnp.float32)

    def loss(features, table):
        return fused(features, table, LABELS, WEIGHTS)[0]

    value, (gradient, table_gradient) = jax.value_and_grad(loss, (0, 1))(features, table)
    expected, (wide, wide_table) = jax.value_and_grad(loss, (0, 1))(features.astype(jnp.float32), table)
    assert (value.dtype, gradient.dtype, table_gradient.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.astype(jnp.float32), wide, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(table_gradient, wide_table, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 64])
def test_chunked_log_probabilities_equal_those_of_all_logits(chunk_size):
    exponentials = np.exp(FEATURES @ TABLE.T)
    expected = np.log(np.take_along_axis(exponentials, LABELS[..., None], -1)[..., 0] / exponentials.sum(-1))
    scores = quick_jit(chunked_log_probabilities, static_argnums=3)(FEATURES, TABLE, LABELS, chunk_size)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_fused_loss_reports_nll_and_accuracy():
    metrics = fused_linear_cross_entropy(FEATURES, TABLE, LABELS, WEIGHTS, 0.1, 5)
    np.testing.assert_allclose(metrics["nll"], reference(0.0), rtol=1e-5)
    correct = (FEATURES @ TABLE.T).argmax(-1) == LABELS
    np.testing.assert_allclose(metrics["accuracy"], ((correct * WEIGHTS).sum(), WEIGHTS.sum()))
    ties = fused_linear_cross_entropy(0 * FEATURES, TABLE, LABELS, WEIGHTS, 0.1, 5)
    np.testing.assert_allclose(ties["accuracy"], (WEIGHTS.sum(), WEIGHTS.sum()))


def test_chunked_functions_never_compute_all_logits_at_once():
    features, table = jnp.ones((4, 250, 8)), jnp.ones((333, 8))
    labels, weights = jnp.ones((4, 250), jnp.int32), jnp.ones((4, 250))

    def loss(features, table):
        return fused(features, table, labels, weights, chunk_size=10)[0]

    def log_probabilities(features, table):
        return chunked_log_probabilities(features, table, labels, 10)

    for function in (jax.grad(loss, (0, 1)), log_probabilities):
        text = jax.jit(function).lower(features, table).as_text()
        assert "4x2x333x" in text
        assert "4x250x333x" not in text
        assert "1000x333x" not in text


@pytest.mark.parametrize("loss", [plain, fused])
@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_out_of_range_is_an_error(loss, smoothing):
    with pytest.raises(ValueError, match=f"smoothing .*at least 0 and below 1, got {smoothing}"):
        loss(FEATURES, TABLE, LABELS, WEIGHTS, smoothing)


@pytest.mark.long
def test_single_class_and_empty_chunks_are_errors():
    with pytest.raises(ValueError, match=r"two classes for smoothing 0\.1, got 1"):
        plain(FEATURES, TABLE[:1], 0 * LABELS, WEIGHTS)
    with pytest.raises(ValueError, match=r"chunk_size .*at least 1, got 0"):
        fused(FEATURES, TABLE, LABELS, WEIGHTS, chunk_size=0)


@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_divergence_of_two_passes_equals_numpy_in_float64(chunk_size):
    rng = np.random.default_rng(1)
    features, weights = rng.normal(size=(2, 3, 4, 6)), np.ones((3, 4))
    weights[1, 2:] = 0
    logits = features @ TABLE.T.astype(np.float64)
    one, other = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = (np.exp(one) * (one - other)).sum(-1) / 2 + (np.exp(other) * (other - one)).sum(-1) / 2
    rows = features.swapaxes(0, 1).reshape(6, 4, 6).astype(np.float32)
    found = quick_jit(functools.partial(dropout_divergence, chunk_size=chunk_size))(
        rows, TABLE, np.repeat(weights, 2, axis=0)
    )
    np.testing.assert_allclose(found, ((expected * weights).sum(), weights.sum()), rtol=1e-5)


def test_divergence_has_gradients_that_do_not_depend_on_the_chunks():
    rng = np.random.default_rng(1)
    rows, ones = rng.normal(size=(6, 4, 6)).astype(np.float32), np.ones((6, 4), np.float32)

    def gradient(chunk_size):
        def total(rows, table):
            return dropout_divergence(rows, table, ones, chunk_size)[0]

        return quick_jit(jax.grad(total, (0, 1)))(rows, TABLE)

    whole = gradient(24)
    assert all(np.abs(x).max() > 0.1 for x in whole)
    assert_trees_close(gradient(6), whole, rtol=1e-5, atol=1e-6)
