"""The cache of a language model with a small state, such as a recurrent model.

Shape letters as in `tfm.layers`.
"""

from typing import Any, Self

import flax.struct
import jax

from tfm.search.state import gather_beams


class CarryCache(flax.struct.PyTreeNode):
    """The state of decoding between two positions.

    Attributes:
      carry: The states of the hypotheses, a tree of arrays [B, W, ...].
    """

    carry: Any

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        return self.replace(carry=gather_beams(self.carry, parents))
