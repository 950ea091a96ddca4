"""The protocol of self-attention, for modules that replace `MultiHeadAttention`.

Shape letters as in `tfm.layers`.
"""

from typing import Protocol

from jax import Array


class SelfAttention(Protocol):
    """A module that lets positions of a sequence exchange information, such as `MultiHeadAttention`.

    A layer passes all the arguments below. A module can accept the arguments that it does not use as **_.
    Positions are int [B, L] or [L], counted from 0 in each segment. They are None only if the caller of the
    layer has passed none. Only a decoder needs `keys_values` and `attend_cached`. Called for one position
    after the other, the two methods must compute the same outputs as one `__call__` for all positions.
    """

    def __call__(
        self,
        x: Array,
        keys: Array,
        *,
        mask: Array | None,
        positions: Array | None,
        key_positions: Array | None,
        train: bool,
    ) -> Array:
        """Computes the output of each position of `x`, [B, L, D].

        Args:
          x: Input of the queries, [B, L, D].
          keys: Input of the keys and values, [B, M, D]. In self-attention this is `x`.
          mask: bool [B, 1 or H, L, M], True where a query may attend. None if it may attend everywhere.
          positions: Positions of the queries.
          key_positions: Positions of the keys.
          train: Whether dropout is on.
        """

    def keys_values(self, keys: Array, positions: Array | None) -> tuple[Array, Array]:
        """Returns the two arrays that decoding caches for the input of the keys, [B, M, D].

        Their shapes are [B, M, H, K] and [B, M, H, V]. The module may choose H, K and V freely.
        """

    def attend_cached(
        self,
        x: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | None,
        positions: Array | None,
        key_positions: Array | None,
    ) -> Array:
        """Computes the output of one position of W hypotheses, [B, W, D], from cached keys and values.

        Args:
          x: Input of the queries, [B, W, D].
          key, value: [B, H, K, M] and [B, H, M, V], in the layout of a `KeyValueCache`. M may be the number
            of slots in a pool that all hypotheses of a row share.
          mask: bool [B, 1, W, M], True for the slots of each hypothesis.
          positions: Positions of the hypotheses.
          key_positions: Positions of the slots.
        """
