"""Functions that start processes and wait for them with a time limit."""

import os
import subprocess
import sys
import threading
import time

from tests.support.paths import ROOT

LIMIT = 240  # seconds, many times the duration of any process of the tests
POLL_SECONDS = 0.002


def run_python(*arguments, stdin=""):
    """Runs Python with these arguments in the root of the project, on the CPU, and returns the result."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=False,
        timeout=LIMIT,
    )


def start_training(config, workdir, *arguments):
    """Starts train.py as a process with one device."""
    command = [sys.executable, "train.py", f"--config={config}", f"--workdir={workdir}", *arguments]
    # Of two flags with the same name, XLA uses the last one.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process, seconds=LIMIT):
    """Returns the output and errors of a process when it ends. Kills it and fails after the time limit."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        written = (error.stderr or b"")[-3000:].decode(errors="replace")
        raise AssertionError(f"{process.args} did not end within {seconds} s; stderr: {written}") from None


def wait_until(condition, what, process=None, seconds=LIMIT):
    """Waits until `condition()` is true. Fails if the optional process ends before this.

    Meanwhile, the pipes of the process are read, because it would stop when a pipe is full. `finish` returns
    this output, too.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if process is None:
            time.sleep(POLL_SECONDS)
        elif ends_within(process, POLL_SECONDS) and not condition():
            _, errors = process.communicate()
            raise AssertionError(
                f"{process.args} ended with code {process.returncode}, waited for {what}; "
                f"stderr: {(errors or '')[-3000:]!r}"
            )
        if time.monotonic() > deadline:
            if process is not None:
                process.kill()
            raise AssertionError(f"waited {seconds} s for {what}")


def ends_within(process, seconds):
    """Returns whether a process ends within a number of seconds. Keeps its output for `communicate`."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def read_to(stream, text, process, seconds=LIMIT):
    """Reads lines of the output of a process up to a line that contains `text`."""
    watchdog = threading.Timer(seconds, process.kill)  # a kill ends the stream
    watchdog.start()
    try:
        for line in stream:
            if text in line:
                return
    finally:
        watchdog.cancel()
        watchdog.join()
    raise AssertionError(f"{process.args} never wrote {text!r}")
