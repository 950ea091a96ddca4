"""Tests of the dry run for TPUs of another machine. Some of the tests need libtpu."""

import importlib.util
import re

import jax
import numpy as np
import pytest

from benchmarks import topology
from benchmarks.chips import CHIPS
from benchmarks.hlo import COLLECTIVES, Collective
from tests.support.tiny import make_config
from tfm.errors import UserError
from tfm.tasks import translation

BATCH = [f"{side}{part}" for side in ("input", "target") for part in ("s", "_positions", "_segments")]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)


@pytest.fixture
def task(corpus, tmp_path):
    return translation.create(make_config(corpus, parallel="mesh"), str(tmp_path))


@pytest.mark.parametrize("name", ["", "v5e", "v9x:2x2", "2x2"])
def test_unknown_generation_is_an_error(name):
    with pytest.raises(UserError, match=r"GENERATION:SHAPE.*v4, v5e, v5p, v6e"):
        topology.find_devices(name)


def test_error_without_libtpu_advises_installing_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=re.escape("pip install -e '.[tpu]'")):
        topology.find_devices("v5e:4x4")


@needs_libtpu
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_every_chip_is_a_single_device(name):
    devices, chip = topology.find_devices(name)
    assert chip == CHIPS[name.partition(":")[0]]
    assert len(devices) == len({tuple(device.coords) for device in devices}) == 4


@pytest.mark.long
def test_description_of_a_compiled_step(task, monkeypatch):
    """The step is compiled for the CPU and described as if the CPU were a v5e."""
    batch = task.open_data().example()
    sums = [
        Collective("all-reduce", ("f32",), size, 4, 1, overlaps)
        for size, overlaps in ((40, True), (8, False))
    ]
    monkeypatch.setattr(topology.hlo, "find_collectives", lambda program: sums)
    found = topology.compile_for(task, task.config.training, batch, jax.devices()[:1], CHIPS["v5e"])
    assert found.roofline[2:] == tuple(sums[i].sent_bytes / CHIPS["v5e"].interconnect for i in (1, 0))
    parameters = sum(4 * x.size for x in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
    assert found.parameters == parameters
    assert 2 * parameters <= found.optimizer < 2 * parameters + 100  # two moments and counters
    assert found.batch == 6 * 4 * batch["inputs"].size
    assert (
        found.flops > 6 * parameters / 4 * batch["inputs"].size / 2
    )  # most parameters are used on only one of the two sides
    assert found.collectives == sums
    assert found.host_transfers == 0
    lines = dict(topology.describe_time(found.roofline, 1000, "images", 3600, 16))
    seconds = found.roofline.seconds
    assert lines["speed"].startswith(f"at most {1000 / seconds:,.0f} images/s")
    assert lines["run"] == f"3,600 steps, at least {seconds:,.2f} hours, {16 * seconds:,.1f} chip-hours"
    for memory, is_too_much in ((found.peak, False), (found.peak - 1, True)):
        chip = CHIPS["v5e"]._replace(memory=memory)
        described = dict(topology.describe_device(found, chip))
        assert ("too much" in described["peak memory"]) == is_too_much


def test_collectives_are_summed_by_kind():
    collectives = [
        Collective("all-gather", ("bf16",), bytes=2**30, group=4, times=2, overlaps=True),
        Collective("all-gather", ("f32",), bytes=2**30, group=4, times=1, overlaps=False),
    ]
    step = topology.CompiledStep(1, 2, 3, 4, 5, 6, collectives, host_transfers=0, roofline=None)
    described = dict(topology.describe_device(step, CHIPS["v5e"]))
    assert described.keys() & set(COLLECTIVES) == {"all-gather"}
    assert described["all-gather"].startswith("3 per step, 3.00 GiB of bf16, f32; 2 overlap")


@pytest.mark.long
def test_step_too_large_for_the_compiler_is_a_user_error(task, monkeypatch):
    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    batch = {name: np.zeros((8, 32), np.int32) for name in BATCH}
    with pytest.raises(UserError, match=r"does not fit into a device .*gradient_accumulation_steps"):
        topology.compile_for(task, task.config.training, batch, jax.devices()[:1])


@needs_libtpu
@pytest.mark.long
def test_topology_that_does_not_exist_is_an_error():
    with pytest.raises(UserError, match=r"libtpu .*v5e:3x77"):
        topology.find_devices("v5e:3x77")


@needs_libtpu
@pytest.mark.long
@pytest.mark.parametrize("parallel", ["mesh", "pmap"])
def test_data_parallel_tpus_sum_each_gradient_once(parallel, corpus, tmp_path):
    task = translation.create(make_config(corpus, parallel=parallel), str(tmp_path))
    devices, chip = topology.find_devices("v5e:2x2")
    found = topology.compile_for(task, task.config.training, task.open_data().example(), devices, chip)
    assert {each.kind for each in found.collectives} == {"all-reduce"}
    assert {dtype for each in found.collectives for dtype in each.dtypes} == {"f32"}
    reduced = sum(each.total_bytes for each in found.collectives)
    assert found.parameters <= reduced < found.parameters + 1000  # metrics and the norm are scalars
    assert found.roofline.seconds > 0


@needs_libtpu
@pytest.mark.long
def test_description_of_a_topology(task, capsys):
    lines = topology.describe_topology(task, task.config.training, "v5e:2x2")
    report = {line[: topology.COLUMN].strip(): line[topology.COLUMN :] for line in lines}
    assert report["topology"] == "v5e:2x2, 4 chips"
    assert report["peak memory"].endswith("of 16.00 GiB")
    assert "chip-hours" in report["run"]
    assert "tokens/s" in report["speed"]
