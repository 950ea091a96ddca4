"""What decoding, scoring and alignment call of a model, and checks that a model has it."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from tfm.errors import UserError


@runtime_checkable
class DecodingCache(Protocol):
    """The state of decoding, a pytree whose leaves all begin with the axis B.

    A coverage penalty also needs `add_coverage`, and the attributes `coverage` float [B, W, M] and
    `memory_mask` bool [B, 1, 1, M]. An attribute `max_length` says how many positions there is space for.
    """

    def reorder(self, parents: jax.Array) -> "DecodingCache":
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""
        ...


@runtime_checkable
class SequenceToSequence(Protocol):
    """A Linen module that translates. `tfm.models.Transformer` is one.

    The methods run inside of `apply(..., method=name)`, but for the last two, which read what that collected.

    Attributes:
      config: a dataclass with `dtype`, and `max_length`: how many tokens of a side it has positions for, or
        None for any number.
    """

    config: Any

    def features(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Source [B, M] and shifted target [B, L] -> x [B, L, D] and a table [V, D]: logits x @ table.T.

        Packed rows come with input_positions, input_segments, target_positions and target_segments.
        """
        ...

    def encode(self, inputs: jax.Array) -> Any:
        """Source [B, M] -> what the decoder gets of it."""
        ...

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Encodes inputs [B, M]: the cache of W = `width` hypotheses of up to `max_length` positions."""
        ...

    def decode_step(
        self, tokens: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Last tokens [B, W] -> logits [B, W, V] of the next ones, and the cache."""
        ...

    def source_attention(self, collected: Mapping[str, Any]) -> jax.Array:
        """Attention to the source [layers, B, H, L, M] that `features` or `decode_step` collected.

        The collection "attention" of `apply(..., mutable=["attention"])`; L is W of `decode_step`.

        Raises:
          UserError: the model has none.
        """
        ...

    def attention_maps(self, collected: Mapping[str, Any]) -> dict[str, jax.Array]:
        """All attention to draw, {"encoder", "decoder", "cross": [layers, B, H, L, M]}, or some of these."""
        ...


def check_translates(model: Any) -> None:
    """Checks that a model fulfils `SequenceToSequence`.

    Raises:
      UserError: a method is missing, in one message.
    """
    if isinstance(model, SequenceToSequence):
        return
    name = getattr(model.config, "name", type(model).__name__)
    if not hasattr(model, "encode"):
        raise UserError(f"The model {name!r} does not translate: it has no encoder (no method `encode`).")
    needed = ("features", "init_cache", "decode_step", "source_attention", "attention_maps")
    missing = [method for method in needed if not hasattr(model, method)]
    raise UserError(
        f"The model {name!r} does not translate: it has no method {' and no '.join(missing)}; see "
        "tfm.decoding.protocol.SequenceToSequence."
    )


@runtime_checkable
class LanguageModel(Protocol):
    """A Linen module that continues texts. `tfm.models.decoder_lm.DecoderLM` is one.

    It is made as `Model(config, vocabulary_size=V)`; the methods run inside of `apply(..., method=name)`.

    Attributes:
      config: a dataclass with `dtype`, and `max_length`: how many tokens it has positions for, or None for
        any number.
    """

    config: Any

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens [B, L] -> x [B, L, D] and a table [V, D]: logits of each next token x @ table.T."""
        ...

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """The cache of W = `width` hypotheses of up to `max_length` positions behind tokens [B, P].

        Rows of the context are padded with 0 behind; P may be 0. It is read once for all W, as by `prefill`.
        """
        ...

    def prefill(self, tokens: jax.Array, cache: Any) -> DecodingCache:
        """The cache with tokens [B, P], padded with 0 behind, before the first position of the hypotheses."""
        ...

    def decode_step(
        self, tokens: jax.Array, cache: Any, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Last tokens [B, W] -> logits [B, W, V] of the next ones, and the cache.

        The position is counted from 0 behind what the cache was filled with, and equal for all.
        """
        ...


def check_continues(model: Any) -> None:
    """Checks that a model fulfils `LanguageModel`.

    Raises:
      UserError: a method is missing, in one message.
    """
    if isinstance(model, LanguageModel):
        return
    name = getattr(model.config, "name", type(model).__name__)
    missing = [
        method
        for method in ("prefill", "features", "init_cache", "decode_step")
        if not hasattr(model, method)
    ]
    raise UserError(
        f"The model {name!r} is no language model: it has no method {' and no '.join(missing)}; choose "
        "decoder_lm, or see tfm.decoding.protocol.LanguageModel."
    )
