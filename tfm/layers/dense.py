"""The affine maps of all layers: Glorot-uniform kernels, and products that suit few rows as well as many."""

import functools

import flax.linen as nn

from tfm.layers.matmul import dot_general

dense = functools.partial(
    nn.DenseGeneral, kernel_init=nn.initializers.glorot_uniform(), dot_general=dot_general
)
