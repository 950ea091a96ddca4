"""Tests of checkpoints of arrays that are sharded over devices."""

import os

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tfm.checkpoints.store import CheckpointStore


def test_every_shard_of_an_array_has_its_own_file(tmp_path):
    """A shared database occasionally loses the last shards of an array, see `array_handler`."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))
    values = np.arange(2.0 * jax.device_count(), dtype=np.float32)
    divided = jax.device_put(values, NamedSharding(mesh, PartitionSpec("fsdp")))
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"params": {"x": divided}})
    store.close()
    parts = set(os.listdir(tmp_path / "checkpoints" / "1" / "params.x")) - {".zarray"}
    assert parts == {str(number) for number in range(jax.device_count())}
    like = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=divided.sharding)
    restored = CheckpointStore(tmp_path / "checkpoints").restore(1, {"params": {"x": like}})["params"]["x"]
    np.testing.assert_array_equal(restored, values)
    assert restored.sharding == divided.sharding
