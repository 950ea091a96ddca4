"""Tests of position encodings against the numbers of the papers and NumPy in float64."""

import functools

import jax
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

QUERY_POSITIONS, KEY_POSITIONS = np.array([0, 3, 200]), np.array([1, 3, 255])


def test_sinusoids_equal_the_formula_of_the_paper():
    interleaved = sinusoidal_encoding(np.array(1), 4)
    np.testing.assert_allclose(interleaved, [0.8415, 0.5403, 0.0100, 1.0000], atol=5e-5)
    concatenated = sinusoidal_encoding(np.array(1), 4, layout="concatenated")
    np.testing.assert_allclose(concatenated, [0.8415, 0.0001, 0.5403, 1.0000], atol=5e-5)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("features", [2, 16])
def test_sinusoids_equal_numpy_in_float64(layout, features):
    positions = np.array([[0, 1, 7], [100, 999, 5000]])
    expected = np.zeros((*positions.shape, features))
    half = features // 2
    for i in range(half):
        exponent = 2 * i / features if layout == "interleaved" else i / max(half - 1, 1)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
        angle = positions / 10_000.0**exponent
        expected[..., sine], expected[..., cosine] = np.sin(angle), np.cos(angle)
    encoding = sinusoidal_encoding(positions.astype("uint16"), features, layout=layout)
    np.testing.assert_allclose(encoding, expected, atol=1e-3)  # float32 angles of up to 5,000 radians
    np.testing.assert_allclose(encoding[0], expected[0], atol=1e-5)


def test_shift_of_sinusoids_is_a_fixed_rotation():
    """In section 3.5, PE(pos + k) is a linear function of PE(pos) that does not depend on pos."""
    encoding = np.asarray(sinusoidal_encoding(np.arange(60), 8), np.float64)
    rotation, *_ = np.linalg.lstsq(encoding[:50], encoding[5:55], rcond=None)
    np.testing.assert_allclose(encoding[:50] @ rotation, encoding[5:55], atol=1e-5)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(8), atol=5e-3)


def rotate(x, positions):
    """Multiplies each pair of features, as a complex number, by e^(i angle) in float64."""
    features = x.shape[-1]
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    angles = positions[..., None, None] / 10_000.0 ** (np.arange(0, features, 2) / features)
    rotated = pairs * np.exp(1j * angles)
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("positions", [np.arange(5), np.array([[0, 1, 2, 0, 1], [7, 90, 900, 0, 3]])])
def test_rotary_encoding_rotates_pairs_of_features(positions):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(rotary_encoding(x, positions), rotate(x, positions), atol=1e-4)
    assert rotary_encoding(jnp.asarray(x, jnp.bfloat16), positions).dtype == jnp.bfloat16


@pytest.mark.long
def test_rotary_products_depend_only_on_the_distance():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 1, 1, 8)).astype(np.float32)
    positions = np.array([[3, 1], [50, 48], [0, 0], [1, 3]])
    rotated = [
        jax.vmap(rotary_encoding, (None, 0))(x, positions[:, i : i + 1]) for i, x in enumerate((query, key))
    ]
    product = (rotated[0] * rotated[1]).sum((1, 2, 3))
    np.testing.assert_allclose(product[0], product[1], atol=1e-4)
    np.testing.assert_allclose(product[2], (query * key).sum(), atol=1e-5)
    assert abs(product[0] - product[3]) > 1e-2


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("make_array", [np.asarray, jnp.asarray])
def test_distances_of_all_integer_types_are_signed(make_array, dtype):
    size = 100 if dtype == "int8" else 255
    query, key = (make_array(np.minimum(x, size).astype(dtype)) for x in (QUERY_POSITIONS, KEY_POSITIONS))
    expected = np.array([[1, 3, 255], [-2, 0, 252], [-199, -197, 55]])
    if dtype == "int8":
        expected = np.array([[1, 3, 100], [-2, 0, 97], [-99, -97, 0]])
    np.testing.assert_array_equal(relative_distance(query, key), expected)
    np.testing.assert_allclose(alibi_bias(query, key, 1)[0], -np.abs(expected) / 256)
    causal = relative_buckets(key, bidirectional=False)  # unsigned distances are later keys
    np.testing.assert_array_equal(causal, 0)


def test_alibi_slopes_equal_the_published_slopes():
    """The slopes are from section 3 of Press et al. and, for 12 heads, from the code of the authors."""
    np.testing.assert_allclose(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(12)[8:], np.array([2, 8, 32, 128]) ** -0.5)
    np.testing.assert_array_equal(alibi_slopes(12)[:8], alibi_slopes(8))
    assert alibi_slopes(1) == 2**-8
    for heads in (1, 7, 8, 9):
        assert alibi_slopes(heads).shape == (heads,)
    with pytest.raises(ValueError, match=r"heads .*at least 1, got 0"):
        alibi_slopes(0)


def test_alibi_bias_decreases_linearly_with_the_distance():
    bias = alibi_bias(np.array([2]), np.arange(5), 2)
    expected = np.array([-2, -1, 0, -1, -2]) * np.array([[1 / 16], [1 / 256]])
    np.testing.assert_allclose(bias[:, 0], expected, rtol=1e-6)
    assert alibi_bias(np.zeros((3, 4), int), np.arange(5), 2).shape == (3, 2, 4, 5)


def test_buckets_of_t5_equal_buckets_computed_by_hand():
    """Each direction has 16 of the 32 buckets up to distance 128. The first 8 have a single distance each."""
    earlier = {0: 0, 1: 1, 7: 7, 8: 8, 11: 8, 12: 9, 15: 9, 16: 10, 22: 10, 23: 11, 32: 12, 90: 14, 91: 15}
    buckets = relative_buckets(np.array([-n for n in earlier]), bidirectional=True)
    np.testing.assert_array_equal(buckets, [*earlier.values()])
    later = relative_buckets(np.array([1, 8, 128, 10_000]), bidirectional=True)
    np.testing.assert_array_equal(later, [17, 24, 31, 31])


@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 20), (64, 1000), (4, 3)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_t5_grow_logarithmically(buckets, largest, bidirectional):
    size = buckets // 2 if bidirectional else buckets
    exact = size // 2
    distances = np.arange(-2 * largest, 2 * largest + 1)
    absolute = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    # 1e-9 compensates rounding, so that the smallest distance of a bucket is in the bucket.
    steps = np.log(np.maximum(absolute, 1) / exact) / np.log(largest / exact) * (size - exact) + 1e-9
    expected = np.where(absolute < exact, absolute, np.minimum(exact + np.floor(steps), size - 1))
    expected += size * (bidirectional & (distances > 0))
    get_buckets = functools.partial(relative_buckets, buckets=buckets, max_distance=largest)
    np.testing.assert_array_equal(get_buckets(distances, bidirectional=bidirectional), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal_encoding(np.arange(3), 5), "features .*even.*got 5"),
        (lambda: sinusoidal_encoding(np.arange(3), 4, layout="shuffled"), "layout .*got 'shuffled'"),
        (lambda: rotary_encoding(np.zeros((2, 1, 5), "float32"), np.arange(2)), "even .*features.*got 5"),
        (lambda: relative_buckets(np.arange(3), buckets=6, bidirectional=True), "multiple of 4, got 6"),
        (lambda: relative_buckets(np.arange(3), buckets=5, bidirectional=False), "multiple of 2, got 5"),
        (lambda: relative_buckets(np.arange(3), buckets=0, bidirectional=False), "multiple of 2, got 0"),
        (
            lambda: relative_buckets(np.arange(3), max_distance=8, bidirectional=True),
            "max_distance .*above 8 for 32 buckets, got 8",
        ),
    ],
)
def test_invalid_arguments_of_position_encodings_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
