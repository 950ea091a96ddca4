"""Sinusoidal positions against the paper's numbers and NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from tfm.positions import sinusoidal_encoding


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
