"""The explicit key-value cache of incremental decoding: a pytree that goes in and comes out of every step.

All W hypotheses of a batch row share one pool of cached positions. Slot (t, w) of the pool holds what the
hypothesis that was number w at step t computed then. When beams reorder, no features move: each hypothesis
keeps, for every step, the slot its own ancestor wrote, and a mask selects these slots of the pool.

Shape letters as in `tfm.layers`: B batch, H heads, K and V features, M source length, W hypotheses,
T cached positions.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from tfm.masks import causal_mask
from tfm.search.state import gather_beams


@flax.struct.dataclass
class LayerCache:
    """Keys and values of one decoder layer, in the memory layout that the products of attention read.

    Attributes:
      key, value: the pool, [B, H, K, T * W] and [B, H, T * W, V].
      memory_key, memory_value: of the encoder output, [B, H, K, M] and [B, H, M, V]; once for all W.
    """

    key: jax.Array
    value: jax.Array
    memory_key: jax.Array
    memory_value: jax.Array

    @classmethod
    def empty(
        cls,
        own: tuple[jax.Array, jax.Array],
        memory: tuple[jax.Array, jax.Array],
        width: int,
        max_length: int,
    ) -> "LayerCache":
        """A pool of T = `max_length` positions of W = `width` hypotheses.

        Args:
          own: key [B, 1, H, K] and value [B, 1, H, V] of one position, for shape and dtype alone.
          memory: key and value [B, M, ...] of the encoder output, perhaps of other heads and features.
        """
        key, value = own
        batch, _, heads, features = key.shape
        slots = max_length * width
        return cls(
            key=jnp.zeros((batch, heads, features, slots), key.dtype),
            value=jnp.zeros((batch, value.shape[2], slots, value.shape[-1]), value.dtype),
            memory_key=memory[0].transpose(0, 2, 3, 1),
            memory_value=memory[1].swapaxes(1, 2),
        )

    def positions(self, width: int) -> jax.Array:
        """int32 [T * W], the position that each slot of the pool holds."""
        return jnp.arange(self.key.shape[-1]) // width

    @property
    def memory_positions(self) -> jax.Array:
        """int32 [M]."""
        return jnp.arange(self.memory_key.shape[-1])

    def write(self, position: jax.Array, key: jax.Array, value: jax.Array) -> "LayerCache":
        """The cache with slots `position` set to key [B, W, H, K] and value [B, W, H, V]."""
        start = position * key.shape[1]
        put = jax.lax.dynamic_update_slice_in_dim
        return self.replace(
            key=put(self.key, key.transpose(0, 2, 3, 1), start, axis=3),
            value=put(self.value, value.swapaxes(1, 2), start, axis=2),
        )


@flax.struct.dataclass
class DecodeCache:
    """The state of decoding between two positions.

    Attributes:
      layers: a `LayerCache` for each decoder layer.
      memory_mask: bool [B, 1, 1, M], which source positions are tokens.
      ancestors: int32 [B, W, T]; hypothesis w has its position t in pool slot (t, ancestors[b, w, t]).
      coverage: float32 [B, W, M], attention of each hypothesis to each source position so far, summed.
    """

    layers: list[LayerCache]
    memory_mask: jax.Array
    ancestors: jax.Array
    coverage: jax.Array

    @property
    def max_length(self) -> int:
        """T, the number of positions."""
        return self.ancestors.shape[-1]

    def begin(self, position: jax.Array | int) -> "DecodeCache":
        """The cache for `position`, where each hypothesis writes its own slot.

        Raises:
          ValueError: the position is known at trace time and is T or more.
        """
        if isinstance(position, int | np.integer) and position >= self.max_length:
            raise ValueError(
                f"position must be below the cache's max_length {self.max_length}, got {position}"
            )
        own = jnp.arange(self.ancestors.shape[1])
        return self.replace(ancestors=self.ancestors.at[:, :, position].set(own))

    def ancestor_mask(self, position: jax.Array) -> jax.Array:
        """bool [B, 1, W, T * W]: which pool slots hold a hypothesis' own history, up to `position`."""
        batch, width, length = self.ancestors.shape
        is_ancestor = self.ancestors[..., None] == jnp.arange(width)  # [B, W, T, W]
        past = causal_mask(jnp.asarray(position)[None], jnp.arange(length))[0, 0]  # [T]
        return (is_ancestor & past[:, None]).reshape(batch, 1, width, length * width)

    def add_coverage(self, weights: jax.Array) -> "DecodeCache":
        """The cache with attention weights [B, W, M] of one more position added to `coverage`."""
        return self.replace(coverage=self.coverage + weights)

    def reorder(self, parents: jax.Array) -> "DecodeCache":
        """The cache of hypotheses that continue `parents`, int32 [B, W]: copies W * (T + M) numbers a row."""
        ancestors, coverage = gather_beams((self.ancestors, self.coverage), parents)
        return self.replace(ancestors=ancestors, coverage=coverage)
