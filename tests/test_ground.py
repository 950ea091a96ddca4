"""Masks, positions, losses and schedules: literal tables, NumPy in float64, and properties."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import schedules
from tfm.losses import (
    projected_cross_entropy,
    projected_log_probabilities,
    smoothed_cross_entropy,
    smoothing_entropy,
)
from tfm.masks import causal_mask, combine_masks, padding_mask, segment_mask
from tfm.positions import sinusoidal_encoding


def matrix(text):
    return np.array([[int(x) for x in row.split()] for row in text.strip().splitlines()], bool)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_a_smoothing_out_of_range_is_an_error(smoothing):
    with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1"):
        smoothed_cross_entropy(jnp.zeros((2, 3)), jnp.zeros(2, int), jnp.ones(2), smoothing=smoothing)
    arrays = jnp.zeros((1, 2, 4)), jnp.zeros((3, 4)), jnp.zeros((1, 2), int), jnp.ones((1, 2))
    with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1"):
        projected_cross_entropy(*arrays, smoothing, 8)


def test_one_class_cannot_be_smoothed():
    with pytest.raises(ValueError, match="smoothing needs two classes"):
        smoothed_cross_entropy(jnp.zeros((2, 1)), jnp.zeros(2, int), jnp.ones(2), smoothing=0.1)


@pytest.mark.parametrize("shape", [(2, 1), (2, 2, 1), ()])
def test_weights_are_not_broadcast(shape):
    """They would be counted once and summed several times."""
    with pytest.raises(ValueError, match=r"expected logits .*, got shapes \(2, 2, 3\), \(2, 2\) and"):
        smoothed_cross_entropy(jnp.zeros((2, 2, 3)), jnp.zeros((2, 2), int), jnp.ones(shape), smoothing=0.0)


def test_padding_mask():
    mask = padding_mask(jnp.array([[5, 7, 0], [4, 0, 0]]))
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], matrix("1 1 0\n1 0 0"))
    np.testing.assert_array_equal(padding_mask(jnp.array([[5, 9]]), pad_id=9)[0, 0, 0], [True, False])


def test_causal_mask():
    expected = """
    1 0 0 0
    1 1 0 0
    1 1 1 0
    1 1 1 1
    """
    mask = causal_mask(jnp.arange(4), jnp.arange(4))
    assert mask.shape == (1, 4, 4)
    np.testing.assert_array_equal(mask[0], matrix(expected))


def test_causal_mask_of_a_cache_and_of_packed_positions():
    np.testing.assert_array_equal(causal_mask(jnp.array([2]), jnp.arange(5))[0], matrix("1 1 1 0 0"))
    positions = jnp.array([[0, 1, 0], [0, 1, 2]])
    np.testing.assert_array_equal(causal_mask(positions, positions)[0, 0], matrix("1 0 1\n1 1 1\n1 0 1"))
    assert causal_mask(positions, positions).shape == (2, 1, 3, 3)


def test_segment_mask_keeps_to_the_sentence_and_out_of_padding():
    expected = """
    1 1 0 0 0
    1 1 0 0 0
    0 0 1 1 0
    0 0 1 1 0
    0 0 0 0 0
    """
    segments = jnp.array([[1, 1, 2, 2, 0]])
    np.testing.assert_array_equal(segment_mask(segments, segments)[0, 0], matrix(expected))
    cross = segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
    np.testing.assert_array_equal(cross[0, 0], matrix("1 0 0 0\n0 1 1 0\n0 0 0 0"))


def test_combine_masks_is_a_logical_and_with_a_neutral_none():
    padding, causal = padding_mask(jnp.array([[5, 7, 0]])), causal_mask(jnp.arange(3), jnp.arange(3))
    both = combine_masks(None, padding, causal[None])
    np.testing.assert_array_equal(both[0, 0], matrix("1 0 0\n1 1 0\n1 1 0"))
    np.testing.assert_array_equal(combine_masks(padding, None), padding)
    assert combine_masks(None, None) is None


def test_positions_are_the_papers_numbers():
    interleaved = sinusoidal_encoding(jnp.array(1), 4)
    np.testing.assert_allclose(interleaved, [0.8415, 0.5403, 0.0100, 1.0000], atol=5e-5)
    concatenated = sinusoidal_encoding(jnp.array(1), 4, layout="concatenated")
    np.testing.assert_allclose(concatenated, [0.8415, 0.0001, 0.5403, 1.0000], atol=5e-5)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_positions_against_float64(layout):
    features, positions = 16, np.array([[0, 1, 7], [100, 999, 5000]])
    expected = np.zeros((*positions.shape, features))
    half = features // 2
    for i in range(half):
        exponent = 2 * i / features if layout == "interleaved" else i / (half - 1)
        angle = positions / 10_000.0**exponent
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
        expected[..., sine], expected[..., cosine] = np.sin(angle), np.cos(angle)
    found = sinusoidal_encoding(jnp.array(positions), features, layout=layout)
    np.testing.assert_allclose(found, expected, atol=1e-3)  # float32 angles of up to 5,000 radians
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)


def test_a_shift_is_a_fixed_rotation():
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), the same for every pos."""
    encoding = np.asarray(sinusoidal_encoding(jnp.arange(60), 8), np.float64)
    rotation, *_ = np.linalg.lstsq(encoding[:50], encoding[5:55], rcond=None)
    np.testing.assert_allclose(encoding[:50] @ rotation, encoding[5:55], atol=1e-5)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(8), atol=5e-3)


def test_positions_refuse_odd_features_and_unknown_layouts():
    with pytest.raises(ValueError, match="even"):
        sinusoidal_encoding(jnp.arange(3), 5)
    with pytest.raises(ValueError, match="layout"):
        sinusoidal_encoding(jnp.arange(3), 4, layout="shuffled")


def loss_case(seed=0, shape=(3, 4), classes=7):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(*shape, classes))
    return (
        logits.astype(np.float32),
        rng.integers(0, classes, shape),
        (rng.random(shape) < 0.7).astype(np.float32),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2])
def test_the_loss_is_cross_entropy_against_the_smoothed_labels(smoothing):
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


def test_sums_and_counts_add_up_over_an_uneven_split():
    logits, labels, weights = loss_case()
    whole = smoothed_cross_entropy(logits, labels, weights, smoothing=0.1)
    parts = [
        smoothed_cross_entropy(logits[s], labels[s], weights[s], smoothing=0.1)
        for s in (slice(1), slice(1, 3))
    ]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)


def test_the_entropy_is_the_lowest_loss_and_is_reached():
    smoothing, classes = 0.1, 9
    best = np.full((1, classes), np.log(smoothing / (classes - 1)), np.float32)
    best[0, 4] = np.log(1 - smoothing)
    label, weight = np.array([4]), np.ones(1)
    lowest, _ = smoothed_cross_entropy(best, label, weight, smoothing=smoothing)
    np.testing.assert_allclose(lowest, smoothing_entropy(smoothing, classes), rtol=1e-5)
    gradient = jax.grad(lambda x: smoothed_cross_entropy(x, label, weight, smoothing=smoothing)[0])(best)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    assert smoothing_entropy(0, classes) == 0


def test_the_loss_of_bfloat16_logits_is_float32():
    logits, labels, weights = loss_case()
    total, _ = smoothed_cross_entropy(jnp.asarray(logits, jnp.bfloat16), labels, weights, smoothing=0.1)
    assert total.dtype == jnp.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 5, 12, 64])
def test_the_projected_loss_is_the_plain_one_in_value_and_gradient(smoothing, chunk):
    rng = np.random.default_rng(1)
    _, labels, weights = loss_case(classes=7)
    features = rng.normal(size=(3, 4, 6)).astype(np.float32)
    table = rng.normal(size=(7, 6)).astype(np.float32)

    def plain(features, table):
        total, count = smoothed_cross_entropy(features @ table.T, labels, weights, smoothing=smoothing)
        return 3 * total, count

    def projected(features, table):
        total, count = projected_cross_entropy(features, table, labels, weights, smoothing, chunk)["loss"]
        return 3 * total, count

    expected = jax.value_and_grad(plain, (0, 1), has_aux=True)(features, table)
    found = jax.value_and_grad(projected, (0, 1), has_aux=True)(features, table)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)


def test_the_projected_loss_of_bfloat16_features_is_summed_in_float32():
    """Features and the gradient that goes back to them are rounded; the loss between is as in float32."""
    rng = np.random.default_rng(1)
    _, labels, weights = loss_case(classes=7)
    features = jnp.asarray(rng.normal(size=(3, 4, 6)), jnp.bfloat16)
    table = jnp.asarray(rng.normal(size=(7, 6)), jnp.bfloat16).astype(jnp.float32)

    def loss(features, table):
        return projected_cross_entropy(features, table, labels, weights, 0.1, 5)["loss"][0]

    found, (gradient, table_gradient) = jax.value_and_grad(loss, (0, 1))(features, table)
    expected, (wide, wide_table) = jax.value_and_grad(loss, (0, 1))(features.astype(jnp.float32), table)
    assert (found.dtype, gradient.dtype, table_gradient.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.astype(jnp.float32), wide, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(table_gradient, wide_table, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("chunk", [1, 5, 12, 64])
def test_projected_log_probabilities_are_those_of_all_logits_at_once(chunk):
    rng = np.random.default_rng(2)
    features, table = rng.normal(size=(3, 4, 6)), rng.normal(size=(7, 6))
    labels = rng.integers(0, 7, (3, 4))
    exponentials = np.exp(features @ table.T)
    expected = np.log(np.take_along_axis(exponentials, labels[..., None], -1)[..., 0] / exponentials.sum(-1))
    found = projected_log_probabilities(jnp.float32(features), jnp.float32(table), labels, chunk)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_projected_loss_counts_hits_and_the_plain_nll():
    logits, labels, weights = loss_case()
    metrics = projected_cross_entropy(logits, np.eye(7, dtype=np.float32), labels, weights, 0.1, 5)
    nll = smoothed_cross_entropy(logits, labels, weights, smoothing=0)
    np.testing.assert_allclose(metrics["nll"], nll, rtol=1e-5)
    hits = ((logits.argmax(-1) == labels) * weights).sum()
    np.testing.assert_allclose(metrics["accuracy"], (hits, weights.sum()))
    plain = smoothed_cross_entropy(logits, labels, weights, smoothing=0.1)
    np.testing.assert_allclose(metrics["loss"], plain, rtol=1e-5)


def test_what_is_projected_never_holds_all_logits():
    features, table = jnp.ones((4, 250, 8)), jnp.ones((333, 8))
    labels, weights = jnp.ones((4, 250), jnp.int32), jnp.ones((4, 250))

    def loss(features, table):
        return projected_cross_entropy(features, table, labels, weights, 0.1, 10)["loss"][0]

    def log_probabilities(features, table):
        return projected_log_probabilities(features, table, labels, 10)

    for function in (jax.grad(loss, (0, 1)), log_probabilities):
        text = jax.jit(function).lower(features, table).as_text()
        assert "4x2x333x" in text
        assert "4x250x333x" not in text
        assert "1000x333x" not in text


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.988e-4), (1024, 4.941e-4)])
def test_the_learning_rate_peaks_where_the_paper_says(d_model, peak):
    schedule = schedules.inverse_sqrt(d_model, 4000)
    rates = np.array([schedule(count) for count in (0, 3998, 3999, 4000, 15_999)])
    assert rates.argmax() == 2
    np.testing.assert_allclose(rates[2], peak, rtol=1e-3)
    np.testing.assert_allclose(rates[0], peak / 4000, rtol=1e-3)
    np.testing.assert_allclose(rates[4], peak / 2, rtol=1e-3)


def test_linear_decay_rises_to_its_peak_and_falls_to_nothing():
    schedule = schedules.linear_decay(0.5, 10, 100)
    rates = [float(schedule(count)) for count in range(101)]
    np.testing.assert_allclose(rates[:10], 0.05 * np.arange(1, 11), rtol=1e-5)
    np.testing.assert_allclose(np.diff(rates[9:]), -0.5 / 91, atol=1e-6)
    assert rates[100] == 0 < rates[99]


def test_schedules_refuse_impossible_warm_ups_and_their_examples_run():
    with pytest.raises(ValueError, match="warmup_steps"):
        schedules.inverse_sqrt(512, 0)
    with pytest.raises(ValueError, match="warmup_steps"):
        schedules.linear_decay(1.0, 10, 10)
    assert doctest.testmod(schedules).failed == 0 < doctest.testmod(schedules).attempted
