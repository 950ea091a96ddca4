"""Tests of masks against literal tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.masks import (
    AttentionMask,
    causal_mask,
    combine_masks,
    first_and_last_mask,
    local_mask,
    padding_mask,
    restrict_to_window,
    segment_mask,
)

UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]


def assert_rows(mask, text):
    """Asserts that a mask [..., L, M] has exactly these rows, written as "1 0, 1 1"."""
    rows = [[int(x) for x in row.split()] for row in text.split(",")]
    assert mask.dtype == bool
    np.testing.assert_array_equal(np.asarray(mask).reshape(np.shape(rows)), rows)


@pytest.mark.parametrize("window", [3, 5])
def test_a_second_window_only_hides_keys(window):
    positions = jnp.arange(8)
    mask = restrict_to_window(AttentionMask(window=4), positions, positions, window=window)
    expected = combine_masks(local_mask(positions, positions, 4), local_mask(positions, positions, window))
    np.testing.assert_array_equal(mask.to_array(positions, positions)[0], expected)


def test_padding_hides_keys():
    tokens = np.array([[5, 7, 0], [4, 0, 9]])
    assert padding_mask(tokens).shape == (2, 1, 1, 3)
    assert_rows(padding_mask(tokens), "1 1 0, 1 0 1")
    assert_rows(padding_mask(tokens, pad_id=9), "1 1 1, 1 1 0")


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("make_array", [np.asarray, jnp.asarray])
def test_unsigned_tokens_differ_from_a_negative_pad_id(make_array, dtype):
    assert_rows(padding_mask(make_array(np.array([0, 255], dtype)), pad_id=-1), "1 1")


def test_causal_mask_hides_later_keys():
    mask = causal_mask(np.arange(4), np.arange(4))
    assert mask.shape == (1, 4, 4)
    assert_rows(mask, "1 0 0 0, 1 1 0 0, 1 1 1 0, 1 1 1 1")
    assert_rows(causal_mask(np.array([2]), np.arange(5)), "1 1 1 0 0")
    positions = np.array([[0, 1, 0], [0, 1, 2]])
    assert causal_mask(positions, positions).shape == (2, 1, 3, 3)
    assert_rows(causal_mask(positions, positions)[0], "1 0 1, 1 1 1, 1 0 1")


def test_segments_hide_other_segments_and_padding():
    segments = np.array([[1, 1, 2, 2, 0]])
    assert_rows(segment_mask(segments, segments), "1 1 0 0 0, 1 1 0 0 0, 0 0 1 1 0, 0 0 1 1 0, 0 0 0 0 0")
    cross = segment_mask(np.array([[1, 2, 0]]), np.array([[1, 2, 2, 0]]))
    assert cross.shape == (1, 1, 3, 4)
    assert_rows(cross, "1 0 0 0, 0 1 1 0, 0 0 0 0")


def test_local_mask_is_a_band():
    mask = local_mask(np.arange(5), np.arange(5), 3)
    assert mask.shape == (1, 5, 5)
    assert_rows(mask, "1 1 0 0 0, 1 1 1 0 0, 0 1 1 1 0, 0 0 1 1 1, 0 0 0 1 1")
    assert_rows(local_mask(np.arange(2), np.arange(2), 1), "1 0, 0 1")
    assert_rows(local_mask(np.array([2]), np.arange(6), 4), "1 1 1 1 0 0")
    with pytest.raises(ValueError, match=r"window.*at least 1.*got 0"):
        local_mask(np.arange(5), np.arange(5), 0)


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("make_array", [np.asarray, jnp.asarray])
def test_unsigned_positions_have_the_masks_of_signed_positions(make_array, dtype):
    query, key = (np.array(x) for x in ([0, 3, 255], [1, 3, 255]))
    unsigned = [make_array(x.astype(dtype)) for x in (query, key)]
    for make_mask in (causal_mask, segment_mask, lambda *x: local_mask(*x, 5)):
        np.testing.assert_array_equal(make_mask(*unsigned), make_mask(query, key))
    assert_rows(local_mask(*unsigned, 5), "1 0 0, 1 1 0, 0 0 1")


def test_first_and_last_mask_keeps_only_the_ends_of_the_visible_keys():
    segments = np.array([[1, 1, 1, 2, 2, 0]])
    mask = first_and_last_mask(segment_mask(segments, segments))
    assert mask.shape == (1, 1, 6, 6)
    assert_rows(mask[0, 0, 2:], "1 0 1 0 0 0, 0 0 0 1 1 0, 0 0 0 1 1 0, 0 0 0 0 0 0")
    causal = causal_mask(np.arange(4), np.arange(4))
    assert_rows(first_and_last_mask(causal), "1 0 0 0, 1 1 0 0, 1 0 1 0, 1 0 0 1")


def test_combined_masks_show_keys_that_all_masks_show():
    padding, causal = padding_mask(np.array([[5, 7, 0]])), causal_mask(np.arange(3), np.arange(3))
    both = combine_masks(None, padding, causal)
    assert both.shape == (1, 1, 3, 3)
    assert_rows(both, "1 0 0, 1 1 0, 1 1 0")
    np.testing.assert_array_equal(combine_masks(padding, None), padding)
    assert isinstance(combine_masks(np.asarray(padding)), jax.Array)
    assert combine_masks(None, None) is None
    with pytest.raises(ValueError, match=r"masks .*booleans.*got float64"):
        combine_masks(padding, np.where(causal, 0.0, -np.inf))


@pytest.mark.long
def test_combined_masks_with_different_axes_are_an_error():
    padding, rows = np.ones((2, 1, 1, 3), bool), np.ones((2, 3, 3), bool)
    with pytest.raises(ValueError, match=r"mask .* 4 axes.*got \(2, 3, 3\)"):
        combine_masks(padding, rows)
    assert combine_masks(padding, rows[:, None]).shape == (2, 1, 3, 3)
    with pytest.raises(ValueError, match=r"masks .* got \(2, 1, 3, 4\), and masks has \(2, 1, 1, 3\)"):
        combine_masks(padding, np.ones((2, 1, 3, 4), bool))
