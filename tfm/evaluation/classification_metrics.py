"""Scores of a classification from log-probabilities. The module does not import JAX."""

import numpy as np

from tfm.evaluation.score import Score

MAX_CONFUSIONS = 10  # pairs of classes that a report shows
TOP = 5


def classification_scores(log_probabilities: np.ndarray, labels: np.ndarray, names: list[str]) -> list[Score]:
    """Computes accuracy, cross-entropy, and the accuracy of each class that has examples.

    If several classes have the largest probability, the prediction is the class with the lowest index.

    Args:
      log_probabilities: float [N, classes], in nats.
      labels: int [N].
      names: names of the classes, by label.

    Returns:
      A list of `Score`: "accuracy", "cross-entropy", and "accuracy of NAME" in the order of the labels.
      Accuracies are in per cent, the cross-entropy is in nats per example.
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


def top_scores(log_probabilities: np.ndarray, labels: np.ndarray) -> list[Score]:
    """Computes how often the label is among the five most probable classes.

    Args:
      log_probabilities: float [N, classes].
      labels: int [N].

    Returns:
      A list with the `Score` "top-5 accuracy" in per cent, or [] if there are at most five classes. Among
      equal probabilities, the class with the lowest index comes first.
    """
    if log_probabilities.shape[1] <= TOP:
        return []
    best = np.argsort(-log_probabilities, axis=-1, kind="stable")[:, :TOP]
    value = 100 * float((best == labels[:, None]).any(-1).mean())
    return [Score(f"top-{TOP} accuracy", value, f"per cent of {len(labels):,} examples")]


def confusion_scores(predictions: np.ndarray, labels: np.ndarray, names: list[str]) -> list[Score]:
    """Computes which classes are taken for others most often.

    Args:
      predictions, labels: int [N].
      names: names of the classes, by label.

    Returns:
      A `Score` "cat as dog" (examples of cat that were predicted as dog) for each of the `MAX_CONFUSIONS`
      most frequent mistakes, in per cent of the examples of cat. The mistake with the most examples is the
      first. Mistakes that do not occur are left out.
    """
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (labels, predictions), 1)
    of_class = counts.sum(1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MAX_CONFUSIONS]
    pairs = [divmod(int(place), len(names)) for place in order if counts.flat[place]]
    return [
        Score(
            f"{names[label]} as {names[predicted]}",
            100 * float(counts[label, predicted] / of_class[label]),
            f"per cent of {of_class[label]:,} examples of {names[label]}",
        )
        for label, predicted in pairs
    ]
