"""The dense projection that all layers use.

Its kernels are initialized Glorot-uniform by default, and `tfm.devices.matmul` computes its products.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
from jax.nn.initializers import Initializer

from tfm.devices.matmul import dot_general

KERNEL_INIT: Initializer = nn.initializers.glorot_uniform()
dense = functools.partial(nn.DenseGeneral, kernel_init=KERNEL_INIT, dot_general=dot_general)


def scale_initializer(init: Initializer, factor: float) -> Initializer:
    """Returns an initializer that multiplies the values of another initializer by a factor."""

    def scaled(*arguments: Any, **keywords: Any) -> jax.Array:
        return factor * init(*arguments, **keywords)

    return scaled


def convolution_initializer(init: Initializer, kernel: int) -> Initializer:
    """Returns an initializer of the matrix [R * C, F] of a convolution that sees its shape as [R, C, F].

    An initializer such as Glorot's counts the R = `kernel` positions among the inputs and among the outputs.
    """

    def initialize(key: jax.Array, shape: Any, *arguments: Any, **keywords: Any) -> jax.Array:
        rows, features = shape
        return init(key, (kernel, rows // kernel, features), *arguments, **keywords).reshape(shape)

    return initialize
