"""Masks against literal tables."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from tfm.masks import causal_mask, combine_masks, ends_mask, local_mask, padding_mask, segment_mask


def matrix(text):
    return np.array([[int(x) for x in row.split()] for row in text.strip().splitlines()], bool)


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


def test_causal_mask_of_cached_positions():
    np.testing.assert_array_equal(causal_mask(jnp.array([2]), jnp.arange(5))[0], matrix("1 1 1 0 0"))
    positions = jnp.array([[0, 1, 0], [0, 1, 2]])
    np.testing.assert_array_equal(causal_mask(positions, positions)[0, 0], matrix("1 0 1\n1 1 1\n1 0 1"))
    assert causal_mask(positions, positions).shape == (2, 1, 3, 3)


def test_segment_mask_excludes_others_and_padding():
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


def test_combine_masks_is_logical_and():
    padding, causal = padding_mask(jnp.array([[5, 7, 0]])), causal_mask(jnp.arange(3), jnp.arange(3))
    both = combine_masks(None, padding, causal[None])
    np.testing.assert_array_equal(both[0, 0], matrix("1 0 0\n1 1 0\n1 1 0"))
    np.testing.assert_array_equal(combine_masks(padding, None), padding)
    assert combine_masks(None, None) is None
    unchecked = inspect.unwrap(combine_masks)  # users have no check of its annotations
    with pytest.raises(ValueError, match=r"masks must be bool, .* got float"):
        unchecked(causal, np.where(causal, 0.0, -np.inf))


def test_local_mask_is_a_band():
    expected = """
    1 1 0 0 0
    1 1 1 0 0
    0 1 1 1 0
    0 0 1 1 1
    0 0 0 1 1
    """
    mask = local_mask(jnp.arange(5), jnp.arange(5), 3)
    assert mask.shape == (1, 5, 5)
    np.testing.assert_array_equal(mask[0], matrix(expected))
    np.testing.assert_array_equal(local_mask(jnp.arange(5), jnp.arange(5), 1)[0], np.eye(5, dtype=bool))
    of_four = local_mask(jnp.array([2]), jnp.arange(6), 4)
    np.testing.assert_array_equal(of_four[0], matrix("1 1 1 1 0 0"))
    with pytest.raises(ValueError, match="window must be at least 1"):
        local_mask(jnp.arange(5), jnp.arange(5), 0)


@pytest.mark.long
def test_ends_of_segments_and_of_padded_rows():
    expected = """
    1 0 1 0 0 0
    1 0 1 0 0 0
    1 0 1 0 0 0
    0 0 0 1 1 0
    0 0 0 1 1 0
    0 0 0 0 0 0
    """
    segments = jnp.array([[1, 1, 1, 2, 2, 0]])
    np.testing.assert_array_equal(ends_mask(segment_mask(segments, segments))[0, 0], matrix(expected))
    np.testing.assert_array_equal(ends_mask(padding_mask(jnp.array([5, 6, 7, 0])))[0, 0], [1, 0, 1, 0])
    index = jnp.arange(4)
    causal = ends_mask(causal_mask(index, index))[0]
    np.testing.assert_array_equal(causal, matrix("1 0 0 0\n1 1 0 0\n1 0 1 0\n1 0 0 1"))
