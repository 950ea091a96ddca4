"""Profiles some steps of a run. Writes a trace for TensorBoard and Perfetto, and a summary as text."""

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
from tfm.io.files import writing
from tfm.training.hooks import Hook, Outcome

FOLDER = "profile"
SUMMARY_FILE = "summary.txt"
MAX_SUMMARY_OPERATIONS = 20
MAX_LOGGED_OPERATIONS = 5
RANGE = re.compile(r"([1-9]\d{0,8}):([1-9]\d{0,8})")
SOURCE = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{[^}]*op_name="([^"]*)"', re.MULTILINE)
CONTAINERS = ("while", "call", "conditional")  # operations whose time is the time of other operations
NANOSECONDS = 1e9
log = logging.getLogger(__name__)


class Operation(NamedTuple):
    """One execution of an operation of a compiled program. Times are in nanoseconds."""

    name: str
    start: float
    duration: float


def parse_range(text: str) -> tuple[int, int]:
    """Returns (first, last) from the text "FIRST:LAST". Steps count from 1.

    Raises:
      UserError: if the text has another form, or the first step is after the last.
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
        self._first, self._last = first, last
        self._folder = os.path.join(workdir, FOLDER)
        self._began = self._records = False
        self._sources: dict[str, str] = {}

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Stores each operation's path in the model. Starts the recording if `first` is the next step."""
        self._sources = find_sources(compiled.as_text() or "")
        if step == self._first - 1:
            self._start()

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Starts the recording after the step before `first`, and stops it after `last`."""
        if step == self._first - 1:
            self._start()
        if step == self._last:
            self._stop()

    def close(self, outcome: Outcome) -> None:
        """Stops a recording that the end of the run interrupted. Warns if no recording has started."""
        if not self._began:
            log.warning(
                "Steps %s to %s were not profiled, because this start of the run did not contain step %s",
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
        with writing(path), open(path, "w", encoding="utf-8") as file:
            file.write(f"steps {self._first} to {self._last}\n" + "\n".join(lines) + "\n")
        log.info("Profile of steps %s to %s (complete summary: %s):", self._first, self._last, path)
        for line in lines[: MAX_LOGGED_OPERATIONS + 2]:
            log.info("  %s", line)


def find_sources(text: str) -> dict[str, str]:
    """Returns {operation: its path in the model} from the text of a compiled program."""
    return dict(SOURCE.findall(text))


def read_operations(folder: str) -> list[list[Operation]]:
    """Returns a list of operations for each thread or device of the newest trace in a folder."""
    paths = glob.glob(os.path.join(glob.escape(folder), "plugins", "profile", "*", "*.xplane.pb"))
    data = jax.profiler.ProfileData.from_file(max(paths, key=os.path.getmtime))
    # Python 3.12 warns about the types of this module. If warnings are errors, the process would end.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        lines = [[*_operations(line.events)] for plane in data.planes for line in plane.lines]
    return [line for line in lines if line]


def _operations(events: Iterable[Any]) -> Iterator[Operation]:
    """Yields the operations of compiled programs, except operations that execute other operations."""
    for event in events:
        name = dict(event.stats).get("hlo_op")
        if name and not name.startswith(CONTAINERS):
            yield Operation(name, event.start_ns, event.duration_ns)


def summarize(lines: Sequence[Sequence[Operation]], sources: Mapping[str, str]) -> list[str]:
    """Returns the lines of the summary: total and idle time, and the operations that took the most time.

    Args:
      lines: a list of operations for each thread or device.
      sources: the result of `find_sources`.
    """
    everything = sorted((operation for line in lines for operation in line), key=lambda each: each.start)
    if not everything:
        return ["no operation was recorded"]
    busy, end = 0.0, everything[0].start
    for operation in everything:
        finish = operation.start + operation.duration
        busy += max(0.0, finish - max(operation.start, end))
        end = max(end, finish)
    whole = end - everything[0].start
    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    calls: collections.Counter[str] = collections.Counter()
    for operation in everything:
        seconds[operation.name] += operation.duration / NANOSECONDS
        calls[operation.name] += 1
    total = sum(seconds.values())
    shown = [
        f"{time:9.4f}  {100 * time / total:5.1f} %  {calls[name]:7,}  {name}  {sources.get(name, '')}"
        for name, time in sorted(seconds.items(), key=lambda item: -item[1])[:MAX_SUMMARY_OPERATIONS]
    ]
    return [
        f"{whole / NANOSECONDS:.3f} s, {100 * (1 - busy / whole):.1f} % idle (no operation ran), "
        f"{len(lines)} threads or devices computed for {total:.3f} s in total",
        "  seconds    share    calls  operation, and what it computes",
        *(line.rstrip() for line in shown),
    ]
