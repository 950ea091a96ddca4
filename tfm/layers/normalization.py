"""The norms of each residual connection and of each stack's end: LayerNorm (Ba et al. 2016) or RMSNorm."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

LAYER_NORM_EPSILON = 1e-6


def layer_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """LayerNorm, computed in float32, the variance in two passes: in one pass it cancels.

    Args:
      dtype: of the output.
      epsilon: added to the variance; 1e-6 in the authors' code.
      name: of the module.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


def rms_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """RMSNorm (Zhang and Sennrich 2019), in float32: no mean is subtracted, no bias added.

    Arguments as in `layer_norm`, the epsilon added to the mean square.
    """
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, name=name)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}
