"""Tests that dropout on several devices drops the same elements as on a single device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tfm.devices.rows import PMAP_AXIS
from tfm.dropout import dropout
from tfm.layers import TransformerBase
from tfm.layers.block_config import SequenceConfig

KEY, RATE = jax.random.key(0), 0.4
X = np.random.default_rng(0).normal(size=(8, 6, 4)).astype(np.float32)
AXES = ("data", "fsdp", "tensor")
ROWS = P(("data", "fsdp"))


def drop(x):
    return dropout(KEY, x, RATE)


@pytest.fixture(scope="module")
def expected():
    """Returns the output of a single device."""
    return np.asarray(jax.jit(drop)(X))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("spec", [ROWS, P("data", None, "tensor"), P(None, "fsdp", ("data",)), P()], ids=str)
def test_dropout_does_not_depend_on_the_layout_on_a_mesh(spec, kind, expected):
    with jax.set_mesh(jax.make_mesh((2, 2, 2), AXES, axis_types=(kind,) * 3)):
        program = jax.jit(drop).lower(jax.device_put(X, spec)).compile()
        np.testing.assert_array_equal(program(jax.device_put(X, spec)), expected)
    assert "all-" not in program.as_text()
    assert "collective-permute" not in program.as_text()


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2, 1), (1, 8, 1)])
@pytest.mark.parametrize("manual", [AXES[:2], AXES])
def test_dropout_in_shard_map_equals_dropout_on_one_device(manual, sizes, expected):
    mesh = jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3)
    shared = jax.shard_map(drop, mesh=mesh, in_specs=ROWS, out_specs=ROWS, axis_names=set(manual))
    np.testing.assert_array_equal(jax.jit(shared)(X), expected)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_dropout_in_pmap_equals_dropout_on_one_device(devices, expected):
    parts = jnp.asarray(X.reshape(devices, -1, *X.shape[1:]))
    mapped = jax.pmap(drop, axis_name=PMAP_AXIS, devices=jax.devices()[:devices])
    np.testing.assert_array_equal(np.asarray(mapped(parts)).reshape(X.shape), expected)


def shift(x):
    base = TransformerBase(SequenceConfig(random_start=9))
    options = {"rows": len(x), "train": True, "rngs": {"dropout": KEY}}
    return base.apply({}, jnp.arange(3), **options, method="shift_positions")[0]


def test_random_offsets_of_positions_do_not_depend_on_the_devices():
    expected = np.asarray(jax.jit(shift)(X))
    mesh = jax.make_mesh((4, 2), AXES[:2], axis_types=(AxisType.Auto,) * 2)
    shared = jax.shard_map(shift, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
    np.testing.assert_array_equal(jax.jit(shared)(X), expected)
    mapped = jax.pmap(shift, axis_name=PMAP_AXIS)(X[:, None])
    np.testing.assert_array_equal(np.asarray(mapped)[:, 0], expected)
