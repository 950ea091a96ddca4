"""Weight normalization (Salimans and Kingma 2016). Shape letters as in `tfm.layers`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class WeightNormDense(nn.Module):
    """A projection whose kernel has a learned norm and a learned direction for each output.

    Attributes:
      features: Width of the output.
      gain: Variance of the output at the beginning, for inputs of variance 1.
      dtype: Compute dtype. Parameters are float32.
    """

    features: int
    gain: float = 1.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def kernel_and_bias(self, inputs: int) -> tuple[jax.Array, jax.Array]:
        """Returns the kernel [inputs, features] and the bias [features] in the compute dtype."""
        init = nn.initializers.normal((self.gain / inputs) ** 0.5)
        direction = self.param("direction", init, (inputs, self.features))
        norm = jnp.linalg.norm(direction, axis=0)
        scale = self.param("scale", lambda key: norm)  # the initial kernel is the direction itself
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return (direction * (scale / norm)).astype(self.dtype), bias.astype(self.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps x [..., D] to [..., features]."""
        kernel, bias = self.kernel_and_bias(x.shape[-1])
        return x.astype(self.dtype) @ kernel + bias

    def fused_inputs(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns features and a table for a fused loss, such that features @ table.T equals the output.

        Args:
          x: [..., D].

        Returns:
          x with a column of ones, [..., D + 1], and the kernel with the bias, [features, D + 1].
        """
        kernel, bias = self.kernel_and_bias(x.shape[-1])
        ones = jnp.ones((*x.shape[:-1], 1), x.dtype)
        return jnp.concatenate([x, ones], -1), jnp.concatenate([kernel.T, bias[:, None]], -1)
