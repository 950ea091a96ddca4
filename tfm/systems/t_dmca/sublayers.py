"""The sublayers of a decoder layer. Shape letters as in `tfm.systems.t_dmca`."""

import functools
from collections.abc import Callable

import flax.linen as nn
from jax import Array


class DecoderLayer(nn.Module):
    """The base of layers of self-attention and a feed-forward network, each in a residual connection.

    Attributes:
      self_attention: A `CompressibleAttention`, or a module that replaces it.
      feed_forward: A module that maps ([B, L, D], train=) to [B, L, D].
      residual: Function that returns a new residual connection.
    """

    self_attention: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], nn.Module]

    def setup(self) -> None:
        self.self_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def apply_sublayers(self, x: Array, attend: Callable[[Array], Array], *, train: bool) -> Array:
        """Applies both sublayers to x [B, L, D]. `attend` computes the self-attention, cached or not."""
        x = self.self_attention_residual(x, attend, train=train)
        feed_forward = functools.partial(self.feed_forward, train=train)
        return self.feed_forward_residual(x, feed_forward, train=train)
