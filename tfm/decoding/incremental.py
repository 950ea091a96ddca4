"""What a model has that emits tokens one at a time: the contract between models and decoding.

Shape letters as in `tfm.layers`; P positions of a prefix.
"""

from typing import Any, ClassVar, Protocol, Self

import jax


class Cache(Protocol):
    """The state between two positions: a pytree whose leaves all begin with the batch axis."""

    def reorder(self, parents: jax.Array) -> Self:
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""


class IncrementalModel(Protocol):
    """A Linen module that emits the tokens of W hypotheses for each row, one position at a time.

    `tfm.models.Transformer` is one, and `tfm.models.decoder_lm.DecoderLM`. The methods are called by
    `model.apply(..., method=NAME)`.

    Attributes:
      config: says `max_length`, how many positions there are, or None for no limit.
    """

    config: Any

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> Cache:
        """The cache of W = `width` hypotheses of `max_length` positions.

        Args:
          context: int [B, M], what they depend on, padded with 0: the source of a translation, which is
            encoded; of a language model the tokens that they continue, which may be none (M = 0).
          width: W.
          max_length: positions that `decode_step` will be called for.
        """

    def decode_step(self, tokens: jax.Array, cache: Any, position: jax.Array) -> tuple[jax.Array, Any]:
        """Logits of the next token of each hypothesis.

        Args:
          tokens: int [B, W], the last token of each.
          cache: that `init_cache` or this method gave.
          position: int scalar, how many steps were made before; equal for all.

        Returns:
          logits [B, W, V] and the cache, this position written.
        """


class LanguageModel(IncrementalModel, Protocol):
    """An `IncrementalModel` of texts without a source.

    It is made as `Model(config, vocabulary_size=V)` and called as `DecoderLM` is.
    """

    METHODS: ClassVar[tuple[str, ...]] = ("features", "init_cache", "prefill", "decode_step")

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """tokens [B, L] -> x [B, L, D] and a table [V, D]; the logits of each next token are x @ table.T."""

    def prefill(self, tokens: jax.Array, cache: Any) -> Any:
        """The cache with tokens [B, P], padded with 0 behind, that all hypotheses of a row follow."""
