"""How one pure step runs on the devices at hand: plain jit, or pmap over all local ones."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "batch"


class Layout(NamedTuple):
    """Where state and batches live, and how a step is compiled for that.

    Attributes:
      devices: how many share a batch.
      compile: train_step -> compiled function of (placed state, placed batch); donates the state.
      place_state, fetch_state: one state -> the devices, and back to one copy.
      place_batch: dict of [rows, ...] arrays -> the devices; rows are filled up with zeros to a multiple of
        the devices, and an all-zero row is padding that counts for nothing.
      fetch_metrics: the step's metrics -> one copy.
    """

    devices: int
    compile: callable
    place_state: callable
    fetch_state: callable
    place_batch: callable
    fetch_metrics: callable


def make_layout(mode, devices=None):
    """The layout of `mode`: "jit", "pmap", or "auto", which takes pmap where there are several devices."""
    devices = devices or jax.local_devices()
    if mode == "jit" or (mode == "auto" and len(devices) == 1):
        return _jit_layout(devices[0])
    return _pmap_layout(devices)


def _identity(x):
    return x


def _jit_layout(device):
    put = functools.partial(jax.device_put, device=device)
    return Layout(1, functools.partial(jax.jit, donate_argnums=0), put, _identity, put, _identity)


def _pmap_layout(devices):
    count = len(devices)
    sharding = NamedSharding(Mesh(np.asarray(devices), (AXIS,)), PartitionSpec(AXIS))

    def compile_step(step):
        return jax.pmap(
            functools.partial(step, axis_name=AXIS), axis_name=AXIS, devices=devices, donate_argnums=0
        )

    def place_state(state):
        stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), state)
        return jax.device_put(stacked, sharding)

    def first(tree):
        return jax.tree.map(lambda x: x[0], tree)

    def place_batch(batch):
        return jax.device_put({name: _split_rows(array, count) for name, array in batch.items()}, sharding)

    return Layout(count, compile_step, place_state, first, place_batch, first)


def _split_rows(array, devices):
    """[rows, ...] -> [devices, rows / devices, ...], filled up with zero rows."""
    missing = -len(array) % devices
    array = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
    return array.reshape(devices, -1, *array.shape[1:])
