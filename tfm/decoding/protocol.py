"""What decoding, scoring and alignment call of a model, and checks that a model has it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from tfm.errors import UserError
from tfm.layers.observe import read_attention


@runtime_checkable
class DecodingCache(Protocol):
    """The state of decoding, a pytree whose leaves all begin with the axis B.

    A coverage penalty also needs `add_coverage`, and the attributes `coverage` float [B, W, M] and
    `source_mask` bool [B, 1, 1, M]. An attribute `max_length` says how many positions there is space for.
    """

    def reorder(self, parents: jax.Array) -> "DecodingCache":
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""
        ...


@runtime_checkable
class SequenceToSequence(Protocol):
    """A Linen module that translates. `tfm.models.Transformer` is one.

    The methods run inside of `apply(..., method=name)`.

    Attributes:
      config: a dataclass with `dtype`, and `max_length`: how many tokens of a side it has positions for, or
        None for any number.
      attention_points: {kind of attention: name of its weights}, see docs/interpret.md. The kinds are
        "encoder", "decoder" and "cross", or some of them. A name has a * in place of the number of a layer.
    """

    config: Any
    attention_points: Mapping[str, str]

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
    needed = ("features", "init_cache", "decode_step", "attention_points")
    missing = [attribute for attribute in needed if not hasattr(model, attribute)]
    raise UserError(
        f"The model {name!r} does not translate: it has no {' and no '.join(missing)}; see "
        "tfm.decoding.protocol.SequenceToSequence."
    )


def read_cross_attention(model: Any, compute: Callable[[], Any]) -> tuple[Any, jax.Array]:
    """Calls a function that applies a model, and reads the model's attention to the source.

    Args:
      model: A `SequenceToSequence`.
      compute: Applies the model.

    Returns:
      What `compute` returns, and the weights [layers, B, H, L, M]. L is W in a decoding step.

    Raises:
      UserError: The model has no attention to the source.
    """
    if "cross" not in model.attention_points:
        raise UserError(
            f"Alignments and the coverage penalty need a model that attends to the source, but the model "
            f"{model.config.name!r} has no 'cross' in its attention_points. Choose another model. A "
            "recurrent model attends to the source unless model.attention is 'none'."
        )
    return read_attention(model.attention_points["cross"], compute)


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
