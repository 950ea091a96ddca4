"""Python functions that compiled programs call, by XLA's foreign function interface.

A function gets operands and results where they lie in memory. XLA calls it from threads of its own, several
at once. ctypes alone describes XLA's structures: nothing is compiled to install this.
"""

import atexit
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

FFI_VERSION = (0, 3)  # of the structures below; XLA of this or a later minor version takes them

# Structures of jaxlib's header xla/ffi/api/c_api.h, as far as they are read here.
_HEAD: list[Any] = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [*_HEAD, ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", _Version)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    ]


class Buffer(ctypes.Structure):
    """An operand or result: the address of its elements, row-major and without gaps, and its shape."""

    _fields_ = [
        *_HEAD,
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(Buffer))),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [*_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class _Api(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))),
    ]


class _CallFrame(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    ]


METADATA_EXTENSION, INTERNAL_ERROR = 1, 13
Pointers = Any  # of ctypes; `pointers[i].contents` is a `Buffer`
QUIET_SECONDS = 0.5  # without a call: programs have most likely ended, which nothing tells
_handlers: dict[str, Any] = {}  # by target; XLA keeps their addresses only
_registering = threading.Lock()


class _Calls:
    """Calls of programs, which must end before Python does: one that came later would never return."""

    def __init__(self):
        self._running: list[None] = []
        self._last = time.monotonic()
        self._ending = False

    @contextlib.contextmanager
    def one(self):
        """Around each call.

        Raises:
          RuntimeError: the process ends, and the program is to end too.
        """
        self._running.append(None)
        try:
            if self._ending:
                raise RuntimeError("the process ends")
            yield
        finally:
            self._last = time.monotonic()
            self._running.pop()

    def end(self) -> None:
        """Waits for what is computed, and ends programs whose results nobody holds at their next call.

        Ctrl-C ends the wait, and all programs at their next call.
        """
        try:
            for array in jax.live_arrays():
                with contextlib.suppress(Exception):  # of its program; who wanted it has been told
                    array.block_until_ready()
        finally:
            self._ending, self._last = True, time.monotonic()
            while self._running or time.monotonic() - self._last < QUIET_SECONDS:
                time.sleep(0.01)


_calls = _Calls()


def register(target: str, call: Callable[[Pointers, Pointers], str | None]) -> None:
    """Gives `jax.ffi.ffi_call(target, ...)` on a CPU a function of the operands and the results.

    Args:
      target: a name. Where it has a function already, that stays: threads may register one at the same time.
      call: writes the results; returns None, or what went wrong, with which the program ends.
    """

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
    def handle(pointer):
        try:
            frame = pointer.contents
            if frame.extension and frame.extension.contents.type == METADATA_EXTENSION:
                version = frame.extension.contents.metadata.contents.version
                version.major, version.minor = FFI_VERSION
                return None
            with _calls.one():
                problem = call(frame.arguments.buffers, frame.results.buffers)
            return problem and _error(pointer, f"{target}: {problem}")
        except BaseException as error:  # Ctrl-C too: XLA would take what was not written for the result
            return _error(pointer, f"{target}: {error!r}")

    with _registering:
        if target in _handlers:
            return
        if not _handlers:
            atexit.register(_calls.end)
        _handlers[target] = handle
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handle), platform="cpu")


def _error(pointer, message):
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), INTERNAL_ERROR)
    return pointer.contents.api.contents.create_error(ctypes.byref(arguments))
