"""When training stops early: after so many evaluations without a new best."""

import math
from typing import NamedTuple


class Evaluations(NamedTuple):
    """The evaluations of a run so far: the best score, and how many came after it without a better one.

    It is saved with each checkpoint, so that a run that was stopped goes on counting where it was.
    """

    best: float = -math.inf
    since_best: int = 0

    def after(self, score):
        """With one more evaluation; a score that only equals the best is not a new best."""
        if score > self.best:
            return Evaluations(score, 0)
        return Evaluations(self.best, self.since_best + 1)

    def exhausted(self, patience):
        """Whether a run of this patience, 0 for endless, stops here."""
        return 0 < patience <= self.since_best

    def __str__(self):
        return f"{self.since_best} evaluations brought nothing better than {self.best:.4g}"
