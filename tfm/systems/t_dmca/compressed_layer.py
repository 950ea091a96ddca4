"""A layer with memory-compressed attention, and its cache. Shape letters as in `tfm.systems.t_dmca.model`."""

import functools
from typing import Any, ClassVar, Self

import flax.struct
import jax.numpy as jnp
from jax import Array

from tfm import layers
from tfm.layers.kv_cache import KeyValue
from tfm.layers.observe import activate
from tfm.search.state import gather_beams
from tfm.systems.t_dmca.slots import (
    DecoderLayer,
    attend_to_hypotheses,
    find_tokens,
    lengthen,
    take,
    write,
    write_step,
)


class CompressibleAttention(layers.MultiHeadAttention):
    """Multi-head attention whose keys and values a convolution can compress.

    Attributes:
      stride: Kernel and stride of the convolution, R. None means no convolution.
    """

    stride: int | None = None
    parameter_axes: ClassVar[dict[str, Any]] = {
        **layers.MultiHeadAttention.parameter_axes,
        **{f"compress_{name}/kernel": (None, None, None, "heads", "features") for name in ("key", "value")},
        **{f"compress_{name}/bias": ("heads", "features") for name in ("key", "value")},
    }

    def setup(self) -> None:
        super().setup()
        if self.stride is None:
            return
        groups = self.key_value_heads or self.heads
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or self.features // self.heads
        convolve = functools.partial(
            self.make_dense, axis=(-3, -2, -1), dtype=self.dtype, kernel_init=self.kernel_init
        )
        self.compress_key = convolve((groups, key_features))
        self.compress_value = convolve((groups, value_features))

    def compress(self, key: Array, value: Array) -> KeyValue:
        """Compresses windows of keys [..., R, G, K] and values [..., R, G, V] by the factor R."""
        return self.compress_key(key), self.compress_value(value)


class CompressedCache(flax.struct.PyTreeNode):
    """The compressed keys and values of a prefix and of the hypotheses that continue it.

    Attributes:
      prefix: Keys [B, C, G, K] and values [B, C, G, V] of the prefix. All hypotheses share them.
      own: Keys [B, W, C', G, K] and values [B, W, C', G, V] that the hypotheses have completed.
      last: The last R - 1 keys [B, W, R - 1, G, K] and values [B, W, R - 1, G, V] before the compression.
    """

    prefix: KeyValue
    own: KeyValue
    last: KeyValue

    def reorder(self, parents: Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        own, last = gather_beams((self.own, self.last), parents)
        return self.replace(own=own, last=last)


class CompressedLayer(DecoderLayer):
    """A layer whose self-attention sees all earlier positions through compressed keys and values.

    A query sees a compressed key after the last of its R positions, so that nothing leaks from the future.
    The first positions of a text see nothing, and their attention is 0. The windows of R positions begin with
    each text, so that other texts of a row do not matter.

    Attributes:
      stride: Kernel and stride of the convolution, R.
    """

    stride: int = 3

    def __call__(self, x: Array, *, segments: Array, positions: Array, train: bool) -> Array:
        """Applies the layer to x [B, L, D] with segments and positions int [B, L]. Returns [B, L, D]."""
        ends, is_end = find_ends(segments, positions, self.stride)
        is_visible = take(segments, ends)[:, None] == segments[:, :, None]
        is_visible &= is_end[:, None] & (ends[:, None] <= jnp.arange(x.shape[1])[:, None])
        window = jnp.maximum(ends[..., None] + jnp.arange(1 - self.stride, 1), 0)

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            compressed = self.self_attention.compress(*(take(each, window) for each in keys))
            where = {"positions": positions, "key_positions": take(positions, ends)}
            return self.self_attention.attend(x, *compressed, mask=is_visible[:, None], **where, train=train)

        return self.apply_sublayers(x, attend, train=train)

    def init_cache(
        self, example: Array, encoder_output: None = None, *, width: int, max_length: int
    ) -> CompressedCache:
        """Returns an empty cache, see `Layer.init_cache`."""
        with activate(None):
            keys = self.self_attention.keys_values(example, jnp.arange(1))

        def zeros(*sizes: int) -> Any:
            return tuple(jnp.zeros((len(x), *sizes, *x.shape[2:]), x.dtype) for x in keys)

        slots = -(-max_length // self.stride)
        return CompressedCache(zeros(0), zeros(width, slots), zeros(width, self.stride - 1))

    def prefill(
        self, x: Array, cache: CompressedCache, *, mask: Array, positions: Array, key_positions: Array
    ) -> tuple[Array, CompressedCache]:
        """Computes more positions of the prefix, see `LocalLayer.prefill` for the arguments.

        Ignores `mask`. A position sees the compressed keys of the windows that are complete.
        """
        stride, slots = self.stride, max(key_positions.shape[1] // self.stride, 1)
        is_token, _ = find_tokens(x, key_positions)
        # Padding follows the tokens, so tokens of this piece follow the last R - 1 keys of the cache.
        ends, is_end = find_ends(is_token.astype(jnp.int32), positions, stride, is_begun=True)
        slot = jnp.where(is_end, take(positions, ends) // stride, slots)  # beyond the slots for no window
        at = jnp.arange(slots) * stride + stride - 1
        is_visible = at <= positions[..., None]
        newest = is_token.sum(-1)[:, None] + jnp.arange(stride - 1)
        written: list[Any] = []

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            joined = [
                jnp.concatenate([last[:, 0], new], axis=1) for last, new in zip(cache.last, keys, strict=True)
            ]
            window = ends[..., None] + jnp.arange(stride)
            compressed = self.self_attention.compress(*(take(each, window) for each in joined))
            prefix = tuple(
                write(lengthen(old, slots), slot, new)
                for old, new in zip(cache.prefix, compressed, strict=True)
            )
            last = tuple(
                jnp.broadcast_to(take(each, newest)[:, None], old.shape)
                for old, each in zip(cache.last, joined, strict=True)
            )
            written.append(cache.replace(prefix=prefix, last=last))
            where = {"positions": positions, "key_positions": at}
            return self.self_attention.attend(x, *prefix, mask=is_visible[:, None], **where, train=False)

        x = self.apply_sublayers(x, attend, train=False)
        return x, written[0]

    def decode_step(
        self,
        x: Array,
        cache: CompressedCache,
        position: Array,
        *,
        mask: Array,
        positions: Array,
        key_positions: Array,
    ) -> tuple[Array, CompressedCache]:
        """Computes the next position of each of W hypotheses, see `Layer.decode_step`.

        The slot of a window is written at each of its positions and seen after the last of them.
        """
        stride = self.stride
        positions = jnp.broadcast_to(positions, x.shape[:2])
        begin = positions - position  # the number of tokens of the prefix
        slot = positions // stride - begin // stride
        last_of_own = (begin // stride)[..., None] + jnp.arange(cache.own[0].shape[2])
        last_of_own = last_of_own * stride + stride - 1
        last_of_prefix = jnp.arange(cache.prefix[0].shape[1]) * stride + stride - 1
        written: list[Any] = []

        def attend(x):
            keys = self.self_attention.keys_values(x, positions)
            windows = [
                jnp.concatenate([last, new[:, :, None]], axis=2)
                for last, new in zip(cache.last, keys, strict=True)
            ]
            compressed = self.self_attention.compress(*windows)
            own = tuple(write_step(old, slot, new) for old, new in zip(cache.own, compressed, strict=True))
            written.append(cache.replace(own=own, last=tuple(window[:, :, 1:] for window in windows)))
            return attend_to_hypotheses(
                self.self_attention,
                x,
                own,
                last_of_own <= positions[..., None],
                last_of_own,
                positions,
                prefix=(cache.prefix, last_of_prefix < begin[..., None], last_of_prefix),
            )

        x = self.apply_sublayers(x, attend, train=False)
        return x, written[0]


def find_ends(
    segments: Array, positions: Array, stride: int, *, is_begun: bool = False
) -> tuple[Array, Array]:
    """Finds the last positions of the whole windows of texts.

    Args:
      segments: Number of the text of each position, int [B, L]. 0 is padding.
      positions: Positions in their texts, int [B, L].
      stride: Number of positions of a window, R.
      is_begun: Whether the first window may have begun before the row.

    Returns:
      Indices of the ends in ascending order, int [B, C], and whether each of them is an end, bool [B, C].

    Examples:
      >>> ends, is_end = find_ends(jnp.ones((1, 7), int), jnp.array([[0, 1, 2, 0, 1, 2, 3]]), 3)
      >>> ends[is_end].tolist()
      [2, 5]
    """
    length = segments.shape[1]
    begins = jnp.pad(segments, ((0, 0), (stride - 1, 0)))[:, :length]  # the segment of the first position
    is_end = (positions % stride == stride - 1) & (segments > 0) & ((begins == segments) | is_begun)
    ends = jnp.argsort(~is_end, axis=1, stable=True)[:, : -(-length // stride)]
    return ends, take(is_end, ends)
