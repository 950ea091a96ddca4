"""One layer of the encoder or the decoder (section 3.1). Shape letters as in `tfm.layers`."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from tfm.layers.attention import MultiHeadAttention
from tfm.layers.feed_forward import FeedForward
from tfm.layers.kv_cache import KeyValueCache
from tfm.layers.neighbours import Gather, append_prefix, append_step, gather_by_mask
from tfm.layers.observe import activate
from tfm.layers.residual import Residual
from tfm.masks import AttentionMask, mask_to_array


class Layer(nn.Module):
    """A layer of self-attention, optional attention to an encoder output, and a feed-forward network.

    A residual connection surrounds each of these sublayers. Encoder and decoder use the same class. A decoder
    calls the layer with a causal mask.

    Attributes:
      self_attention: A `MultiHeadAttention`, or a module that replaces it.
      feed_forward: A module that maps ([B, L, D], train=) to [B, L, D], such as `FeedForward`. A
        `FeedForward` with a kernel wider than 1 needs an `AttentionMask` or None as the mask.
      cross_attention: Attention to the encoder output. None for an encoder, and for a decoder without an
        encoder.
      residual: Function that returns a new residual connection. It is called once for each sublayer.
    """

    self_attention: nn.Module
    feed_forward: nn.Module
    cross_attention: Any = None  # a module or None
    residual: Callable[[], nn.Module] = Residual

    def setup(self) -> None:
        self.self_attention_residual = self.residual()
        if self.cross_attention is not None:
            self.cross_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: Array,
        encoder_output: Array | None = None,
        *,
        mask: AttentionMask | Array | None,
        source_mask: AttentionMask | Array | None = None,
        positions: Array | None = None,
        source_positions: Array | None = None,
        position_vectors: Array | None = None,
        source_vectors: Array | None = None,
        train: bool,
    ) -> Array:
        """Applies the sublayers one after the other.

        Args:
          x: Input of the layer, [B, L, D].
          encoder_output: [B, M, D], the keys and values of `cross_attention`. Ignored without
            `cross_attention`.
          mask: bool, broadcasts to [B, H, L, L]. True where a position may attend to another. None lets every
            position attend to all. Modules other than `MultiHeadAttention` get booleans in any case.
          source_mask: bool, broadcasts to [B, H, L, M]. True where a position may attend to the source.
          positions: Positions of x, int [B, L] or [L]. None means 0, 1, 2, ...
          source_positions: Positions of the encoder output, int [B, M] or [M]. None means 0, 1, 2, ...
          position_vectors: Vectors [B, L, D] that are added to x for queries and keys, but not for values,
            as in DETR. None adds nothing.
          source_vectors: The same for the keys of the encoder output, [B, M, D].
          train: Whether dropout is on.

        Returns:
          [B, L, D].
        """

        def attend(x):
            where = {"mask": _mask_for(self.self_attention, mask, x, x)}
            where |= {"positions": positions, "key_positions": positions}
            y, values = _add_vectors(x, position_vectors)
            return self.self_attention(y, y, **values, **where, train=train)

        def attend_to_source(x):
            where = {"mask": _mask_for(self.cross_attention, source_mask, x, encoder_output)}
            where |= {"positions": positions, "key_positions": source_positions}
            x, _ = _add_vectors(x, position_vectors)
            keys, values = _add_vectors(encoder_output, source_vectors)
            return self.cross_attention(x, keys, **values, **where, train=train)

        kernel = _kernel_of(self.feed_forward)
        gather = None if kernel == 1 else gather_by_mask(mask, x.shape, kernel)
        return self._apply_sublayers(x, attend, attend_to_source, gather, train)

    def _apply_sublayers(
        self,
        x: Array,
        attend: Callable[[Array], Array],
        attend_to_source: Callable[[Array], Array],
        gather: Gather | None,
        train: bool,
    ) -> Array:
        """Applies all sublayers to x [B, L, D].

        The first two functions compute the attentions, cached or not. `gather` collects the neighbours that
        the feed-forward network sees. It is None for kernel 1.
        """
        x = self.self_attention_residual(x, attend, train=train)
        if self.cross_attention is not None:
            x = self.cross_attention_residual(x, attend_to_source, train=train)
        neighbours = {} if gather is None else {"gather": gather}
        feed_forward = functools.partial(self.feed_forward, **neighbours, train=train)
        return self.feed_forward_residual(x, feed_forward, train=train)

    def init_cache(
        self, example: Array, encoder_output: Any = None, *, width: int, max_length: int
    ) -> KeyValueCache:
        """Returns an empty cache for W = `width` hypotheses of at most T = `max_length` positions.

        Args:
          example: One position, [B, 1, D]. Only its shape and dtype matter.
          encoder_output: [B, M, D]. The cache contains its keys and values once for all hypotheses of a row.
            None without `cross_attention`.
          width: Number of hypotheses of a row, W.
          max_length: Number of positions for which the cache has space, T.
        """
        with activate(None):  # The keys of an example are not an activation of the model.
            key, value = self.self_attention.keys_values(example, jnp.arange(1))
        source = None
        if self.cross_attention is not None:
            positions = jnp.arange(encoder_output.shape[1])
            source = self.cross_attention.keys_values(encoder_output, positions)
        cache = KeyValueCache.empty(key, value, slots=width * max_length, source=source)
        kernel = _kernel_of(self.feed_forward)
        if kernel == 1:
            return cache
        shape, dtype = (len(example), width, kernel - 1), self.feed_forward.dtype
        sizes = example.shape[-1], self.feed_forward.hidden
        return cache.replace(windows=tuple(jnp.zeros((*shape, size), dtype) for size in sizes))

    def prefill(self, x: Array, cache: KeyValueCache, **where: Any) -> tuple[Array, KeyValueCache]:
        """Computes P' more positions of the prefix that all hypotheses of a row share.

        Args:
          x: Input of the layer, [B, P', D].
          cache: A cache with a prefix of P positions. No hypothesis may have written to it.
          **where: mask [B, 1, P', P + P'], positions [B, P'] and key_positions [B, P + P'].

        Returns:
          The output [B, P', D], and the cache with a prefix of P + P' positions.
        """

        def append(window, x):
            is_token = where["key_positions"] >= 0
            lengths = is_token[:, is_token.shape[1] - x.shape[1] :].sum(-1)
            return append_prefix(window, x, lengths)

        return self._decode(x, cache, KeyValueCache.append_prefix, append, **where)

    def decode_step(
        self, x: Array, cache: KeyValueCache, position: Array, **where: Any
    ) -> tuple[Array, KeyValueCache]:
        """Computes the next position of each of W hypotheses.

        Args:
          x: Input of the layer, [B, W, D]. The axis W takes the place of L in `__call__`.
          cache: A cache with a prefix of P positions. P may be 0.
          position: Position after the prefix, an int32 scalar counted from 0.
          **where: mask [B, 1, W, P + T * W], positions [B, W] or [W], key_positions [B, P + T * W] or
            [T * W], and source_mask [B, 1, 1, M] for `cross_attention`.

        Returns:
          The output [B, W, D], and the cache with the keys and values of this position.
        """
        write = functools.partial(KeyValueCache.write, position=position)
        return self._decode(x, cache, write, append_step, **where)

    def _decode(self, x, cache, write, append, *, mask, positions, key_positions, source_mask=None):
        """Writes the keys and values of x [B, L, D] to the cache and computes the layer.

        `write` maps (cache, key, value) to the new cache. Self-attention sees as many of the first slots as
        the last axis of `mask` has. `append` maps one of the cache's `windows` and an array [B, L, C] to the
        neighbours that its positions see, and the next window. Returns the output [B, L, D] and the cache.
        """
        caches = [cache]
        windows: list[Array] = []

        def attend(x):
            caches.append(write(cache, *self.self_attention.keys_values(x, positions)))
            key, value = caches[-1].first_slots(mask.shape[-1])
            where = {"mask": mask, "positions": positions, "key_positions": key_positions}
            return self.self_attention.attend_cached(x, key, value, **where)

        def attend_to_source(x):
            key, value = cache.source
            where = {"mask": source_mask, "positions": positions, "key_positions": jnp.arange(key.shape[-1])}
            return self.cross_attention.attend_cached(x, key, value, **where)

        def gather(x):
            neighbours, window = append(cache.windows[len(windows)], x)
            windows.append(window)
            return neighbours

        has_windows = cache.windows is not None
        x = self._apply_sublayers(x, attend, attend_to_source, gather if has_windows else None, train=False)
        return x, caches[-1].replace(windows=tuple(windows) if has_windows else None)


def _kernel_of(feed_forward: nn.Module) -> int:
    """Returns the width of the convolutions of a feed-forward network, R. It is 1 for other modules."""
    return feed_forward.kernel if isinstance(feed_forward, FeedForward) else 1


def _add_vectors(x: Any, vectors: Array | None) -> tuple[Any, dict[str, Any]]:
    """Returns the keys for `x` [B, L, D], and the keyword for values that are not equal to the keys."""
    return (x, {}) if vectors is None else (x + vectors, {"values": x})


def _mask_for(attention: nn.Module, mask: Any, x: Any, keys: Any) -> Any:
    """Returns a mask in a form that the attention of x [B, L, D] to keys [B, M, D] accepts."""
    accepts_form = isinstance(attention, MultiHeadAttention)
    return mask if accepts_form else mask_to_array(mask, x.shape[1], keys.shape[1])
