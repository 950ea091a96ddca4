"""Dropout as a module."""

import flax.linen as nn
import jax

from tfm.dropout import dropout


class Dropout(nn.Module):
    """`tfm.dropout.dropout` with a key of the random stream "dropout"; [...] -> [...], in training only."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        if not train or self.rate == 0:
            return x
        return dropout(self.make_rng("dropout"), x, self.rate)
