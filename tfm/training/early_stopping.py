"""When training stops early: after so many evaluations without a new best."""

from typing import NamedTuple

from tfm.training.task import Best


class EarlyStopping(NamedTuple):
    """The evaluations of a run so far, saved with each checkpoint, so that a resumed run counts on.

    Attributes:
      best: the best score; None before the first.
      since_best: evaluations since then without a better one.
    """

    best: float | None = None
    since_best: int = 0

    def after(self, score: float, best: Best) -> "EarlyStopping":
        """With one more evaluation; `best` says which of two scores is the better one."""
        if best.is_better(score, self.best):
            return EarlyStopping(score, 0)
        return EarlyStopping(self.best, self.since_best + 1)

    def exhausted(self, patience: int) -> bool:
        """Whether a run of this patience, 0 for endless, stops here."""
        return 0 < patience <= self.since_best

    def __str__(self):
        best = "any" if self.best is None else f"{self.best:.4g}"
        return f"{self.since_best} evaluations brought nothing better than {best}"
