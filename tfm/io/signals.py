"""SIGTERM and SIGINT make a run finish its step, save and end. A second signal ends it at once."""

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

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_SECONDS = 1.0  # a signal that comes sooner is the first one again, sent by a wrapper and its group
log = logging.getLogger(__name__)


class Interrupted(BaseException):  # as KeyboardInterrupt, so that no library takes it for an error
    """A signal interrupted the work, as the process has been asked to end."""


class SignalHandler:
    """Handles the signals that ask this process to end.

    Attributes:
      signal: number of the signal that asked it to end; 0 for none.
    """

    def __init__(self):
        self.signal = 0
        self._deferring = self._interrupting = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal is only noted; elsewhere it ends the process, with nothing to save."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """To use inside `deferred`: a signal, or one that was noted before, interrupts the work inside.

        Raises:
          Interrupted: there was one.
        """
        self._interrupting = True
        try:
            if self.signal:
                raise Interrupted
            yield
        finally:
            self._interrupting = False

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler, which Python calls in the main thread once a running library call returns.

        Raises:
          SystemExit: 128 + number, where the signal is not deferred.
          Interrupted: inside `interrupting`.
        """
        first, self.signal = not self.signal, self.signal or number
        if self._interrupting and first:  # the same again would cut short what follows the interruption
            raise Interrupted
        if not self._deferring:
            raise SystemExit(128 + number)

    def watch(self, reader: socket.socket) -> None:
        """Reads signals as they arrive, in a thread that no long library call blocks."""
        numbers = (data[0] for data in iter(lambda: reader.recv(1), b""))
        first = None
        for number in numbers:
            if number not in SIGNALS:
                continue
            if first is not None:
                if time.monotonic() - first > REPEAT_SECONDS:
                    os._exit(128 + number)
                continue
            first = time.monotonic()
            what = "the run saves and ends after the step it is in" if self._deferring else "the run ends"
            log.warning("%s: %s; a second signal ends it at once", signal.Signals(number).name, what)


@contextlib.contextmanager
def handle_signals() -> Iterator[SignalHandler]:
    """Yields the `SignalHandler` of SIGTERM and SIGINT of this process. For the main thread of a command."""
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
    """Whether a signal has asked any host to end; all hosts learn it at the same step.

    A call gives the largest number of a signal that any host had, or 0. It must be made once a step by every
    host. With several of them a call starts the exchange, on the devices and behind the step, and gives the
    result of the call before, so that nobody waits.
    """

    def __init__(self, signals: SignalHandler):
        self._signals = signals
        self._found = None
        if jax.process_count() > 1:
            first_devices = {device.process_index: device for device in reversed(jax.devices())}
            mesh = Mesh(np.asarray([device for _, device in sorted(first_devices.items())]), ("host",))
            self._places = NamedSharding(mesh, PartitionSpec("host"))
            self._largest = jax.jit(jax.numpy.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def interrupting(self) -> contextlib.AbstractContextManager[None]:
        """`SignalHandler.interrupting`; does nothing with several hosts, which would have to agree."""
        return self._signals.interrupting() if jax.process_count() == 1 else contextlib.nullcontext()

    def __call__(self) -> int:
        if jax.process_count() == 1:
            return self._signals.signal
        mine = jax.make_array_from_process_local_data(
            self._places, np.asarray([self._signals.signal], np.int32)
        )
        found, self._found = self._found, self._largest(mine)
        return 0 if found is None else int(found.addressable_data(0))
