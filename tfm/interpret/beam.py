"""The tree of hypotheses that a beam search has extended."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfm.search import BeamTrace


class Extension(NamedTuple):
    """A hypothesis of a beam that extends a hypothesis of the previous step by one token.

    Attributes:
      label: label of the last token.
      log_probability: log-probability of all tokens of a hypothesis that has not ended, otherwise None.
      probability: probability of the last token of a hypothesis that has not ended, otherwise None.
      score: score of a hypothesis that has ended, with length and coverage penalties, otherwise None.
      parent: index of the extended hypothesis among the unfinished hypotheses of the previous step.
      best: whether the best finished hypothesis begins with these tokens.
    """

    label: str
    log_probability: float | None
    probability: float | None
    score: float | None
    parent: int
    best: bool


class Beam(NamedTuple):
    """The search for one output.

    Attributes:
      steps: the extensions of each step. Hypotheses that have ended come last.
      finished: (labels, score) of the finished hypotheses, best first.
    """

    steps: list[list[Extension]]
    finished: list[tuple[list[str], float]]


def trace_steps(trace: BeamTrace, label: Callable[[Sequence[int]], list[str]]) -> list[list[Extension]]:
    """Returns the `Extension`s of each step of the search for one sentence.

    Steps after the end of the search are left out. A finished hypothesis is listed only in the step in which
    it ended, if it was then among the best finished hypotheses.

    Args:
      trace: the trace of a batch of one row, as NumPy arrays.
      label: function from ids to labels.
    """
    steps, parents = [], {(): (0, 0.0)}  # {tokens: (index, log-probability)} of the previous step
    best = tuple(trace.finished.tokens[-1, 0, 0].tolist())
    for step, (tokens, scores) in enumerate(zip(trace.tokens[:, 0], trace.scores[:, 0], strict=True)):
        live = {
            tuple(prefix[: step + 1].tolist()): float(score)
            for prefix, score in zip(tokens, scores, strict=True)
            if score > -np.inf
        }
        ended = {
            tuple(prefix[:length].tolist()): float(score)
            for prefix, score, length in zip(*(array[step, 0] for array in trace.finished), strict=True)
            if length == step + 1
        }
        if not live and not ended:
            break
        extensions = []
        for ids in [*live, *ended]:
            parent, before = parents[ids[:-1]]
            log = live.get(ids)
            probability = None if log is None else float(np.exp(log - before))
            is_best = ids == best[: len(ids)]
            extensions.append(
                Extension(label(ids[-1:])[0], log, probability, ended.get(ids), parent, is_best)
            )
        steps.append(extensions)
        parents = {ids: (number, log) for number, (ids, log) in enumerate(live.items())}
    return steps
