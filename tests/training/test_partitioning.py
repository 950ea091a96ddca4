"""Layouts on 8 virtual devices against one device, in a process of their own."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.processes import LIMIT
from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_partitioner

pytestmark = pytest.mark.long
CHECKS = (
    "pmap",
    "mesh",
    "mechanisms",
    "gradient_accumulation_steps",
    "sharding",
    "restore",
    "not_finite",
    "collectives",
    "device_keys",
    "divided_positions",
)


@pytest.fixture(scope="module")
def eight_devices():
    """{check: "" or what went wrong}, of one process."""
    options = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    result = subprocess.run(
        [sys.executable, "-m", "tests.devices.parallel_worker"],
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"},
        check=False,
        timeout=2 * LIMIT,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return dict(map(json.loads, result.stdout.splitlines()))


@pytest.mark.parametrize("check", CHECKS)
def test_eight_devices_equal_one(check, eight_devices):
    assert eight_devices[check] == ""


def test_every_check_is_made(eight_devices):
    assert set(eight_devices) == set(CHECKS)


def test_devices_must_divide_into_the_mesh():
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(parallel="mesh", mesh_fsdp=2))


def test_a_mesh_is_never_ignored():
    for parallel in ("jit", "pmap"):
        with pytest.raises(UserError, match=r"are for training\.parallel 'mesh' or 'auto', got"):
            TrainingConfig(parallel=parallel, mesh_tensor=2)
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(mesh_fsdp=2))
