"""Tests of the scores of a classification."""

import numpy as np
import pytest

from tfm.evaluation.classification_metrics import classification_scores

PROBABILITIES = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75], [0.6, 0.2, 0.2]])
LABELS = np.array([0, 0, 2, 0])


def test_scores_of_four_examples_equal_scores_by_hand():
    scores = {
        score.name: score
        for score in classification_scores(np.log(PROBABILITIES), LABELS, ["cat", "dog", "bird"])
    }
    assert list(scores) == ["accuracy", "cross-entropy", "accuracy of cat", "accuracy of bird"]
    assert scores["accuracy"].value == 75
    assert scores["accuracy of cat"].value == pytest.approx(200 / 3)
    assert scores["accuracy of bird"].value == 100
    assert scores["cross-entropy"].value == pytest.approx(-np.log(0.5 * 0.25 * 0.75 * 0.6) / 4)
    assert " 0.7195 " in str(scores["cross-entropy"])
    assert scores["accuracy of cat"].signature == "per cent of 3 examples"
    assert "4 examples" in scores["accuracy"].signature
