"""Layouts on 8 virtual devices against one device, in a process of their own."""

import pytest

from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_partitioner

pytestmark = pytest.mark.long


def test_devices_must_divide_into_the_mesh():
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(parallel="mesh", mesh_fsdp=2))


def test_a_mesh_is_never_ignored():
    for parallel in ("jit", "pmap"):
        with pytest.raises(UserError, match=rf"training\.parallel .*mesh_tensor.* '{parallel}'"):
            TrainingConfig(parallel=parallel, mesh_tensor=2)
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(mesh_fsdp=2))
