"""Writes the metrics of a run: rows of JSONL, points in TensorBoard.

Beside `tfm.training.reporting`, as commands that train nothing need not import TensorBoard's writer.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from tfm.runtime.files import end_last_line, writing
from tfm.training.hooks import Hook
from tfm.training.reporting import METRICS_FILE

BOARD_SECONDS = 60


class MetricsWriter(Hook):
    """Writes the metrics of a run into its work directory.

    metrics.jsonl has one object a line: {"step": int, "time": seconds since the epoch, name: float, ...}.
    TensorBoard's file is written here and not by tensorboardX's thread: where the disk is full that thread
    dies, and the training would wait for it for ever.

    Raises:
      UserError: from any method, an I/O error.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir
        path = os.path.join(workdir, METRICS_FILE)
        board = os.path.join(workdir, "tensorboard")
        with writing(path):
            end_last_line(path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        with writing(board):
            os.makedirs(board, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._board = RecordWriter(os.path.join(board, name))
        self._write_event(file_version="brain.Event:2")
        self._flushed = time.monotonic()

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        self._write(step, metrics)

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes {name: float}."""
        self._write(step, scores)

    def _write(self, step, metrics):
        points = Summary(value=[Summary.Value(tag=name, simple_value=x) for name, x in metrics.items()])
        with writing(self._workdir):
            self._file.write(json.dumps({"step": step, "time": round(time.time(), 3)} | metrics) + "\n")
            self._file.flush()
            self._write_event(step=step, summary=points)
            if time.monotonic() - self._flushed > BOARD_SECONDS:
                self._board.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is still in memory, and closes the files even if that fails."""
        with writing(self._workdir), contextlib.closing(self._board), self._file:
            pass

    def _write_event(self, **fields):
        self._board.write(Event(wall_time=time.time(), **fields).SerializeToString())
