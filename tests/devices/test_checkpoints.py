"""Tests of checkpoints of arrays that are sharded over devices."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tfm.checkpoints.store import CheckpointStore


@pytest.fixture
def sharded():
    """Returns a new array that is sharded over all devices."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))
    values = np.arange(2.0 * jax.device_count(), dtype=np.float32)
    return jax.device_put(values, NamedSharding(mesh, PartitionSpec("fsdp")))


def test_restored_array_has_the_saved_values_and_sharding(sharded, tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"params": {"x": sharded}})
    store.close()
    like = jax.ShapeDtypeStruct(sharded.shape, sharded.dtype, sharding=sharded.sharding)
    restored = CheckpointStore(tmp_path / "checkpoints").restore(1, {"params": {"x": like}})["params"]["x"]
    np.testing.assert_array_equal(restored, sharded)
    assert restored.sharding == sharded.sharding


def test_only_one_thread_lists_the_shards_of_a_new_array(sharded, tmp_path, monkeypatch):
    """If two threads do so at the same time, JAX may omit shards, and Orbax does not write them."""
    threads = []
    kind = type(sharded)
    original = kind.addressable_shards

    def list_shards(array):
        if array is sharded:
            threads.append(threading.current_thread())
        return original.fget(array)

    monkeypatch.setattr(kind, "addressable_shards", property(list_shards))
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"params": {"x": sharded}})
    store.close()
    assert threads
    assert threads[0] is threading.main_thread()
