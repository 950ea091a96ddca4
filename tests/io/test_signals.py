"""Tests of SIGTERM, SIGINT and SIGUSR1: when a run stops, what it saves and how it resumes."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support.kills import compare
from tests.support.paths import ROOT
from tests.support.processes import finish, read_to, start_training
from tests.support.tiny import losses, train_run, write_config_file
from tests.support.tiny_regression import Data, Regression, create, make_config
from tfm.checkpoints.store import CheckpointStore
from tfm.config import save
from tfm.io.signals import REPEAT_SECONDS, SIGNALS, SignalHandler, handle_signals
from tfm.training.run_log import read_metrics
from tfm.workdir import runs
from tfm.workdir.train import train


def steps_of(workdir):
    return CheckpointStore(workdir / "checkpoints").steps()


def send(number):
    """Sends a signal to this process and returns after its Python handler has run."""
    os.kill(os.getpid(), number)
    time.sleep(0.05)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_are_recorded_while_deferred_and_otherwise_exit(number, caplog):
    before = [signal.getsignal(each) for each in SIGNALS]
    with handle_signals() as signals, signals.deferred():
        assert signals.signal == 0
        send(number)
        assert signals.signal == number
    assert f"{number.name}: the run saves and ends" in caplog.text
    with pytest.raises(SystemExit) as ending, handle_signals():
        send(number)
    assert ending.value.code == 128 + number
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_signals_are_not_deferred_after_an_exception():
    with handle_signals() as signals:
        with contextlib.suppress(ValueError), signals.deferred():
            raise ValueError
        with pytest.raises(SystemExit):
            send(signal.SIGTERM)


@pytest.mark.long
@pytest.mark.parametrize(("step", "saved"), [(4, [2, 3, 4]), (3, [2, 3])])
def test_stopped_run_saves_and_resumes(step, saved, regression_run, tmp_path, monkeypatch):
    """The evaluation of step 3 does not start after a signal in this step."""
    signals, config, plain = SignalHandler(), make_config(), Data.train_batches

    def ask(self, start_step):
        for number, batch in enumerate(plain(self, start_step), start_step + 1):
            signals.signal = signal.SIGINT if number == step else 0
            yield batch

    monkeypatch.setattr(Data, "train_batches", ask)
    with pytest.raises(SystemExit) as ending:
        train(create(config, str(tmp_path)), config.training, str(tmp_path), signals=signals)
    assert ending.value.code == 130
    assert steps_of(tmp_path) == saved
    assert any("validation/score" in row for row in read_metrics(str(tmp_path))) == (step > 3)
    monkeypatch.undo()
    train_run(config, tmp_path)
    compare(regression_run, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("evaluation", "step"), [(1, 3), (2, 6)])
def test_interrupted_evaluation_is_repeated_when_the_run_resumes(
    evaluation, step, regression_run, tmp_path, monkeypatch, caplog
):
    """The second evaluation belongs to the last step, after which only the evaluation remains."""
    config, plain = make_config(), Regression.evaluate
    caplog.set_level("INFO")
    save(config, runs.config_path(str(tmp_path)))
    saved = []
    for numbers in (
        itertools.count(1),
        itertools.repeat(evaluation),
    ):  # the second run is interrupted while it repeats the evaluation
        signals = SignalHandler()

        def asks(self, params, data, signals=signals, numbers=numbers):
            if next(numbers) == evaluation:
                try:
                    signals.handle(signal.SIGTERM, None)
                finally:
                    signals.handle(
                        signal.SIGTERM, None
                    )  # a wrapper sends it again while the first exception unwinds
            return plain(self, params, data)

        monkeypatch.setattr(Regression, "evaluate", asks)
        with pytest.raises(SystemExit) as ending:
            train(create(config, str(tmp_path)), config.training, str(tmp_path), signals=signals)
        assert ending.value.code == 128 + signal.SIGTERM
        assert steps_of(tmp_path)[-1] == step
        assert f"validation at step {step} was cut short" in caplog.text
        evaluated = [row["step"] for row in read_metrics(str(tmp_path)) if "validation/score" in row]
        assert evaluated == list(range(3, step, 3))
        saved.append((tmp_path / "checkpoints" / str(step)).stat().st_ino)
        caplog.clear()
    assert saved[0] == saved[1]  # the second interruption does not write the checkpoint again
    monkeypatch.undo()
    train_run(config, tmp_path)
    compare(regression_run, tmp_path)


@pytest.mark.long
def test_signal_during_the_last_save_postpones_the_evaluation(tmp_path, monkeypatch):
    signals, config, plain = SignalHandler(), make_config(steps=1), CheckpointStore.save

    def asks(self, *arguments, **options):
        signals.signal = signal.SIGTERM
        plain(self, *arguments, **options)

    monkeypatch.setattr(CheckpointStore, "save", asks)
    with pytest.raises(SystemExit):
        train(create(config, str(tmp_path)), config.training, str(tmp_path), signals=signals)
    assert steps_of(tmp_path) == [1]
    assert not any("validation/score" in row for row in read_metrics(str(tmp_path)))
    train_run(config, tmp_path)
    assert any("validation/score" in row for row in read_metrics(str(tmp_path)))


@pytest.mark.long
def test_second_signal_ends_a_busy_process():
    code = (
        "import jax\nfrom tfm.io.signals import handle_signals\n"
        "with handle_signals() as signals, signals.deferred():\n"
        "    print('ready', flush=True)\n"
        "    jax.jit(lambda x: jax.lax.while_loop(lambda i: i >= 0, lambda i: (i + 1) % 7, x))(0)"
        ".block_until_ready()\n"  # the loop never ends, and no Python handler runs during it
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    read_to(process.stdout, "ready", process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # counts as the same signal, which a wrapper may repeat at once
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(REPEAT_SECONDS + 0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    process.stdout.close()


@pytest.mark.long
def test_train_saves_and_exits_with_the_signal(tmp_path):
    config = write_config_file(tmp_path, make_config(steps=100_000, eval_every=10, log_every=5))
    options = ("--config.training.checkpoint_every=100000", "--config.data.pause=1.0")
    process = start_training(config, tmp_path / "run", *options)
    read_to(process.stderr, "step 10/", process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)  # during the first evaluation
    _, errors = finish(process)
    assert process.returncode == 128 + signal.SIGINT
    assert time.monotonic() - began < 20
    assert "SIGINT: the run saves and ends" in errors
    assert "validation at step 10 was cut short" in errors
    assert "the same command resumes from there" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert steps_of(tmp_path / "run") == [10]


@pytest.mark.long
def test_two_hosts_stop_at_the_same_step(tmp_path):
    settings = make_config(parallel="mesh", steps=100_000, eval_every=100_000, log_every=1)
    config = write_config_file(tmp_path, settings)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        hosts = (f"--coordinator=localhost:{free.getsockname()[1]}", "--processes=2")
    options = (*hosts, "--config.training.checkpoint_every=100000")
    processes = [start_training(config, tmp_path / "run", *options, f"--process_id={i}") for i in range(2)]
    read_to(processes[1].stderr, "step 5/", processes[1])
    processes[1].send_signal(signal.SIGTERM)
    ends = [finish(process)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 143], ends
    (step,) = steps_of(tmp_path / "run")
    assert all(f"Saved step {step:,}: the same command resumes" in end for end in ends)
    assert losses(tmp_path / "run")[-1][0] == step
