"""The dense projections of all layers: Glorot-uniform kernels and `tfm.layers.matmul.dot_general`."""

import functools

import flax.linen as nn

from tfm.layers.matmul import dot_general

dense = functools.partial(
    nn.DenseGeneral, kernel_init=nn.initializers.glorot_uniform(), dot_general=dot_general
)
