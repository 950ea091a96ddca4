"""The dense projections of all layers: Glorot-uniform kernels by default, and `tfm.layers.matmul`."""

import functools

import flax.linen as nn
from jax.nn.initializers import Initializer

from tfm.layers.matmul import dot_general

KERNEL_INIT: Initializer = nn.initializers.glorot_uniform()
dense = functools.partial(nn.DenseGeneral, kernel_init=KERNEL_INIT, dot_general=dot_general)
