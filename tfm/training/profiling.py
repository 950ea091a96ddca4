"""Profiles some steps of a run. Writes a trace for Perfetto and TensorBoard."""

import logging
import os
import re
from collections.abc import Mapping

import jax

from tfm.errors import UserError
from tfm.training.hooks import Hook, Outcome

FOLDER = "profile"
RANGE = re.compile(r"([1-9]\d{0,8}):([1-9]\d{0,8})")
log = logging.getLogger(__name__)


def parse_range(text: str) -> tuple[int, int]:
    """Returns (first, last) from the text "FIRST:LAST". Steps count from 1.

    Raises:
      UserError: if the text has the wrong form, or the first step is after the last.
    """
    match = RANGE.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        raise UserError(
            f"Expected --profile to be FIRST:LAST, two steps counted from 1, such as 20:25, got {text!r}."
        )
    return int(match[1]), int(match[2])


class Profiler(Hook):
    """A hook that records the steps from `first` to `last` in WORKDIR/profile.

    The loop dispatches the next step before it reads the metrics of a step. Therefore the trace begins
    shortly after the start of `first` and ends shortly after the start of the step after `last`.

    Args:
      first, last: steps, counted from 1.
      workdir: work directory of the run.
    """

    def __init__(self, first: int, last: int, workdir: str):
        self._first = first
        self._last = last
        self._folder = os.path.join(workdir, FOLDER)
        self._began = False
        self._records = False

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Starts the recording if `first` is the next step."""
        if step == self._first - 1:
            self._start()

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Starts the recording after the step before `first`, and stops it after `last`."""
        if step == self._first - 1:
            self._start()
        if step == self._last:
            self._stop("The trace of steps %s to %s is in %s")

    def close(self, outcome: Outcome) -> None:
        """Stops a recording that the end of the run interrupted. Warns if no recording has started."""
        if not self._began:
            log.warning(
                "Steps %s to %s were not profiled, because this start of the run did not contain step %s",
                *(self._first, self._last, self._first),
            )
        self._stop("The trace of steps %s to %s is incomplete, because the run ended. It is in %s")

    def _start(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
        self._began = self._records = True

    def _stop(self, message: str) -> None:
        """Stops a recording. The message has places for the first and the last step, and for the folder."""
        if not self._records:
            return
        self._records = False
        jax.profiler.stop_trace()
        log.info(message, self._first, self._last, self._folder)
