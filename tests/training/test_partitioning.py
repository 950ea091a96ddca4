"""Layouts on 8 virtual devices against one device, in processes of their own."""

import os
import subprocess
import sys

import pytest

from tests.helpers.processes import LIMIT
from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_partitioner

pytestmark = pytest.mark.long
CHECKS = (
    "pmap",
    "mesh",
    "mesh_dropout",
    "gradient_accumulation_steps",
    "sharding",
    "restore",
    "not_finite",
    "collectives",
)


@pytest.mark.parametrize("check", CHECKS)
def test_eight_devices_equal_one(check):
    # Hardly optimised: these programs compile longer than they run.
    options = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.helpers.parallel_worker", check],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
        timeout=LIMIT,
    )
    assert result.stdout.strip() == "equal", result.stderr[-2000:]


def test_devices_must_divide_into_the_mesh():
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(parallel="mesh", mesh_fsdp=2))
