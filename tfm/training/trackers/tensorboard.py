"""The tracker for TensorBoard. It writes event files into the folder tensorboard of the work directory."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.record_writer import RecordWriter

from tfm.io.files import writing
from tfm.training.hooks import Outcome
from tfm.training.samples import format_table

FOLDER = "tensorboard"
FLUSH_SECONDS = 60
COLOURS = 4  # channels of a PNG that Matplotlib writes: red, green, blue, alpha
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class TensorBoardTracker:
    """Writes an event file. Implements `tfm.training.trackers.Tracker`.

    The class does not use the writer thread of tensorboardX, because this thread dies if the disk is full.
    After that, adding an event to its queue would block forever.
    """

    def __init__(self, workdir: str):
        folder = os.path.join(workdir, FOLDER)
        with writing(folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)  # `os.makedirs` would create a deleted run folder again
            name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
            self._writer = RecordWriter(os.path.join(folder, name))
        self._folder = folder
        self._write(file_version="brain.Event:2")
        self._flushed = time.monotonic()

    def log_config(self, step: int, config: Mapping[str, Any]) -> None:
        """Writes the config as JSON in a text, after an event that removes later steps of earlier starts."""
        # TensorBoard drops all events that were written before and have this step or a later step.
        self._write(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        lines = json.dumps(config, indent=2).splitlines()
        self._write_text(step, "config", "\n".join(f"    {line}" for line in lines))  # Markdown's code

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes a point of each curve."""
        self._write_values(step, [Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()])

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Writes the samples as a text with a table in Markdown."""
        self._write_text(step, "samples", format_table(rows))

    def log_picture(self, step: int, name: str, path: str) -> None:
        """Writes a picture as an image."""
        with open(path, "rb") as file:
            png = file.read()
        width, height = (int.from_bytes(png[i : i + 4]) for i in (16, 20))  # of the header of a PNG
        image = Summary.Image(height=height, width=width, colorspace=COLOURS, encoded_image_string=png)
        self._write_values(step, [Summary.Value(tag=f"samples/{name}", image=image)])

    def close(self, outcome: Outcome) -> None:
        """Writes the remaining events and closes the file."""
        with writing(self._folder):
            self._writer.close()

    def _write_text(self, step: int, tag: str, text: str) -> None:
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        self._write_values(step, [Summary.Value(tag=tag, metadata=TEXT, tensor=tensor)])

    def _write_values(self, step: int, values: list[Summary.Value]) -> None:
        """Writes an event. Flushes the file if the last flush is over `FLUSH_SECONDS` ago."""
        self._write(step=step, summary=Summary(value=values))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def _write(self, **fields: Any) -> None:
        with writing(self._folder):
            self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


make_tracker = TensorBoardTracker
