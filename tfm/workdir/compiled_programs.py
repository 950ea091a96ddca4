"""The compiled programs that a run folder keeps, so that the next start of the run is faster."""

import contextlib
import glob
import logging
import os
import zlib
from typing import Any

import jax

COMPILED_FOLDER = "compiled"  # of the run folder
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # the first bytes of data that zstandard compressed
log = logging.getLogger(__name__)


def enable_compilation_cache(folder: str) -> None:
    """Stores compiled programs in `folder`/compiled, so that the same program starts sooner next time.

    The cached programs are executed, so the folder must be trusted. Training uses its work directory.
    Commands that only read a run use the user's cache, because the run may come from someone else. If
    JAX_COMPILATION_CACHE_DIR names a folder, JAX uses that folder instead. If the folder cannot be written,
    there is no cache.
    """
    folder = os.path.join(folder, COMPILED_FOLDER)
    cache: Any = jax.config
    if cache.jax_compilation_cache_dir:
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
