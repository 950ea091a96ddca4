"""Between the training loop and the trackers: no tracker can end a run, or make it wait."""

import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfm.errors import UserError
from tfm.training.hooks import Hook
from tfm.training.samples import picture_path
from tfm.training.task import Samples
from tfm.training.trackers import PATH, Tracker, find_tracker

CLOSE_SECONDS = 60  # to wait at the end of a run for what is not sent yet
MOST_WAITING = 1000  # calls of a tracker that is slower than the run
log = logging.getLogger(__name__)


class TrackerHook(Hook):
    """Gives a tracker what the loop logs, on a thread of its own.

    The first error is logged as a warning and ends the tracker, but not the run.

    Args:
      name: of the tracker, for warnings.
      tracker: a `Tracker`.
      workdir: of the run.
    """

    def __init__(self, name: str, tracker: Tracker, workdir: str):
        self._name, self._tracker, self._workdir = name, tracker, workdir
        self._calls: queue.Queue = queue.Queue(MOST_WAITING)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log_config(self, config: Any) -> None:
        """Gives it the dataclass of a run's config."""
        self._put(self._tracker.log_config, dataclasses.asdict(config))

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Gives it the metrics of training."""
        self._put(self._tracker.log_scalars, step, dict(metrics))

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Gives it the scores."""
        self._put(self._tracker.log_scalars, step, dict(scores))

    def on_samples(self, step: int, samples: Samples) -> None:
        """Gives it the samples, whose pictures `tfm.training.samples.SamplesWriter` has drawn."""
        if samples.rows:
            self._put(self._tracker.log_samples, step, samples.rows)
        for name in samples.pictures:
            path = picture_path(self._workdir, step, name)
            self._put(self._tracker.log_picture, step, name, path)

    def close(self) -> None:
        """Closes it; waits at most `CLOSE_SECONDS` for what is not written or sent."""
        self._put(self._tracker.close)
        self._put(self._has_ended.set)
        self._thread.join(0 if self._has_ended.is_set() else CLOSE_SECONDS)
        if not self._has_ended.is_set():
            self._give_up(f"it has not ended after {CLOSE_SECONDS} s")

    def _put(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._has_ended.is_set():
            return
        try:
            self._calls.put_nowait((call, arguments))
        except queue.Full:
            self._give_up(f"{MOST_WAITING:,} calls wait for it")

    def _work(self):
        while not self._has_ended.is_set():
            call, arguments = self._calls.get()
            try:
                call(*arguments)
            except Exception as error:
                self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason):
        self._has_ended.set()
        log.warning(
            "The tracker %r gets nothing more until the next start: %s. The run goes on without it, with its "
            "log, metrics.jsonl and samples.jsonl; check its server, network and disk.",
            *(self._name, reason),
        )


def open_trackers(
    names: tuple[str, ...], workdir: str, config: Any, *, resumed: bool
) -> Iterator[TrackerHook]:
    """Yields a hook for each of the trackers with these names, which has got the config.

    Args:
      names: `training.trackers`.
      workdir: of the run.
      config: of the run, a dataclass.
      resumed: the run has made steps: it goes on without a tracker that cannot be opened, with a warning.

    Raises:
      UserError: a package is missing, or a tracker of a new run cannot be opened.
    """
    for name in names:
        make = find_tracker(name)
        try:
            tracker = make(workdir)
        except Exception as error:
            problem = f"{PATH}: {name!r} cannot be opened ({type(error).__name__}: {error})"
            if not resumed:
                raise UserError(
                    f"{problem}: check its server, login and environment, or leave the name out."
                ) from error
            log.warning("%s; the run goes on without it", problem)
            continue
        hook = TrackerHook(name, tracker, workdir)
        hook.log_config(config)
        yield hook
