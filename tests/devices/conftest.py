"""Skips the tests that need several devices if there are too few.

`make test-all` runs these tests in a separate pytest process with 8 virtual devices.
"""

import jax
import pytest

DEVICES = 8


def pytest_collection_modifyitems(items):
    """Skips the tests of this folder if there are too few devices."""
    if jax.device_count() >= DEVICES:
        return
    reason = f"needs {DEVICES} devices: set XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}"
    for item in items:
        if "/tests/devices/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))
