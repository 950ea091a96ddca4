"""A run of two real processes on loopback against one process."""

import dataclasses
import socket

import jax
import numpy as np
import pytest

from tests.support import processes
from tests.support.tiny import losses, make_config, train_run, write_config_file
from tfm.workdir import runs

pytestmark = pytest.mark.long


def finish(started):
    """Waits for all; each must end well."""
    for process in started:
        _, errors = processes.finish(process)
        assert process.returncode == 0, errors[-3000:]


def test_two_processes_equal_one(corpus, tmp_path):
    settings = make_config(corpus, parallel="mesh", steps=3)
    model = dataclasses.replace(settings.model, dropout=0.0)  # whose mask goes by the place in the batch
    data = dataclasses.replace(settings.data, batch_tokens=7 * settings.data.row_length)  # rows do not divide
    settings = dataclasses.replace(settings, model=model, data=data, validation_sentences=0)
    config = write_config_file(tmp_path, settings)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        hosts = (f"--coordinator=localhost:{free.getsockname()[1]}", "--processes=2")
    finish(
        [processes.start_training(config, tmp_path / "two", *hosts, f"--process_id={i}") for i in range(2)]
    )
    train_run(settings, tmp_path / "one")
    assert [step for step, _ in losses(tmp_path / "one")] == [3, 3]
    assert len(list((tmp_path / "two" / "tensorboard").iterdir())) == 1  # the first host alone has trackers
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)
    weights = (runs.load(str(tmp_path / name), checkpoint="last").params for name in ("one", "two"))
    # Adam amplifies the rounding of gradients that are nearly zero.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), *weights)
