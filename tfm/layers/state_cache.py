"""A cache of incremental decoding for models with a small state, such as recurrent models.

Reordering hypotheses moves their states. `tfm.layers.kv_cache` has a cache for keys and values instead.
Shape letters as in `tfm.layers`.
"""

from typing import Any, Self

import flax.struct
import jax

from tfm.search.state import gather_beams


class StateCache(flax.struct.PyTreeNode):
    """The state of decoding between two positions.

    Attributes:
      encoded: What the decoder reads of the source, a tree of arrays [B, ...]. All W hypotheses of a row
        share it.
      source_mask: bool [B, 1, 1, M], True where the source has a token.
      carry: The states of the hypotheses, a tree of arrays [B, W, ...].
      coverage: float32 [B, W, M], the attention of each hypothesis to each source position, summed over its
        steps.
    """

    encoded: Any
    source_mask: jax.Array
    carry: Any
    coverage: jax.Array

    def add_coverage(self, weights: jax.Array) -> Self:
        """Returns the cache with the attention weights [B, W, M] of one step added to `coverage`."""
        return self.replace(coverage=self.coverage + weights)

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        carry, coverage = gather_beams((self.carry, self.coverage), parents)
        return self.replace(carry=carry, coverage=coverage)
