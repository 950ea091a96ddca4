"""Batch normalization (Ioffe and Szegedy 2015) whose statistics are those of the whole batch."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.array_types import Array


class Rows(NamedTuple):
    """The rows of a batch on this device.

    Attributes:
      weights: [B], 0 for a row that is padding and 1 for every other row.
      axes: names of the axes over which the rows of the batch are divided, see
        `tfm.training.task.Context.row_axes`.
    """

    weights: Array
    axes: tuple[str, ...] = ()


class BatchNorm(nn.Module):
    """Normalizes each feature by its mean and variance over the rows of all devices, padding excluded.

    Mean and variance are quotients of sums that `psum` adds up over devices. A mean of the means of devices
    would weight ragged batches wrongly. Evaluation uses the moving averages in the collection "batch_stats".

    Attributes:
      momentum: decay of the moving averages.
      epsilon: added to the variance.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Normalizes x [B, ..., D]; `rows` is None for a batch without padding on one device."""
        features = x.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, features)
        variance = self.variable("batch_stats", "variance", jnp.ones, features)
        new_mean, new_variance = mean.value, variance.value
        if train:
            weights, axes = rows or Rows(jnp.ones(len(x)))
            weights = jnp.broadcast_to(weights.reshape(-1, *[1] * (x.ndim - 1)), (*x.shape[:-1], 1))
            over = tuple(range(x.ndim - 1))
            count, total = jax.lax.psum((weights.sum(), (x * weights).sum(over)), axes)
            new_mean = total / jnp.maximum(count, 1)
            squares = jax.lax.psum((jnp.square(x - new_mean) * weights).sum(over), axes)
            new_variance = squares / jnp.maximum(count, 1)
            if not self.is_initializing():
                mean.value += (1 - self.momentum) * (new_mean - mean.value)
                variance.value += (1 - self.momentum) * (new_variance - variance.value)
        scale = self.param("scale", nn.initializers.ones, features)
        bias = self.param("bias", nn.initializers.zeros, features)
        return (x - new_mean) * jax.lax.rsqrt(new_variance + self.epsilon) * scale + bias
