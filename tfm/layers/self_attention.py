"""The contract of self-attention, and of modules that replace it. Shape letters as in `tfm.layers`."""

from typing import Protocol

from jax import Array


class SelfAttention(Protocol):
    """A module that mixes the features of positions, such as `MultiHeadAttention`.

    A layer passes all the arguments below. A module can accept the arguments that it does not use as **_.
    The positions are integers within a segment, [B, L] or [L]. They are None only if the caller of the layer
    has not given them. A decoder also needs `keys_values` and `attend_cached`, which together compute one
    position of what `__call__` computes.
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
        """Maps x [B, L, D], which attends to keys [B, M, D] under mask [B, 1 or H, L, M], to [B, L, D].

        In self-attention, keys are x itself.
        """

    def keys_values(self, keys: Array, positions: Array | None) -> tuple[Array, Array]:
        """Returns the arrays to cache for keys [B, M, D]: [B, M, H, K] and [B, M, H, V], with any H, K, V."""

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
        """Maps x [B, W, D] of W hypotheses, which attend to cached keys and values, to [B, W, D].

        key [B, H, K, M] and value [B, H, M, V] have the layout of a `KeyValueCache`. M may count the slots of
        a pool that all hypotheses share. Then mask [B, 1, W, M] selects the slots of each hypothesis.
        """
