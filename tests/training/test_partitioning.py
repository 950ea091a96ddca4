"""Layouts on 8 virtual devices against one device, in processes of their own."""

import os
import subprocess
import sys

import pytest

from tfm.errors import UserError
from tfm.layers.parameter_axes import parameter_axes
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_partitioner

pytestmark = pytest.mark.long
CHECKS = ("pmap", "mesh", "mesh_dropout", "micro_batches", "sharding", "restore", "not_finite")


@pytest.mark.parametrize("check", CHECKS)
def test_eight_devices_equal_one_on_ragged_batches(check):
    # Hardly optimised: these programs compile longer than they run.
    options = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.helpers.parallel_worker", check],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert result.stdout.strip() == "equal", result.stderr[-2000:]


def test_devices_that_do_not_divide_into_the_mesh_are_refused():
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(parallel="mesh", mesh_fsdp=2))


@pytest.mark.parametrize(
    ("path", "rank", "names"),
    [
        ("params/embedding/table", 2, ("vocabulary", None)),
        ("params/encoder_positions/table", 2, ("positions", None)),
        ("opt_state/0/mu/decoder/layers_1/mixer/output/kernel", 3, ("heads", "features", "model")),
        ("params/encoder/layers_0/feed_forward/output/kernel", 2, ("hidden", "model")),
        ("params/encoder/layers_0/feed_forward_residual/norm/scale", 1, (None,)),
        ("step", 0, ()),
    ],
)
def test_axes_are_named_by_the_end_of_a_path(path, rank, names):
    assert parameter_axes(path, rank) == names
