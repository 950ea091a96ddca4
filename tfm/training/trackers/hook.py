"""Connects the training loop with the trackers. No tracker can end a run or slow it down."""

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax

from tfm.training.hooks import Hook, Outcome
from tfm.training.samples import picture_path
from tfm.training.task import Samples
from tfm.training.trackers import find_tracker

OPEN_SECONDS = 60  # maximum time until a tracker has opened
CLOSE_SECONDS = 60  # maximum wait at the end of a run for the remaining calls
MAX_WAITING_CALLS = 1000  # in the queue of a slow tracker
log = logging.getLogger(__name__)


class TrackerHook(Hook):
    """A hook that opens and calls a tracker on a separate thread.

    The first error of the tracker is logged as a warning. After it, the tracker receives no more calls, and
    the run continues.

    Args:
      name: name of the tracker, see `tfm.training.trackers.find_tracker`.
      workdir: work directory of the run.
      config: config of the run, a dataclass. The tracker receives it first.

    Raises:
      UserError: if the package of the tracker is missing.
    """

    def __init__(self, name: str, workdir: str, config: Any):
        self._name = name
        self._workdir = workdir
        self._config = config
        self._make = find_tracker(name)
        self._calls: queue.Queue = queue.Queue(MAX_WAITING_CALLS)
        self._lock = threading.Lock()
        self._has_opened = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._began: float | None = None  # None before the thread starts
        self._first_step = 0

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Opens the tracker, without waiting for it."""
        self._began = time.monotonic()
        self._first_step = step
        self._thread.start()

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the training metrics to the tracker."""
        self._put("log_scalars", step, dict(metrics))

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Sends the scores to the tracker."""
        self._put("log_scalars", step, dict(scores))

    def on_samples(self, step: int, samples: Samples) -> None:
        """Sends the samples and the paths of their pictures. `SamplesWriter` must have drawn the pictures."""
        if samples.rows:
            self._put("log_samples", step, samples.rows)
        for name in samples.pictures:
            self._put("log_picture", step, name, picture_path(self._workdir, step, name))

    def close(self, outcome: Outcome) -> None:
        """Closes the tracker. Waits at most `CLOSE_SECONDS` for the calls in the queue."""
        if self._began is None:
            return
        self._put("close", outcome)
        if self._has_ended.is_set():
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            action = "closed" if self._has_opened.is_set() else "opened"
            self._give_up(f"it had not {action} after a wait of {CLOSE_SECONDS} s at the end of the run")

    def _put(self, method: str, *arguments: Any) -> None:
        """Adds a call to the queue of the thread. Ends the tracker if it does not keep up."""
        assert self._began is not None, "on_start starts the thread"
        if self._has_ended.is_set():
            return
        if not self._has_opened.is_set() and time.monotonic() - self._began > OPEN_SECONDS:
            self._give_up(f"it had not opened after {OPEN_SECONDS} s")
            return
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            self._give_up(f"{MAX_WAITING_CALLS:,} calls wait for it")

    def _work(self) -> None:
        """Opens the tracker and makes the calls of the queue, until the tracker ends."""
        try:
            tracker = self._make(self._workdir)
            self._has_opened.set()
            method, arguments = "log_config", (self._first_step, dataclasses.asdict(self._config))
            while not self._has_ended.is_set():
                getattr(tracker, method)(*arguments)
                if method == "close":
                    return
                method, arguments = self._calls.get()
        except BaseException as error:  # SystemExit, too, would end the thread without a message
            self._give_up(" ".join(f"{type(error).__name__}: {error}".split()))

    def _give_up(self, reason: str) -> None:
        """Ends the tracker with a single warning."""
        with self._lock:
            if self._has_ended.is_set():
                return
            self._has_ended.set()
        log.warning(
            "The tracker %r receives no more data until the next start of the run: %s. The run itself still "
            "writes its log, metrics.jsonl and samples.jsonl. Check the server, the login, the network and "
            "the disk of the tracker.",
            *(self._name, reason),
        )
