"""Products of 8-bit integers on a CPU by oneDNN, called from compiled programs by XLA's foreign functions.

From `MIN_ROWS` rows on it is faster than XLA's own, on processors with VNNI or AMX. The extra `int8` installs
its library, which this module calls by ctypes: nothing is compiled.
"""

import ctypes
import functools
import importlib.metadata
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TARGET = "tfm_onednn_multiply"
WHEEL, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
MIN_ROWS = 16  # with fewer, the call takes longer than the product
MAX_INPUTS = (2**31 - 1) // (255 * 128)  # of a sum in 32 bits
FFI_VERSION = (0, 3)  # of the structures below; XLA takes the same and later minor versions


@functools.cache
def is_available() -> bool:
    """Whether oneDNN is installed, and this processor's sums of 8-bit products are exact.

    Without VNNI two products are first added in 16 bits, which may not hold them.
    """
    if _library() is None:
        return False
    x, weights = np.full((2, 64), 255, np.uint8), np.full((3, 64), 127, np.int8)
    found = np.zeros((2, 3), np.int32)
    _gemm(*found.shape, 64, x.ctypes.data, weights.ctypes.data, found.ctypes.data)
    return bool((found == 64 * 255 * 127).all())


@functools.cache
def _register_handler():
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


def multiply(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of products, exact: x @ weights.T.

    Args:
      x: uint8 [rows, inputs], of at most `MAX_INPUTS` inputs.
      weights: int8 [outputs, inputs].

    Returns:
      int32 [rows, outputs].
    """
    assert is_available(), "see is_available"
    assert x.shape[1] <= MAX_INPUTS, "the sums may not fit into 32 bits"
    assert (x.dtype, weights.dtype) == (jnp.uint8, jnp.int8), "read as such, whatever they are"
    _register_handler()
    shape = jax.ShapeDtypeStruct((x.shape[0], weights.shape[0]), jnp.int32)
    return jax.ffi.ffi_call(TARGET, shape, vmap_method="sequential")(x, weights)


@functools.cache
def _library():
    """oneDNN's library: the wheel's, or the system's; None where there is neither."""
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for path in [str(file.locate()) for file in files if file.name == LIBRARY] + [LIBRARY]:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        size, scale, data = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
        matrix_x, matrix_weights = (data, size, ctypes.c_uint8), (data, size, ctypes.c_int8)
        library.dnnl_gemm_u8s8s32.argtypes = [
            *(ctypes.c_char,) * 3,
            *(size,) * 3,
            scale,
            *matrix_x,
            *matrix_weights,
            scale,
            data,
            size,
            data,
        ]
        return library
    return None


@functools.cache
def _limit_threads():
    """A function that gives products of the calling thread half of the cores: two batches decode at once."""
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    try:
        return functools.partial(ctypes.CDLL("libgomp.so.1").omp_set_num_threads, threads)
    except OSError:  # a library of the system may have threads of another kind
        return lambda: None


_NO_OFFSET = ctypes.c_int32(0)


def _gemm(rows, outputs, inputs, x, weights, result):
    """`multiply` of addresses; oneDNN's status, 0 for success."""
    _limit_threads()()
    as_is, transposed, one_offset = b"N", b"T", b"F"
    sizes = (rows, outputs, inputs)
    left, right = (x, inputs, 0), (weights, inputs, 0)  # address, length of a row, zero point
    last = (0.0, result, outputs, ctypes.addressof(_NO_OFFSET))
    return _library().dnnl_gemm_u8s8s32(as_is, transposed, one_offset, *sizes, 1.0, *left, *right, *last)


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


class _Buffer(ctypes.Structure):
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
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
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


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
def _handler(frame):
    """What XLA calls for each product, and once to ask for the version; None is success."""
    frame = frame.contents
    try:
        if frame.extension and frame.extension.contents.type == METADATA_EXTENSION:
            version = frame.extension.contents.metadata.contents.version
            version.major, version.minor = FFI_VERSION
            return None
        arguments, results = frame.arguments.buffers, frame.results.buffers
        x, weights, result = arguments[0].contents, arguments[1].contents, results[0].contents
        sizes = (x.shape[0], weights.shape[0], x.shape[1])
        status = _gemm(*sizes, x.data, weights.data, result.data)
        return None if status == 0 else _error(frame, f"oneDNN ended with status {status}")
    except Exception as error:  # else ctypes prints it, and XLA takes the result for computed
        return _error(frame, repr(error))


def _error(frame, message):
    size = ctypes.sizeof(_ErrorArguments)
    arguments = _ErrorArguments(size, None, f"Product of 8-bit integers: {message}".encode(), INTERNAL_ERROR)
    return frame.api.contents.create_error(ctypes.byref(arguments))
