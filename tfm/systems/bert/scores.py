"""Scores of labels beyond the accuracy: F1, correlations and entities. The module does not import JAX."""

import functools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from tfm.errors import UserError, install_extra
from tfm.evaluation.score import Score

OUTSIDE = "O"  # tag of a word that belongs to no entity
ENTITY_TAG = re.compile(r"[BIESLU]-.+")
# The last and the only word of an entity have other names in BILOU than in IOBES, which seqeval reads.
IOBES_PREFIXES = {"L-": "E-", "U-": "S-"}


class ClassCounts(NamedTuple):
    """Numbers of examples by class, int arrays [C].

    Attributes:
      correct: examples of the class with a correct prediction.
      predicted: examples for which the class was predicted.
      labelled: examples of the class.
    """

    correct: np.ndarray
    predicted: np.ndarray
    labelled: np.ndarray

    @classmethod
    def of(cls, predictions: np.ndarray, labels: np.ndarray, classes: int) -> "ClassCounts":
        """Counts the examples of predictions and labels, int [N]."""
        count = functools.partial(np.bincount, minlength=classes)
        return cls(count(labels[predictions == labels]), count(predictions), count(labels))

    def f1(self) -> np.ndarray:
        """Returns the F1 of each class, float [C], in shares. A class without a correct prediction has 0."""
        return 2 * self.correct / np.maximum(self.predicted + self.labelled, 1)

    def macro_f1(self) -> float:
        """Returns the mean of the F1 of all classes that are predicted or have examples."""
        return float(self.f1()[self.predicted + self.labelled > 0].mean())

    def matthews_correlation(self) -> float:
        """Returns the Matthews correlation, for any number of classes (Gorodkin 2004).

        If all predictions or all labels are equal, it is 0.
        """
        correct, predicted, labelled = (np.asarray(counts, float) for counts in self)
        total = labelled.sum()
        covariance = correct.sum() * total - predicted @ labelled
        variances = (total**2 - predicted @ predicted) * (total**2 - labelled @ labelled)
        return float(covariance / np.sqrt(variances)) if variances else 0.0


def summarize_classes(predictions: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Returns the macro F1 and the Matthews correlation, and the F1 of the last class if there are two."""
    counts = ClassCounts.of(predictions, labels, classes)
    scores = {"macro_f1": counts.macro_f1(), "matthews": counts.matthews_correlation()}
    return scores | ({"f1": float(counts.f1()[-1])} if classes == 2 else {})


def class_scores(predictions: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[Score]:
    """Returns the Matthews correlation, the macro F1, and the F1 of each class that has examples.

    Args:
      predictions, labels: int [N].
      names: names of the classes.
    """
    counts = ClassCounts.of(predictions, labels, len(names))
    examples = f"{len(labels):,} examples"
    return [
        Score("Matthews correlation", counts.matthews_correlation(), examples, digits=4),
        Score("macro F1", 100 * counts.macro_f1(), f"per cent, mean of the classes, {examples}"),
        *(
            Score(f"F1 of {name}", 100 * float(f1), f"per cent, {count:,} examples")
            for name, f1, count in zip(names, counts.f1(), counts.labelled, strict=True)
            if count
        ),
    ]


def summarize_numbers(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the correlations of numbers, {"pearson": value, "spearman": value}.

    Both are NaN if all predictions or all labels are equal.
    """
    if min(np.ptp(predictions), np.ptp(labels)) == 0:
        return {"pearson": float("nan"), "spearman": float("nan")}
    predictions, labels = predictions.astype(np.float64), labels.astype(np.float64)
    return {
        "pearson": float(scipy.stats.pearsonr(predictions, labels).statistic),
        "spearman": float(scipy.stats.spearmanr(predictions, labels).statistic),
    }


def number_scores(predictions: np.ndarray, labels: np.ndarray) -> list[Score]:
    """Returns the correlations of predicted numbers with the labels, and the mean of the squared errors."""
    correlations, examples = summarize_numbers(predictions, labels), f"{len(labels):,} examples"
    error = float(np.square(predictions.astype(np.float64) - labels).mean())
    return [
        Score("Pearson correlation", correlations["pearson"], examples, digits=4),
        Score("Spearman correlation", correlations["spearman"], examples, digits=4),
        Score("squared error", error, f"mean of {examples}", digits=4),
    ]


def are_entity_tags(names: Collection[str]) -> bool:
    """Returns whether tags mark entities, such as B-PER, I-PER and O, in IOB1, IOB2, IOBES or BILOU."""
    entity_tags = [name for name in names if name != OUTSIDE]
    return bool(entity_tags) and all(map(ENTITY_TAG.fullmatch, entity_tags))


class EntityScores(NamedTuple):
    """The scores of entities, in shares, as the script conlleval of the CoNLL shared tasks computes them.

    An entity is correct if its first word, its last word and its type are correct.

    Attributes:
      types: types of the labelled and the predicted entities, sorted.
      precision, recall, f1: float [types].
      counts: number of labelled entities, int [types].
      overall: (precision, recall, F1) of all entities.
    """

    types: list[str]
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    counts: np.ndarray
    overall: tuple[float, float, float]

    @classmethod
    def of(cls, predicted: Sequence[Sequence[str]], labelled: Sequence[Sequence[str]]) -> "EntityScores":
        """Compares the entities of sentences of tags.

        Args:
          predicted, labelled: the tags of the words of each sentence, as many in both.

        Raises:
          UserError: if the package seqeval is missing.
        """
        require_seqeval()
        from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

        labelled, predicted = (
            [list(map(_to_iobes, tags)) for tags in side] for side in (labelled, predicted)
        )
        types = sorted({kind for side in (labelled, predicted) for kind, _, _ in get_entities(side)})
        if not types:
            empty = np.zeros(0)
            return cls([], empty, empty, empty, empty.astype(int), (0.0, 0.0, 0.0))
        by_type = precision_recall_fscore_support(labelled, predicted, average=None, zero_division=0)
        overall = precision_recall_fscore_support(labelled, predicted, average="micro", zero_division=0)[:3]
        precision, recall, f1, counts = by_type
        overall_precision, overall_recall, overall_f1 = map(float, overall)
        return cls(types, precision, recall, f1, counts, (overall_precision, overall_recall, overall_f1))


def count_entities(rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """Returns {type: number of entities} of sentences of tags. Words without a tag are left out.

    Raises:
      UserError: if the package seqeval is missing.
    """
    require_seqeval()
    from seqeval.metrics.sequence_labeling import get_entities

    tags = [[_to_iobes(tag) for tag in row if tag == OUTSIDE or ENTITY_TAG.fullmatch(tag)] for row in rows]
    return dict(Counter(kind for kind, _, _ in get_entities(tags)))


def require_seqeval() -> None:
    """Raises a UserError if the package seqeval is missing."""
    try:
        import seqeval.metrics  # noqa: F401
    except ImportError:
        raise UserError(
            f"The scores of entities (tags such as B-PER) need the package seqeval: {install_extra('tags')}."
        ) from None


def entity_scores(predicted: Sequence[Sequence[str]], labelled: Sequence[Sequence[str]]) -> list[Score]:
    """Returns precision, recall and F1 of all entities, and the F1 of each type, in per cent.

    For the arguments and the errors, see `EntityScores.of`.
    """
    scores = EntityScores.of(predicted, labelled)
    entities = f"{scores.counts.sum():,} entities"
    names = ("entity precision", "entity recall", "entity F1")
    return [
        *(
            Score(name, 100 * value, f"per cent, {entities}")
            for name, value in zip(names, scores.overall, strict=True)
        ),
        *(
            Score(f"entity F1 of {kind}", 100 * float(f1), f"per cent, {count:,} entities")
            for kind, f1, count in zip(scores.types, scores.f1, scores.counts, strict=True)
        ),
    ]


def _to_iobes(tag: str) -> str:
    return IOBES_PREFIXES.get(tag[:2], tag[:2]) + tag[2:]
