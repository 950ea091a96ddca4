"""Layer normalization (Ba et al. 2016), as each residual connection and each stack's end use it."""

import flax.linen as nn
import jax.numpy as jnp

LAYER_NORM_EPSILON = 1e-6


def layer_norm(
    dtype: jnp.dtype = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """LayerNorm, computed in float32, the variance in two passes: in one pass it cancels.

    Args:
      dtype: of the output.
      epsilon: added to the variance; 1e-6 in the authors' code.
      name: of the module.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)
