"""Tests of runs in emulated stores with the real protocols: kills, faults, two writers and two hosts.

`python -m tests.support.store_kills` makes more kills.
"""

import dataclasses
import os
import random
import socket
import time

import jax
import numpy as np
import pytest

from tests.support import kills, processes
from tests.support.store_kills import download, finish, kill, run_kills, start
from tests.support.stores import run_store
from tests.support.tiny import losses, make_config, train_run, write_config_file, write_corpus
from tfm.io.remote import RemoteFolder
from tfm.workdir import runs

pytestmark = pytest.mark.long


@pytest.fixture(params=["gs", "s3"])
def store(request):
    with run_store(request.param) as opened:
        yield opened


@pytest.fixture
def gs():
    with run_store("gs") as opened:
        yield opened


@pytest.fixture
def s3():
    with run_store("s3") as opened:
        yield opened


def config_file(folder, **training):
    write_corpus(folder)
    return write_config_file(folder, make_config(folder, **training))


def test_killed_run_with_faults_equals_the_unbroken_run_bit_for_bit(store, tmp_path):
    url, proxy, _ = store
    counts = run_kills(f"{url}/run", tmp_path, 2, steps=40, share=0.02, proxy=proxy)
    assert counts["kills"] == 2
    assert sum(times for name, times in counts.items() if name != "fault none") > 2


def test_commands_read_and_write_runs_and_files_in_a_store(gs, tmp_path):
    url, _, _ = gs
    config = config_file(tmp_path, steps=6)
    finish(start("train", f"--config={config}", f"--workdir={url}/run", cache=tmp_path / "cache"))
    RemoteFolder(url).write("lines", b"red dog runs\n\nbig cat\n")
    workdir = f"--workdir={url}/run"
    finish(start("evaluate", workdir, cache=tmp_path / "other"))
    finish(
        start("translate", workdir, f"--input={url}/lines", f"--output={url}/out", cache=tmp_path / "other")
    )
    assert RemoteFolder(url).read("out").count(b"\n") == 3
    finish(start("export", workdir, f"--output={url}/export", cache=tmp_path / "other"))
    process = start("list", url, cache=tmp_path / "other")
    output, errors = processes.finish(process)
    assert not process.returncode, errors
    rows = [line.split() for line in output.splitlines()[1:]]
    assert sorted((row[0], "export" in row) for row in rows) == [
        (f"{url}/export", True),
        (f"{url}/run", False),
    ]
    there = {name for name in RemoteFolder(f"{url}/run").sizes() if "/" not in name}
    assert {"test.de.hypotheses", "test.de.scores.json", "metrics.jsonl", "starts.jsonl"} <= there
    assert not {"lock", "compiled"} & there


def test_object_that_ends_with_a_line_break_is_written_whole(store):
    """gcsfs lost a carriage return at the end, so one of some hundred objects of checkpoints was damaged."""
    folder = RemoteFolder(f"{store[0]}/objects")
    contents = {"cr": b"a\r", "lf": b"a\n", "crlf": b"a\r\n", "lfcr": b"a\n\r", "empty": b""}
    for name, content in contents.items():
        folder.write(name, content)
        assert folder.create(f"new/{name}", content)
    assert {name: folder.read(name) for name in contents} == contents
    assert {name: folder.read(f"new/{name}") for name in contents} == contents


def test_store_that_fails_for_a_while_costs_no_step(s3, tmp_path):
    url, proxy, _ = s3
    config = config_file(tmp_path, steps=60, **kills.SCHEDULE)
    process = start("train", f"--config={config}", f"--workdir={url}/run", cache=tmp_path / "cache")
    folder = RemoteFolder(f"{url}/run")
    processes.wait_until(lambda: folder.sizes("checkpoints"), "a checkpoint", process)
    proxy.is_down = True
    time.sleep(10)
    proxy.is_down = False
    finish(process)
    assert proxy.faults["down"] > 2
    assert len(RemoteFolder(f"{url}/run").read("starts.jsonl").splitlines()) == 1
    download(f"{url}/run", tmp_path / "there")
    train_run(make_config(tmp_path, steps=60, **kills.SCHEDULE), tmp_path / "here")
    kills.compare(tmp_path / "here", tmp_path / "there")


def test_store_that_fails_for_longer_ends_in_one_message_and_loses_nothing(s3, tmp_path):
    url, proxy, environment = s3
    config = config_file(tmp_path, steps=160, checkpoint_every=4, keep=3)
    arguments = ("train", f"--config={config}", f"--workdir={url}/run")
    impatient = {"TFM_TEST_PATIENCE": "4"}
    process = start(*arguments, cache=tmp_path / "cache", environment=impatient)
    folder = RemoteFolder(f"{url}/run")
    processes.wait_until(lambda: folder.sizes("checkpoints"), "a checkpoint", process)
    proxy.is_down = True
    output, errors = processes.finish(process)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    assert environment["AWS_SECRET_ACCESS_KEY"] not in output + errors
    (message,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert f"Cannot read or write {url}/run for 4 seconds" in message
    (kept,) = (tmp_path / "cache" / "tfm" / "runs").iterdir()
    assert str(kept) in message
    saved = max(int(path.name) for path in (kept / "run" / "checkpoints").iterdir() if path.name.isdigit())
    proxy.is_down = False
    resumed = start(*arguments, cache=tmp_path / "cache")
    assert f"Resuming from step {saved} " in finish(resumed)


def test_second_writer_on_another_machine_is_refused(s3, tmp_path):
    url, _, _ = s3
    config = config_file(tmp_path, steps=100_000, checkpoint_every=100_000)
    arguments = ("train", f"--config={config}", f"--workdir={url}/run")
    first = start(*arguments, cache=tmp_path / "one")
    folder = RemoteFolder(f"{url}/run")
    processes.wait_until(lambda: folder.sizes(".owner"), "an owner", first)
    second = start(*arguments, cache=tmp_path / "two")
    _, errors = processes.finish(second)
    assert second.returncode == 2
    assert f"error: {url}/run is in use by process {first.pid} on {socket.gethostname()}" in errors
    assert first.poll() is None
    first.kill()
    first.communicate()


def test_of_two_writers_that_start_together_one_trains(s3, tmp_path):
    url, _, _ = s3
    config = config_file(tmp_path, steps=30)
    arguments = ("train", f"--config={config}", f"--workdir={url}/run")
    started = [start(*arguments, cache=tmp_path / name) for name in ("one", "two")]
    ended = [processes.finish(process) for process in started]
    codes = sorted(process.returncode for process in started)
    # The second may also wait until the first has ended, and find nothing to do.
    assert codes in ([0, 2], [0, 0]), [errors for _, errors in ended]
    assert len(RemoteFolder(f"{url}/run").read("starts.jsonl").splitlines()) == 1


def test_hosts_without_a_common_disk_train_like_one_process(s3, tmp_path):
    url, _, _ = s3
    write_corpus(tmp_path)
    settings = make_config(tmp_path, mesh_fsdp=2, steps=12, eval_every=6, checkpoint_every=3)
    # The dropout mask depends on the place in the batch.
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, dropout=0.0))
    config = write_config_file(tmp_path, settings)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"

    def start_hosts(attempt):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        join = (f"--coordinator={address}", "--processes=2")
        return [
            start(
                *("train", f"--config={config}", f"--workdir={url}/run", *join, f"--process_id={host}"),
                cache=tmp_path / f"machine{attempt}{host}",
                environment={"XLA_FLAGS": flags, "TMPDIR": str(make_folder(tmp_path / f"tmp{host}"))},
            )
            for host in range(2)
        ]

    started = start_hosts(0)
    kill(started[0], "training", random.Random(0), RemoteFolder(f"{url}/run"))
    for process in started[1:]:
        processes.finish(process)
    for errors in [finish(process) for process in start_hosts(1)]:
        assert "Resuming from step" in errors
    parts = {name.split("/")[2] for name in RemoteFolder(f"{url}/run").sizes("checkpoints/12")}
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= parts
    download(f"{url}/run", tmp_path / "there")
    alone = dataclasses.replace(settings.training, mesh_fsdp=1, parallel="jit")
    train_run(dataclasses.replace(settings, training=alone), tmp_path / "here")
    np.testing.assert_allclose(losses(tmp_path / "there"), losses(tmp_path / "here"), rtol=1e-4)
    params = (runs.load(str(tmp_path / name), checkpoint="last").params for name in ("there", "here"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), *params)


def make_folder(path):
    path.mkdir(exist_ok=True)
    return path
