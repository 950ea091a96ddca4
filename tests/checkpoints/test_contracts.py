"""The contract of checkpoint stores over the store of the project."""

import jax
import jax.numpy as jnp
import optax
import pytest

from tfm.checkpoints.store import Checkpoints
from tfm.testing.stores import StoreContract
from tfm.training.step import TrainState

pytestmark = pytest.mark.long


class TestCheckpoints(StoreContract):
    def open_store(self, folder, order="max", **options):
        return Checkpoints(folder, best_metric=self.METRIC, best_order=order, **options)

    def make_state(self, step):
        params = {"w": jnp.full((3, 2), float(step)), "v": jax.random.normal(jax.random.key(step), (5,))}
        return TrainState(jnp.int32(step), params, optax.adam(1e-3).init(params))
