"""Tests of the report of --dry_run and of the limits of memory."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from tests.support.tiny import make_config, train_run
from tfm.devices import memory
from tfm.errors import UserError
from tfm.tasks import translation
from tfm.tasks.translation.data import advise_batch_size
from tfm.training import dry_run, setup
from tfm.workdir.train import train


@pytest.fixture
def task(corpus, tmp_path):
    return translation.create(make_config(corpus), str(tmp_path))


@pytest.mark.long
def test_report_has_parameters_batches_speed_and_advice(task, corpus, tmp_path):
    lines = dry_run.describe_run(task, task.config.training, str(tmp_path))
    report = {line[:20].strip(): line[20:] for line in lines}
    parameters = sum(x.size for x in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
    assert report["parameters"] == f"{parameters:,}"
    assert report["batches"].startswith("1 shape(s), the largest 7 x 36; padding 15.2 %")
    assert report["speed"] == "not measured here yet"
    assert "gradient_accumulation_steps=" in lines[-1]
    train_run(make_config(corpus), tmp_path / "run")
    again = dry_run.describe_run(task, task.config.training, str(tmp_path / "run"))
    assert any("tokens/s when last measured here" in line for line in again)


@pytest.mark.long
def test_gradient_accumulation_reduces_memory(corpus, tmp_path, monkeypatch):
    found, measure = [], setup.measure_memory

    def remember(compiled):
        found.append(measure(compiled))
        return found[-1]

    monkeypatch.setattr(setup, "measure_memory", remember)
    for parts in (1, 4):
        config = make_config(corpus, gradient_accumulation_steps=parts)
        config = dataclasses.replace(
            config, data=dataclasses.replace(config.data, batch_tokens=8192, row_length=32)
        )
        dry_run.describe_run(translation.create(config, str(tmp_path)), config.training, str(tmp_path))
    assert found[1].step < 0.6 * found[0].step


@pytest.mark.long
def test_step_that_does_not_fit_into_memory_is_an_error(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**20)
    config = make_config(corpus)
    task = translation.create(config, str(tmp_path))
    for start in (dry_run.describe_run, train):
        with pytest.raises(UserError, match=r"needs .* on each device and there are 1\.00 MiB: raise"):
            start(task, config.training, str(tmp_path))
    assert not (tmp_path / "checkpoints").exists() or not any((tmp_path / "checkpoints").iterdir())


def test_out_of_memory_is_a_user_error_with_advice():
    message = r"does not fit into a device .*gradient_accumulation_steps \(now 3\)"
    with pytest.raises(UserError, match=message), memory.explain_out_of_memory(3):
        jnp.ones(1 << 46).block_until_ready()


def test_available_memory_is_limited_by_the_container(tmp_path, monkeypatch):
    whole = memory.available_memory()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUPS", str(tmp_path))
    for text, expected in (("max", whole), (f"{2**30}", 2**30 // jax.local_device_count())):
        limit.write_text(f"{text}\n")
        assert memory.available_memory() == expected


@pytest.mark.parametrize("line", ["0::/job.slice/step\n", "4:memory:/other\n0::/job.slice/step\n"])
@pytest.mark.parametrize("limited", ["", "job.slice", "job.slice/step"])
def test_available_memory_is_the_smallest_limit_of_the_control_groups(tmp_path, monkeypatch, line, limited):
    """Also a limit of a group that contains the group of the process, such as that of a SLURM job."""
    (tmp_path / "own").write_text(line)
    (tmp_path / "job.slice" / "step").mkdir(parents=True)
    for folder in ("", "job.slice", "job.slice/step"):
        text = f"{2**30}" if folder == limited else "max" if folder == "job.slice" else f"{2**31}"
        (tmp_path / folder / "memory.max").write_text(f"{text}\n")
    monkeypatch.setattr(memory, "CGROUPS", str(tmp_path))
    monkeypatch.setattr(memory, "CGROUP_OF_PROCESS", str(tmp_path / "own"))
    assert memory.host_memory() == 2**30


@pytest.mark.long
@pytest.mark.parametrize(("tokens", "parts"), [(25_000, None), (13_000, None), (2_500, 10), (500_000, 1)])
def test_only_unusual_batch_sizes_give_advice(tokens, parts):
    advice = advise_batch_size(tokens, 1)
    assert bool(advice) == (parts is not None)
    assert not advice or re.search(rf"gradient_accumulation_steps={parts}\b", advice)
