"""Tests of the scores of a classification."""

import numpy as np
import pytest

from tfm.evaluation.classification_metrics import classification_scores, confusion_scores, top_scores

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


def test_top_five_accuracy_equals_a_search_in_the_sorted_probabilities():
    rng = np.random.default_rng(0)
    log_probabilities, labels = rng.standard_normal((200, 9)), rng.integers(0, 9, 200)
    (score,) = top_scores(log_probabilities, labels)
    hits = [
        label in sorted(range(9), key=lambda i: -row[i])[:5]
        for row, label in zip(log_probabilities, labels, strict=True)
    ]
    assert score.value == pytest.approx(100 * np.mean(hits))
    assert top_scores(log_probabilities[:, :5], labels % 5) == []


def test_confusions_are_the_most_frequent_mistakes_as_shares_of_their_class():
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    predictions = np.array([1, 1, 2, 0, 1, 0, 2])
    scores = confusion_scores(predictions, labels, ["cat", "dog", "eel"])
    assert [(score.name, score.value) for score in scores] == [
        ("cat as dog", 50.0),
        ("cat as eel", 25.0),
        ("dog as cat", 50.0),
    ]
