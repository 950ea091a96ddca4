"""Tests of the expected utilities of samples (minimum Bayes risk)."""

import numpy as np
import pytest
from sacrebleu import BLEU, CHRF

from tfm.decoding.mbr import expected_utilities


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_consensus_sample_has_the_largest_utility(utility):
    texts = [
        "the cat sat on the mat",
        "the cat sat on a mat",
        "the cat sat on the mat",
        "a dog ran off",
    ]
    utilities = expected_utilities(texts, utility)
    assert np.argmax(utilities) == 0
    assert utilities[0] == utilities[2] > utilities[1] > utilities[3]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_empty_samples_agree_with_each_other(utility):
    found = expected_utilities([""] * 9 + ["xyz abc"], utility)
    assert found == pytest.approx([90.0] * 9 + [10.0])


@pytest.mark.parametrize(("utility", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True))])
def test_utilities_are_means_over_all_pairs(utility, metric):
    """Texts of two words have no trigrams, which BLEU of sentences leaves out."""
    texts = ["ab cd", "ab ce", "ab cd"]
    expected = [np.mean([metric.sentence_score(a, [b]).score for b in texts]) for a in texts]
    np.testing.assert_allclose(expected_utilities(texts, utility), expected)
