"""SIGTERM, SIGINT and SIGUSR1, after which a run finishes its step, saves and ends."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Many job scripts let SLURM send SIGUSR1 before the time limit, and it would otherwise kill the process.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
REPEAT_SECONDS = 1.0  # a wrapper and its process group may both send the first signal within this time
log = logging.getLogger(__name__)


class Interrupted(BaseException):  # like KeyboardInterrupt, so that no library catches it as an error
    """A signal that requests the end of the process has interrupted its work."""


class SignalHandler:
    """A handler of the signals that ask this process to end.

    Attributes:
      signal: number of the first signal, or 0.
    """

    def __init__(self):
        self.signal = 0
        self._deferring = self._interrupting = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A context in which the first signal is only noted. A second signal ends the process, see `watch`.

        Outside, the first signal ends the process without saving.
        """
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """A context within `deferred` in which a signal interrupts the work.

        Raises:
          Interrupted: for a signal inside, or at once if a signal was noted before.
        """
        self._interrupting = True
        try:
            if self.signal:
                raise Interrupted
            yield
        finally:
            self._interrupting = False

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handles a signal. Python calls this in the main thread, when a running library call returns.

        Raises:
          SystemExit: 128 + number, outside of `deferred`.
          Interrupted: inside `interrupting`.
        """
        is_first, self.signal = not self.signal, self.signal or number
        if self._interrupting and is_first:  # a repeated signal must not interrupt the saving that follows
            raise Interrupted
        if not self._deferring:
            raise SystemExit(128 + number)

    def watch(self, reader: socket.socket) -> None:
        """Reads signals as they arrive, in a thread that no long library call blocks.

        Logs a warning for the first signal. A signal that arrives more than `REPEAT_SECONDS` later ends the
        process at once, with exit code 128 + its number. Returns when the other end of the socket is closed.
        """
        numbers = (data[0] for data in iter(lambda: reader.recv(1), b""))
        first_time = None
        for number in numbers:
            if number not in SIGNALS:
                continue
            if first_time is not None:
                if time.monotonic() - first_time > REPEAT_SECONDS:
                    os._exit(128 + number)
                continue
            first_time = time.monotonic()
            what = "the run saves and ends after the current step" if self._deferring else "the run ends"
            log.warning("Received %s: %s. A second signal ends it at once", signal.Signals(number).name, what)


@contextlib.contextmanager
def handle_signals() -> Iterator[SignalHandler]:
    """Yields a handler of `SIGNALS` that is active inside. For the main thread of a command."""
    signals = SignalHandler()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        thread = threading.Thread(target=signals.watch, args=(reader,), daemon=True)
        thread.start()
        old_descriptor = signal.set_wakeup_fd(writer.fileno())
        old_handlers = {number: signal.signal(number, signals.handle) for number in SIGNALS}
        try:
            yield signals
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_descriptor)
            writer.shutdown(socket.SHUT_RDWR)  # ends the thread
            thread.join()


class Preemption:
    """A function that returns the number of a signal, or 0, in the same step on all hosts.

    Every host must call it once for each step. It returns the largest signal number of all hosts, or 0. With
    several hosts, a call starts an exchange on the devices after the step, and returns the result of the
    previous call, or 0 in the first call. Therefore, no host waits.
    """

    def __init__(self, signals: SignalHandler):
        self._signals = signals
        self._largest_before: jax.Array | None = None
        if jax.process_count() > 1:
            first_devices = {device.process_index: device for device in reversed(jax.devices())}
            mesh = Mesh(np.asarray([device for _, device in sorted(first_devices.items())]), ("host",))
            self._places = NamedSharding(mesh, PartitionSpec("host"))
            self._largest = jax.jit(jax.numpy.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def interrupting(self) -> contextlib.AbstractContextManager[None]:
        """Returns `SignalHandler.interrupting`, or a context that does nothing if there are several hosts."""
        return self._signals.interrupting() if jax.process_count() == 1 else contextlib.nullcontext()

    def __call__(self) -> int:
        if jax.process_count() == 1:
            return self._signals.signal
        mine = jax.make_array_from_process_local_data(
            self._places, np.asarray([self._signals.signal], np.int32)
        )
        before, self._largest_before = self._largest_before, self._largest(mine)
        return 0 if before is None else int(before.addressable_data(0))
