"""Tests of a run with several real processes on loopback against a single process."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.support import processes
from tests.support.paths import ROOT
from tests.support.tiny import losses, make_config, train_run, write_config_file
from tfm.workdir import runs
from tfm.workdir.translator import Translator

pytestmark = pytest.mark.long
MINUTE = 60
LINES = ["red dog runs", "", "big blue bird sleeps", "cat"]


@pytest.fixture
def start():
    """Returns `start_hosts`. Kills the processes that still run after the test."""
    started = []

    def start(*arguments, **options):
        hosts = start_hosts(*arguments, **options)
        started.extend(hosts)
        return hosts

    yield start
    for process in started:
        process.kill()
        process.communicate()


def start_hosts(command, *arguments, hosts, devices=1):
    """Starts one process of a command for each host. Each process has `devices` devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    join = (f"--coordinator={address}", f"--processes={hosts}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tfm", command, *arguments, *join, f"--process_id={host}"],
            cwd=ROOT,
            env=environment,
            **pipes,
        )
        for host in range(hosts)
    ]


def finish(started):
    """Returns [(output, errors)] of all processes. Each process must exit with code 0."""
    ended = [processes.finish(process) for process in started]
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return ended


def test_hosts_train_evaluate_and_translate_like_one_process(corpus, start, tmp_path):
    settings = make_config(corpus, mesh_fsdp=2, steps=12, eval_every=6, checkpoint_every=1)
    # The dropout mask depends on the place in the batch.
    model = dataclasses.replace(settings.model, encoder_layers=1, decoder_layers=1, dropout=0.0)
    data = dataclasses.replace(
        settings.data, batch_tokens=7 * settings.data.row_length
    )  # 7 rows are not divisible
    settings = dataclasses.replace(settings, model=model, data=data, validation_sentences=2)
    workdir, config = tmp_path / "run", write_config_file(tmp_path, settings)
    training = (f"--config={config}", f"--workdir={workdir}")

    killed, *others = reversed(start("train", *training, hosts=4))
    saved = workdir / "checkpoints" / "2"
    processes.wait_until(saved.exists, "a checkpoint", killed)
    killed.kill()
    for process in others:
        _, errors = processes.finish(process, MINUTE)
        # JAX may abort the coordinating process with its own message.
        assert process.returncode in (1, -signal.SIGABRT), errors[-3000:]
        assert "Another process of this command has ended" in errors or "another task died" in errors
    processes.finish(killed)
    assert killed.returncode == -signal.SIGKILL

    for _, errors in finish(start("train", *training, hosts=2, devices=2)):
        assert "Resuming from step" in errors
    alone = dataclasses.replace(settings.training, mesh_fsdp=1, parallel="jit")
    train_run(dataclasses.replace(settings, training=alone), tmp_path / "one")
    np.testing.assert_allclose(losses(workdir), losses(tmp_path / "one"), rtol=1e-5)
    params = (
        jax.device_get(runs.load(str(tmp_path / name), checkpoint="last").params) for name in ("run", "one")
    )
    # Adam amplifies the rounding of gradients that are nearly zero.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), *params)

    run = runs.load(str(workdir))
    (report,) = run.task.report(run.variables, "test")
    for output, _ in finish(start("evaluate", f"--workdir={workdir}", hosts=4)):
        assert str(report.scores[0]) in output
        assert "Gloo" not in output
    assert (workdir / "test.de.hypotheses").read_text().splitlines() == report.outputs
    source, target = tmp_path / "lines", tmp_path / "translated"
    source.write_text("".join(f"{line}\n" for line in LINES))
    paths = (f"--input={source}", f"--output={target}")
    finish(start("translate", f"--workdir={workdir}", *paths, hosts=2, devices=2))
    assert target.read_text().splitlines() == Translator(run).translate(LINES)
