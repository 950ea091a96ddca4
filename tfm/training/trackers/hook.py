"""Connects the training loop with the trackers. No tracker can end a run or slow it down."""

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

CLOSE_SECONDS = 60  # maximum wait at the end of a run for the remaining calls
MOST_WAITING = 1000  # maximum number of calls in the queue of a slow tracker
log = logging.getLogger(__name__)


class TrackerHook(Hook):
    """A hook that calls a tracker on a separate thread.

    The first error of the tracker is logged as a warning. After it, the tracker receives no more calls, and
    the run continues.

    Args:
      name: name of the tracker, for warnings.
      tracker: a `Tracker`.
      workdir: work directory of the run.
    """

    def __init__(self, name: str, tracker: Tracker, workdir: str):
        self._name, self._tracker, self._workdir = name, tracker, workdir
        self._calls: queue.Queue = queue.Queue(MOST_WAITING)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log_config(self, config: Any) -> None:
        """Sends the config of a run, a dataclass, to the tracker."""
        self._put(self._tracker.log_config, dataclasses.asdict(config))

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the training metrics to the tracker."""
        self._put(self._tracker.log_scalars, step, dict(metrics))

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Sends the scores to the tracker."""
        self._put(self._tracker.log_scalars, step, dict(scores))

    def on_samples(self, step: int, samples: Samples) -> None:
        """Sends the samples and the paths of their pictures. `SamplesWriter` must have drawn the pictures."""
        if samples.rows:
            self._put(self._tracker.log_samples, step, samples.rows)
        for name in samples.pictures:
            path = picture_path(self._workdir, step, name)
            self._put(self._tracker.log_picture, step, name, path)

    def close(self) -> None:
        """Closes the tracker. Waits at most `CLOSE_SECONDS` for the calls in the queue."""
        self._put(self._tracker.close)
        self._put(self._has_ended.set)
        self._thread.join(0 if self._has_ended.is_set() else CLOSE_SECONDS)
        if not self._has_ended.is_set():
            self._give_up(f"it did not close within {CLOSE_SECONDS} s")

    def _put(self, call: Callable[..., None], *arguments: Any) -> None:
        """Adds a call to the queue of the thread. Ends the tracker if the queue is full."""
        if self._has_ended.is_set():
            return
        try:
            self._calls.put_nowait((call, arguments))
        except queue.Full:
            self._give_up(f"{MOST_WAITING:,} calls wait for it")

    def _work(self) -> None:
        """Makes the calls of the queue, until the tracker ends."""
        while not self._has_ended.is_set():
            call, arguments = self._calls.get()
            try:
                call(*arguments)
            except Exception as error:
                self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        """Ends the tracker with a warning."""
        self._has_ended.set()
        log.warning(
            "The tracker %r receives no more data until the next start of the run: %s. The run continues "
            "without it and still writes its log, metrics.jsonl and samples.jsonl. Check the server, the "
            "network and the disk.",
            *(self._name, reason),
        )


def open_trackers(
    names: tuple[str, ...], workdir: str, config: Any, *, resumed: bool
) -> Iterator[TrackerHook]:
    """Opens trackers, sends them the config, and yields a hook for each.

    Args:
      names: the config field `training.trackers`.
      workdir: work directory of the run.
      config: config of the run, a dataclass.
      resumed: whether the run has completed steps. A resumed run then continues with a warning if a tracker
        cannot be opened.

    Raises:
      UserError: if a package is missing, or a tracker of a new run cannot be opened.
    """
    for name in names:
        make = find_tracker(name)
        try:
            tracker = make(workdir)
        except Exception as error:
            problem = f"{PATH}: {name!r} cannot be opened ({type(error).__name__}: {error})"
            if not resumed:
                raise UserError(
                    f"{problem}. Check its server, login and environment variables, or remove the name."
                ) from error
            log.warning("%s. The run continues without it.", problem)
            continue
        hook = TrackerHook(name, tracker, workdir)
        hook.log_config(config)
        yield hook
