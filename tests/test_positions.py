"""Positions against the papers' numbers and NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from tfm.positions import (
    alibi_bias,
    alibi_slopes,
    relative_buckets,
    relative_distance,
    rotary_encoding,
    sinusoidal_encoding,
)


def test_sinusoids_equal_the_paper():
    interleaved = sinusoidal_encoding(jnp.array(1), 4)
    np.testing.assert_allclose(interleaved, [0.8415, 0.5403, 0.0100, 1.0000], atol=5e-5)
    concatenated = sinusoidal_encoding(jnp.array(1), 4, layout="concatenated")
    np.testing.assert_allclose(concatenated, [0.8415, 0.0001, 0.5403, 1.0000], atol=5e-5)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids_against_float64(layout):
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


def test_shifts_are_fixed_rotations():
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), the same for every pos."""
    encoding = np.asarray(sinusoidal_encoding(jnp.arange(60), 8), np.float64)
    rotation, *_ = np.linalg.lstsq(encoding[:50], encoding[5:55], rcond=None)
    np.testing.assert_allclose(encoding[:50] @ rotation, encoding[5:55], atol=1e-5)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(8), atol=5e-3)


def test_odd_features_or_bad_layouts_are_errors():
    with pytest.raises(ValueError, match="even"):
        sinusoidal_encoding(jnp.arange(3), 5)
    with pytest.raises(ValueError, match="layout"):
        sinusoidal_encoding(jnp.arange(3), 4, layout="shuffled")


RNG = np.random.default_rng(0)


def rotate(x, positions):
    """Each pair of features as one complex number, times e^(i angle), in float64."""
    features = x.shape[-1]
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    angles = positions[..., None, None] / 10_000.0 ** (np.arange(0, features, 2) / features)
    turned = pairs * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


@pytest.mark.long
@pytest.mark.parametrize("positions", [np.arange(5), np.array([[0, 1, 2, 0, 1], [7, 90, 900, 0, 3]])])
def test_rotary_encoding_turns_pairs_of_features(positions):
    x = RNG.normal(size=(2, 5, 3, 8))
    found = rotary_encoding(jnp.asarray(x, jnp.float32), jnp.asarray(positions))
    np.testing.assert_allclose(found, rotate(x, positions), atol=1e-4)
    assert rotary_encoding(jnp.asarray(x, jnp.bfloat16), jnp.asarray(positions)).dtype == jnp.bfloat16


def test_rotary_products_depend_on_the_distance():
    query, key = RNG.normal(size=(2, 1, 1, 8)).astype(np.float32)

    def product(query_position, key_position):
        where = jnp.array([query_position]), jnp.array([key_position])
        return float((rotary_encoding(query, where[0]) * rotary_encoding(key, where[1])).sum())

    assert product(3, 1) == pytest.approx(product(50, 48), abs=1e-4)
    assert product(0, 0) == pytest.approx(float((query * key).sum()), abs=1e-5)
    assert abs(product(3, 1) - product(1, 3)) > 1e-2


def test_rotary_encoding_needs_pairs():
    with pytest.raises(ValueError, match="even: rotary positions rotate pairs; got 5"):
        rotary_encoding(jnp.zeros((2, 1, 5)), jnp.arange(2))


def test_distances_are_from_query_to_key():
    np.testing.assert_array_equal(
        relative_distance(jnp.array([0, 5]), jnp.array([0, 1, 7])), [[0, 1, 7], [-5, -4, 2]]
    )
    assert relative_distance(jnp.zeros((3, 1), int), jnp.arange(4)).shape == (3, 1, 4)


def test_slopes_of_alibi():
    """Section 3 of Press et al.; for 12 heads those of their code."""
    np.testing.assert_allclose(
        alibi_slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    )
    np.testing.assert_allclose(alibi_slopes(12)[8:], np.array([2, 8, 32, 128]) ** -0.5)
    np.testing.assert_array_equal(alibi_slopes(12)[:8], alibi_slopes(8))
    assert alibi_slopes(1) == 2**-8


def test_alibi_bias_falls_linearly():
    found = alibi_bias(jnp.array([2]), jnp.arange(5), 2)
    expected = np.array([-2, -1, 0, -1, -2]) * np.array([[1 / 16], [1 / 256]])
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)
    assert alibi_bias(jnp.zeros((3, 4), int), jnp.arange(5), 2).shape == (3, 2, 4, 5)


def test_buckets_of_t5_by_hand():
    """32 buckets up to distance 128: 16 a direction, of which 8 hold one distance."""
    earlier = {0: 0, 1: 1, 7: 7, 8: 8, 11: 8, 12: 9, 15: 9, 16: 10, 22: 10, 23: 11, 32: 12, 90: 14, 91: 15}
    found = relative_buckets(jnp.array([-n for n in earlier]), bidirectional=True)
    np.testing.assert_array_equal(found, [*earlier.values()])
    later = relative_buckets(jnp.array([1, 8, 128, 10_000]), bidirectional=True)
    np.testing.assert_array_equal(later, [17, 24, 31, 31])


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (64, 1000)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_against_logarithms(buckets, most, bidirectional):
    each = buckets // 2 if bidirectional else buckets
    exact = each // 2
    expected = []
    for distance in range(-2 * most, 2 * most + 1):
        far = abs(distance) if bidirectional else max(-distance, 0)
        if far >= exact:  # 1e-9: a distance at which a bucket begins is in it
            steps = np.log(far / exact) / np.log(most / exact) * (each - exact)
            far = min(exact + int(steps + 1e-9), each - 1)
        expected.append(far + each * (bidirectional and distance > 0))
    distances = jnp.arange(-2 * most, 2 * most + 1)
    found = relative_buckets(distances, buckets=buckets, max_distance=most, bidirectional=bidirectional)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("buckets", "most", "bidirectional"), [(6, 9, True), (5, 9, False), (32, 8, True)])
def test_impossible_buckets_are_errors(buckets, most, bidirectional):
    with pytest.raises(ValueError, match="buckets must divide into halves"):
        relative_buckets(jnp.arange(3), buckets=buckets, max_distance=most, bidirectional=bidirectional)
