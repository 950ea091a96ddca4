"""Selection of the largest logits."""

import numpy as np
import pytest

from tfm.search.hypotheses import largest


@pytest.mark.parametrize("length", [7, 12, 330, 1024, 1280])
def test_two_stage_top_k_equals_top_k(length):
    x = np.random.default_rng(length).permutation(4 * length).reshape(4, length).astype(np.float32)
    for count in (1, 3, 7):
        values, tokens = largest(x, count)
        expected = np.argsort(-x)[:, :count]
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=1))
