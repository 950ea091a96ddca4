"""LayerNorm (Ba et al. 2016) and RMSNorm, for residual connections and for the end of a stack."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

LAYER_NORM_EPSILON = 1e-6


def layer_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """Returns a LayerNorm that computes in float32.

    The variance is the mean of (x - mean)^2. The faster formula, mean(x^2) - mean^2, loses precision when the
    mean is large.

    Args:
      dtype: Dtype of the output.
      epsilon: Number added to the variance. The authors' code uses 1e-6.
      name: Name of the module.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


def rms_norm(
    dtype: DTypeLike = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """Returns an RMSNorm (Zhang and Sennrich 2019) that computes in float32.

    It divides by the root of the mean square. Unlike LayerNorm, it subtracts no mean and has no bias.

    Args:
      dtype: Dtype of the output.
      epsilon: Number added to the mean square.
      name: Name of the module.
    """
    return nn.RMSNorm(epsilon=epsilon, dtype=dtype, name=name)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}
