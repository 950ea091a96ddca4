"""Tests of the conversion of search results to lists of hypotheses."""

import numpy as np

from tfm.decoding.hypotheses import TokenHypothesis, as_token_hypotheses
from tfm.search import Hypotheses


def test_missing_hypotheses_are_left_out():
    tokens = np.array([[5, 6, 2], [7, 2, 0], [0, 0, 0]])
    row = Hypotheses(tokens, np.float32([-0.5, -1.5, -np.inf]), np.array([3, 2, 0]))
    assert as_token_hypotheses([row]) == [[TokenHypothesis([5, 6, 2], -0.5), TokenHypothesis([7, 2], -1.5)]]
