"""Calls of Python by compiled programs, where the process ends while one runs."""

import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tfm.matmul import foreign_call, onednn

PROGRAM = """
import sys
import jax, jax.numpy as jnp
from tfm.matmul import onednn

@jax.jit
def loop(x):
    weights = jnp.ones((512, 512), jnp.int8)
    return jax.lax.fori_loop(0, 1_000_000, lambda _, x: onednn.multiply(x, weights).astype(jnp.uint8), x)

result = loop(jnp.ones((512, 512), jnp.uint8))
del result
sys.exit(3)
"""


@pytest.mark.long
@pytest.mark.skipif(not onednn.is_available(), reason="oneDNN or VNNI is not here")
def test_a_process_ends_while_a_program_runs():
    """It would run for hours, and nobody has its result."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, timeout=LIMIT)
    assert done.returncode == 3, done.stderr


def test_an_interrupted_end_still_ends_programs(monkeypatch):
    class Array:
        def block_until_ready(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(foreign_call, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(jax, "live_arrays", lambda: [Array()])
    calls = foreign_call._Calls()
    with pytest.raises(KeyboardInterrupt):
        calls.end()
    with pytest.raises(RuntimeError, match="the process ends"), calls.one():
        pass


def test_a_target_keeps_its_first_function():
    """Threads that compile their first product at once register it twice."""
    for problem in ("of the first", "of the second"):
        foreign_call.register("tfm_registered_twice", lambda arguments, results, problem=problem: problem)
    call = jax.ffi.ffi_call("tfm_registered_twice", jax.ShapeDtypeStruct((1,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="of the first"):
        jax.block_until_ready(call(jnp.ones(1)))


def test_the_end_waits_for_a_running_call(monkeypatch):
    monkeypatch.setattr(foreign_call, "QUIET_SECONDS", 0.0)
    calls, began, may_end, ended = foreign_call._Calls(), threading.Event(), threading.Event(), []

    def run():
        with calls.one():
            began.set()
            may_end.wait(LIMIT)
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(LIMIT)
    threading.Timer(0.1, may_end.set).start()
    calls.end()
    assert ended
    thread.join()


def test_exit_waits_for_a_program_between_calls(monkeypatch):
    monkeypatch.setattr(foreign_call, "QUIET_SECONDS", 0.2)
    calls = foreign_call._Calls()
    start = time.monotonic()
    calls.end()
    assert time.monotonic() - start >= 0.2


def test_no_call_begins_after_the_end(monkeypatch):
    monkeypatch.setattr(foreign_call, "QUIET_SECONDS", 0.0)
    calls = foreign_call._Calls()
    with calls.one():
        pass
    calls.end()
    with pytest.raises(RuntimeError, match="the process ends"), calls.one():
        pytest.fail("was called")
