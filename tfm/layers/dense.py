"""The dense projections of all layers: Glorot-uniform kernels by default, and `tfm.matmul`."""

import functools
from typing import Any

import flax.linen as nn
import jax
from jax.nn.initializers import Initializer

from tfm.matmul import dot_general

KERNEL_INIT: Initializer = nn.initializers.glorot_uniform()
dense = functools.partial(nn.DenseGeneral, kernel_init=KERNEL_INIT, dot_general=dot_general)


def scale_initializer(init: Initializer, factor: float) -> Initializer:
    """Returns an initializer of `factor` times the numbers of `init`."""

    def scaled(*arguments: Any, **keywords: Any) -> jax.Array:
        return factor * init(*arguments, **keywords)

    return scaled
