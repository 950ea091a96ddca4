"""Batch normalization (Ioffe and Szegedy 2015) over the rows of all devices."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.array_types import Array


class Rows(NamedTuple):
    """The rows of a batch on this device.

    Attributes:
      weights: [B], 0 for a row that is padding and 1 for every other row.
      axes: Names of the mesh axes that divide the rows of the batch, see
        `tfm.training.task.Context.row_axes`.
    """

    weights: Array
    axes: tuple[str, ...] = ()


class BatchNorm(nn.Module):
    """A batch norm whose mean and variance cover the rows of all devices, except rows of padding.

    Sums and counts are added over all devices (`psum`) before they are divided. Averaging the means of the
    devices would give wrong weights to devices with fewer rows. Evaluation uses the moving averages in the
    collection "batch_stats".

    Attributes:
      momentum: Decay rate of the moving averages.
      epsilon: Number added to the variance.
      affine: Whether the result is multiplied by a learned scale and added to a learned bias. A conditional
        norm computes these from its condition instead.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5
    affine: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Normalizes each feature of x [B, ..., D].

        Args:
          x: float [B, ..., D].
          rows: The rows that are not padding, and the mesh axes that divide the batch. None means that no row
            is padding and the batch is on one device.
          train: Whether to use the statistics of this batch and to update the moving averages.

        Returns:
          [B, ..., D].
        """
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
        normalized = (x - new_mean) * jax.lax.rsqrt(new_variance + self.epsilon)
        if not self.affine:
            return normalized
        scale = self.param("scale", nn.initializers.ones, features)
        bias = self.param("bias", nn.initializers.zeros, features)
        return normalized * scale + bias
