"""Tests of scores by length, against examples by hand."""

import itertools

import numpy as np
import pytest

from tfm.visualize import measures


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_groups_of_lengths_are_disjoint_and_of_similar_size(groups):
    lengths = np.random.default_rng(1).integers(1, 30, 500)
    found = measures.split_by_length(lengths, groups)
    assert sorted(np.concatenate(found).tolist()) == list(range(500))
    assert len(found) == groups
    for shorter, longer in itertools.pairwise(found):
        assert lengths[shorter].max() < lengths[longer].min()
    assert min(map(len, found)) > 500 / groups / 2


def test_equal_lengths_are_one_group():
    assert [each.tolist() for each in measures.split_by_length([4] * 5, 3)] == [[0, 1, 2, 3, 4]]


def test_scores_by_length_are_computed_for_each_group():
    texts = ["a", "a b", "a b c d", "a b c d e f"]
    words, scores, counts = measures.score_by_length(
        texts, list("wxyz"), list("WXYZ"), lambda *sides: float("".join(map("".join, sides)) == "wxWX"), 2
    )
    assert (words, counts) == ([1.5, 5.0], [2, 2])
    assert scores == [1.0, 0.0]
