"""A live progress bar below the log of a run, if standard error is a terminal."""

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tfm.training.hooks import Hook, Outcome

DRAWN_PER_SECOND = 4
SPEED_SECONDS = 120.0  # the time left is estimated from the speed of this period


class ProgressBar(Hook):
    """A hook that draws step, loss, learning rates, speed and time left a few times a second.

    Attributes:
      steps: number of training steps of the run.
      unit: the unit that the task counts, such as "tokens".
    """

    def __init__(self, steps: int, unit: str):
        self.steps, self.unit = steps, unit
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        self._bar = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=DRAWN_PER_SECOND,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._task: TaskID | None = None
        self._loss = self._rest = ""

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Moves the bar to the step, and shows the mean loss of the step. The first call draws the bar."""
        if self._task is None:  # begins here, so that the compilation does not count for the speed
            self._bar.start()
            self._bar.console.show_cursor(True)  # a signal may kill the process before it could show it again
            self._task = self._bar.add_task("", total=self.steps, completed=step - 1, text="")
        total, count = metrics.get("loss", (0.0, 0.0))
        self._loss = f"loss {total / count:.4f}" if count else self._loss
        self._bar.update(self._task, completed=step, text=f"{self._loss}{self._rest}")

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Updates the speed and the learning rates from the metrics of a log line."""
        speed = metrics.get(f"train/{self.unit}_per_second")
        shown_speed = "" if speed is None else f"  {speed:,.0f} {self.unit}/s"
        # A task with several updates logs a rate for each, such as train/generator/learning_rate.
        rates = [f"{value:.2e}" for name, value in metrics.items() if name.endswith("learning_rate")]
        self._rest = f"  lr {' '.join(rates)}{shown_speed}"

    def close(self, outcome: Outcome) -> None:
        """Removes the bar from the terminal."""
        self._bar.stop()


def is_wanted() -> bool:
    """Returns whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
