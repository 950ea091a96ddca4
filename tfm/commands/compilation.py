"""The devices of JAX, and slow compilations in the log."""

import contextlib
import functools
import logging
from typing import Any

import jax

from tfm.errors import UserError, first_line
from tfm.io.files import user_cache
from tfm.workdir.compiled_programs import enable_compilation_cache

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


def prepare_device() -> None:
    """Calls `check_device`, and `enable_compilation_cache` with the user's cache."""
    check_device()
    with contextlib.suppress(UserError):  # if the user has no home folder
        enable_compilation_cache(user_cache())
