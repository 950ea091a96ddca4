"""The rule that decides which checkpoints are kept."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

SECONDS_OF_AN_HOUR = 3600


class Retention(NamedTuple):
    """Numbers of checkpoints to keep. A checkpoint is kept if any of the three rules selects it.

    Attributes:
      newest: number of the newest checkpoints, at least 1.
      best: number of the checkpoints with the best scores.
      hours: minimum hours between two checkpoints that are kept for their time. The first of these is the
        oldest checkpoint. 0 turns this rule off.
    """

    newest: int = 6
    best: int = 1
    hours: float = 0.0

    def select(self, times: Mapping[int, float], scores: Mapping[int, float]) -> set[int]:
        """Returns the steps to keep.

        Args:
          times: {step: time at which it was saved, in seconds}.
          scores: {step: score} of the steps that were evaluated. A larger score is better.
        """
        steps = sorted(times)
        ranked = rank(scores, steps)
        kept = {*steps[-self.newest :], *ranked[: self.best]}
        last = None
        for step in steps if self.hours else []:
            if last is None or times[step] - last >= SECONDS_OF_AN_HOUR * self.hours:
                kept.add(step)
                last = times[step]
        return kept


def rank(scores: Mapping[int, float], steps: Collection[int]) -> list[int]:
    """Returns the `steps` that have a score, best first. Among equal scores, the newest step is first."""
    return sorted(scores.keys() & steps, key=lambda step: (scores[step], step), reverse=True)
