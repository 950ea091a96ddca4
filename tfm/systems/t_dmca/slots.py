"""Slots of caches, and the positions that fill them. Shape letters as in `tfm.systems.t_dmca.model`."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


def find_tokens(x: Array, key_positions: Array) -> tuple[Array, Array]:
    """Returns which positions of x [B, P', D] are tokens, bool [B, P'], and the number of tokens before them.

    Args:
      x: The last P' positions of a prefix.
      key_positions: Positions of the whole prefix, int [B, P + P']. Padding has -1.
    """
    is_token = key_positions >= 0
    new = x.shape[1]
    return is_token[:, -new:], is_token[:, :-new].sum(-1)


def take(x: Array, index: Array) -> Array:
    """Returns x[b, index[b, ...]] for x [B, L, ...] and index [B, ...]."""
    return jax.vmap(lambda row, index: row[index])(x, index)


def write(x: Array, slot: Array, new: Array) -> Array:
    """Writes new [B, N, ...] to the slots [B, N] of x [B, S, ...]. Drops what has a slot beyond S."""
    return x.at[jnp.arange(len(x))[:, None], slot].set(new, mode="drop")


def write_step(x: Array, slot: Array, new: Array) -> Array:
    """Writes new [B, W, ...] to a slot [B, W] of each hypothesis in x [B, W, S, ...]."""
    batch, width = slot.shape
    return x.at[jnp.arange(batch)[:, None], jnp.arange(width), slot].set(new, mode="drop")


def lengthen(x: Array, length: int) -> Array:
    """Appends zeros to the second axis of x up to a length."""
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1]), *[(0, 0)] * (x.ndim - 2)))


def attend_to_hypotheses(
    attention: nn.Module,
    x: Array,
    own: Any,
    is_visible: Array,
    at: Array,
    positions: Array,
    prefix: Any = None,
) -> Array:
    """Computes the attention of W hypotheses to their own keys and to the keys of a prefix that they share.

    Args:
      attention: A `CompressibleAttention`.
      x: [B, W, D].
      own: Keys [B, W, S, G, K] and values [B, W, S, G, V].
      is_visible: Whether the hypothesis sees each of its S slots, bool [B, W, S].
      at: Positions of these slots, int [B, W, S].
      positions: Positions of the hypotheses, int [B, W].
      prefix: The same for slots without the axis W: ((keys, values), visible [B, W, C], positions [C]), or
        None.

    Returns:
      [B, W, D].
    """
    batch, width, slots = is_visible.shape
    is_own = jnp.eye(width, dtype=bool)[:, :, None]  # [W, W, 1]
    mask = (is_own & is_visible[:, :, None]).reshape(batch, width, width * slots)
    key_positions = at.reshape(batch, width * slots)
    keys = tuple(x.reshape(batch, width * slots, *x.shape[3:]) for x in own)
    if prefix is not None:
        shared, sees_prefix, prefix_positions = prefix
        mask = jnp.concatenate([sees_prefix, mask], axis=-1)
        prefix_positions = jnp.broadcast_to(prefix_positions, (batch, len(prefix_positions)))
        key_positions = jnp.concatenate([prefix_positions, key_positions], axis=-1)
        keys = tuple(jnp.concatenate(pair, axis=1) for pair in zip(shared, keys, strict=True))
    where = {"positions": positions, "key_positions": key_positions}
    return attention.attend(x, *keys, mask=mask[:, None], **where, train=False)


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
