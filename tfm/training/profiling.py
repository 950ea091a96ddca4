"""Profiles some steps of a run: a trace for TensorBoard and Perfetto, and a summary in text."""

import collections
import glob
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tfm.errors import UserError
from tfm.training.hooks import Hook

FOLDER = "profile"
SUMMARY_FILE = "summary.txt"
SHOWN = 20  # operations of the summary
LOGGED = 5  # of them, those of the log
RANGE = re.compile(r"([1-9]\d{0,8}):([1-9]\d{0,8})")
SOURCE = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{[^}]*op_name="([^"]*)"', re.MULTILINE)
CONTAINERS = ("while", "call", "conditional")  # operations whose time is that of others
NANOSECONDS = 1e9
log = logging.getLogger(__name__)


class Operation(NamedTuple):
    """An execution of an operation of a compiled program on one thread or device, in nanoseconds."""

    name: str
    start: float
    duration: float


def parse_range(text: str) -> tuple[int, int]:
    """(first, last) of "FIRST:LAST", steps that count from 1.

    Raises:
      UserError: it is no such text.
    """
    found = RANGE.fullmatch(text)
    if not found or int(found[1]) > int(found[2]):
        raise UserError(
            f"--profile must be FIRST:LAST, steps that count from 1, such as 20:25, got {text!r}."
        )
    return int(found[1]), int(found[2])


class Profiler(Hook):
    """Records the steps from `first` to `last` in WORKDIR/profile.

    The next step is dispatched before the metrics of a step are read: the trace begins a little into `first`,
    and ends a little into the step after `last`.

    Args:
      first, last: steps, counted from 1.
      workdir: of the run.
    """

    def __init__(self, first: int, last: int, workdir: str):
        self._first, self._last = first, last
        self._folder = os.path.join(workdir, FOLDER)
        self._began = self._records = False
        self._sources: dict[str, str] = {}

    def on_compiled(self, compiled: jax.stages.Compiled) -> None:
        """Keeps which line of the model each operation is of; begins where the first step is recorded."""
        self._sources = find_sources(compiled.as_text() or "")
        if self._first == 1:
            self._start()

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Begins and ends the recording."""
        if step == self._first - 1:
            self._start()
        if step == self._last:
            self._stop()

    def close(self) -> None:
        """Ends a recording that the end of the run cut short; warns where none began."""
        if not self._began:
            log.warning(
                "Steps %s to %s were not profiled: this start did not make step %s",
                *(self._first, self._last, self._first),
            )
        self._stop()

    def _start(self):
        os.makedirs(self._folder, exist_ok=True)
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
        self._began = self._records = True

    def _stop(self):
        if not self._records:
            return
        self._records = False
        jax.profiler.stop_trace()
        lines = summarize(read_operations(self._folder), self._sources)
        path = os.path.join(self._folder, SUMMARY_FILE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"steps {self._first} to {self._last}\n" + "\n".join(lines) + "\n")
        log.info("Profile of steps %s to %s, all of it in %s:", self._first, self._last, path)
        for line in lines[: LOGGED + 2]:
            log.info("  %s", line)


def find_sources(text: str) -> dict[str, str]:
    """{operation: the path in the model that it was made for}, from the text of a compiled program."""
    return dict(SOURCE.findall(text))


def read_operations(folder: str) -> list[list[Operation]]:
    """The operations of the newest trace, those of each thread or device in a list of their own."""
    paths = glob.glob(os.path.join(glob.escape(folder), "plugins", "profile", "*", "*.xplane.pb"))
    data = jax.profiler.ProfileData.from_file(max(paths, key=os.path.getmtime))
    with warnings.catch_warnings():  # that Python 3.12 has of its types: as an error it would end the process
        warnings.simplefilter("ignore", DeprecationWarning)
        lines = [[*_operations(line.events)] for plane in data.planes for line in plane.lines]
    return [line for line in lines if line]


def _operations(events: Iterable[Any]) -> Iterator[Operation]:
    """Those that are of a compiled program, and not one that executes others."""
    for event in events:
        name = dict(event.stats).get("hlo_op")
        if name and not name.startswith(CONTAINERS):
            yield Operation(name, event.start_ns, event.duration_ns)


def summarize(lines: Sequence[Sequence[Operation]], sources: Mapping[str, str]) -> list[str]:
    """How long operations ran, how long none did, and the slowest.

    Args:
      lines: operations of each thread or device.
      sources: see `find_sources`.
    """
    everything = [operation for line in lines for operation in line]
    if not everything:
        return ["no operation was recorded"]
    busy = sum(end - start for start, end in merge_intervals(everything))
    began = min(operation.start for operation in everything)
    whole = max(operation.start + operation.duration for operation in everything) - began
    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    calls: collections.Counter[str] = collections.Counter()
    for operation in everything:
        seconds[operation.name] += operation.duration / NANOSECONDS
        calls[operation.name] += 1
    total = sum(seconds.values())
    shown = [
        f"{time:9.4f}  {100 * time / total:5.1f} %  {calls[name]:7,}  {name}  {sources.get(name, '')}"
        for name, time in sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]
    ]
    return [
        f"{whole / NANOSECONDS:.3f} s, idle for {100 * (1 - busy / whole):.1f} %: no operation ran; "
        f"{len(lines)} threads or devices computed for {total:.3f} s in all",
        "  seconds    share    calls  operation, and what it computes",
        *(line.rstrip() for line in shown),
    ]


def merge_intervals(operations: Iterable[Operation]) -> list[tuple[float, float]]:
    """The times in which at least one operation ran: (start, end), ascending and apart."""
    merged: list[tuple[float, float]] = []
    for operation in sorted(operations, key=lambda each: each.start):
        end = operation.start + operation.duration
        if merged and operation.start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((operation.start, end))
    return merged
