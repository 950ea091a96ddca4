"""Dropout as a module."""

import flax.linen as nn
import jax

from tfm.dropout import dropout


class Dropout(nn.Module):
    """A module that applies `tfm.dropout.dropout` in training, with a key of the random stream "dropout".

    Attributes:
      rate: Probability that an element is set to zero.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Applies dropout to an array of any shape. Returns it unchanged if `train` is False."""
        if not train or self.rate == 0:
            return x
        return dropout(self.make_rng("dropout"), x, self.rate)
