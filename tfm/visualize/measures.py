"""Scores of translations by the length of their sources."""

from collections.abc import Callable, Sequence

import numpy as np


def split_by_length(lengths: Sequence[int] | np.ndarray, groups: int) -> list[np.ndarray]:
    """Splits lengths into at most `groups` groups of about equal size. Equal lengths stay in one group.

    Returns:
      For each group an int array of indices into `lengths`. The group of the shortest lengths is the first.
    """
    lengths = np.asarray(lengths)
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, groups + 1)[1:-1]).round())
    numbers = np.searchsorted(edges, lengths)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def score_by_length(
    texts: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    score: Callable[[Sequence[str], Sequence[str]], float],
    groups: int = 6,
) -> tuple[list[float], list[float], list[int]]:
    """Scores the hypotheses of each group of `split_by_length`.

    Args:
      texts: the texts whose words are counted, at least one.
      hypotheses, references: the hypothesis and the reference of each text.
      score: function from hypotheses and references to a score.
      groups: maximum number of groups.

    Returns:
      Three lists with an element for each group: mean number of words, score, and number of texts.
    """
    lengths = np.array([len(text.split()) for text in texts])
    indices = split_by_length(lengths, groups)
    scores = [score([hypotheses[i] for i in group], [references[i] for i in group]) for group in indices]
    return [float(lengths[group].mean()) for group in indices], scores, [len(group) for group in indices]
