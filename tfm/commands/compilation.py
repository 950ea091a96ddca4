"""The devices of JAX, and its cache of compiled programs."""

import contextlib
import functools
import glob
import logging
import os
import zlib
from typing import Any

import jax

from tfm.errors import UserError, first_line
from tfm.io.files import user_cache
from tfm.training.setup import COMPILED_FOLDER

ZSTANDARD = b"\x28\xb5\x2f\xfd"  # the first bytes of data that zstandard compressed
COMPILATION_EVENT = "/jax/core/compile/backend_compile_duration"
SLOW_COMPILATION = 5.0  # seconds after which a user wonders what a command is waiting for
log = logging.getLogger(__name__)


def check_device() -> None:
    """Checks that JAX finds a device. Commands call this before they do any work.

    From then on, the log reports slow compilations.

    Raises:
      UserError: if JAX finds no device.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that the requested platform exists
        raise UserError(
            f"JAX finds no device to compute on ({first_line(error)}). JAX_PLATFORMS is "
            f"{_jax_option('jax_platforms')!r}: check it, and check that JAX is installed for this platform."
        ) from None
    _watch_compilations()


@functools.cache  # a process that runs several commands listens once
def _watch_compilations() -> None:
    """Makes JAX call `_log_slow_compilation`."""
    jax.monitoring.register_event_duration_secs_listener(_log_slow_compilation)


def _log_slow_compilation(event: str, duration_secs: float, **_: Any) -> None:
    """Logs a compilation that took long."""
    if event == COMPILATION_EVENT and duration_secs >= SLOW_COMPILATION:
        log.info("Compiled a program in %.0f s", duration_secs)


def _jax_option(name: str) -> Any:
    """Returns an option of JAX. JAX adds these attributes at import, so a type checker does not see them."""
    return getattr(jax.config, name)


def enable_compilation_cache(folder: str) -> None:
    """Stores compiled programs below `folder`, so that the same program starts sooner next time.

    The cached programs are executed, so the folder must be trusted. Training uses its work directory.
    Commands that only read a run use the user's cache, because the run may come from someone else. If
    JAX_COMPILATION_CACHE_DIR names a folder, JAX uses that folder instead. If the folder cannot be written,
    there is no cache.
    """
    folder = os.path.join(folder, COMPILED_FOLDER)
    if _jax_option("jax_compilation_cache_dir"):
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", folder)


def remove_damaged_programs(folder: str) -> None:
    """Removes damaged programs from the compilation cache of `folder`, which a kill or a full disk truncated.

    JAX never overwrites an entry, so without this each start would warn and compile again. JAX compresses
    with zlib, or with zstandard if it is installed. Entries that zstandard compressed are not checked. No
    other process may use the folder at the same time.
    """
    for path in glob.glob(os.path.join(glob.escape(folder), COMPILED_FOLDER, "*-cache")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            try:
                packed = file.read()
                is_whole = packed.startswith(ZSTANDARD) or bool(zlib.decompress(packed))
            except zlib.error:
                is_whole = False
            if not is_whole:
                log.info("Removing a damaged program from the compilation cache: %s", path)
                os.unlink(path)


def prepare_device() -> None:
    """Calls `check_device`, and `enable_compilation_cache` with the user's cache."""
    check_device()
    with contextlib.suppress(UserError):  # if the user has no home folder
        enable_compilation_cache(user_cache())
