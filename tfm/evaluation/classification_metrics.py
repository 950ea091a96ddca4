"""Scores of a classification from log-probabilities. The module does not import JAX."""

import numpy as np

from tfm.evaluation.score import Score


def classification_scores(log_probabilities: np.ndarray, labels: np.ndarray, names: list[str]) -> list[Score]:
    """Computes accuracy, cross-entropy, and the accuracy of each class that has examples.

    If several classes have the largest probability, the prediction is the class with the lowest index.

    Args:
      log_probabilities: float [N, classes], in nats.
      labels: int [N].
      names: names of the classes, by label.

    Returns:
      A list of `Score`. Accuracies are in per cent, the cross-entropy is in nats per example.
    """
    correct = log_probabilities.argmax(-1) == labels
    losses = -np.take_along_axis(log_probabilities, labels[:, None], axis=-1)
    examples = f"{len(labels):,} examples"
    scores = [
        Score("accuracy", 100 * float(correct.mean()), f"per cent of {examples}"),
        Score(
            "cross-entropy", float(losses.mean(dtype=np.float64)), f"nats per example, {examples}", digits=4
        ),
    ]
    for label, name in enumerate(names):
        of_class = correct[labels == label]
        if of_class.size:
            value = 100 * float(of_class.mean())
            scores.append(Score(f"accuracy of {name}", value, f"per cent of {of_class.size:,} examples"))
    return scores
