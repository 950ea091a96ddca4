"""Matrix products by oneDNN as targets of `jax.ffi.ffi_call` on a CPU, registered by this import.

`QUANTIZED_TARGET` quantizes the rows of float32 [rows, inputs] and multiplies them with the transpose of
int8 [outputs, inputs]. Its other operands are the scale of each output, and 128 times the sum of its weights.
It returns float32 [rows, outputs]. `FLOAT32_TARGET` and `BFLOAT16_TARGET` multiply two matrices of this dtype
and return float32. Their attributes `transpose_x` and `transpose_y` select the matrices that they transpose
first.
"""

import contextlib
import ctypes
import importlib.machinery
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator

import jax

QUANTIZED_TARGET = "tfm_onednn_multiply_quantized"
FLOAT32_TARGET, BFLOAT16_TARGET = "tfm_onednn_multiply_float32", "tfm_onednn_multiply_bfloat16"


@contextlib.contextmanager
def _sleeping_threads() -> Iterator[None]:
    """Lets the threads of OpenMP, if it is loaded inside, sleep between products. XLA needs the cores."""
    policy = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        yield
    finally:
        if policy is None:
            os.environ.pop("OMP_WAIT_POLICY", None)


def _load_library() -> ctypes.CDLL:
    """Loads oneDNN from where pip installed it, and then the compiled products that are linked with it."""
    files = importlib.metadata.files("onednn-cpu-gomp") or []
    folder = pathlib.Path(__file__).parent
    with _sleeping_threads():
        try:
            ctypes.CDLL(next(str(file.locate()) for file in files if file.name == "libdnnl.so.3"))
            return ctypes.CDLL(str(folder / f"products{importlib.machinery.EXTENSION_SUFFIXES[0]}"))
        except (OSError, StopIteration) as error:
            raise ImportError(f"tfm-native is damaged: {error}. Install it again.") from error


_library = _load_library()
_library.MultipliesInt8.restype = _library.MultipliesBfloat16.restype = ctypes.c_bool
multiplies_int8: bool = _library.MultipliesInt8()
multiplies_bfloat16: bool = _library.MultipliesBfloat16()

jax.ffi.register_ffi_target(QUANTIZED_TARGET, jax.ffi.pycapsule(_library.QuantizedProduct), platform="cpu")
jax.ffi.register_ffi_target(FLOAT32_TARGET, jax.ffi.pycapsule(_library.Float32Product), platform="cpu")
jax.ffi.register_ffi_target(BFLOAT16_TARGET, jax.ffi.pycapsule(_library.Bfloat16Product), platform="cpu")
