"""The methods of a model that decoding, scoring and alignment call, and checks that a model has them."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from tfm.errors import UserError
from tfm.layers.observe import read_attention


@runtime_checkable
class DecodingCache(Protocol):
    """The state of decoding, a pytree whose leaves all begin with the axis B.

    A coverage penalty also needs the method `add_coverage`, and the attributes `coverage` float [B, W, M] and
    `source_mask` bool [B, 1, 1, M]. An attribute `max_length` gives the number of positions in the cache.
    """

    def reorder(self, parents: jax.Array) -> "DecodingCache":
        """Returns the cache of hypotheses that continue `parents`, int32 [B, W]."""
        ...


@runtime_checkable
class SequenceToSequence(Protocol):
    """A Linen module that translates, such as `tfm.models.Transformer`.

    The methods run inside `apply(..., method=name)`.

    Attributes:
      config: A dataclass with `dtype`, and with `max_length`, the number of positions on each side, or None
        if it is not limited.
      attention_points: {kind of attention: name of its weights}, see docs/interpret.md. The kinds are
        "encoder", "decoder" and "cross", or some of them. A name has a * in place of the number of a layer.
    """

    config: Any
    attention_points: Mapping[str, str]

    def features(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns x [B, L, D] and a table [V, D], whose product x @ table.T is the logits.

        Takes the source [B, M] and the shifted target [B, L]. Packed rows also have input_positions,
        input_segments, target_positions and target_segments.
        """
        ...

    def encode(self, inputs: jax.Array) -> Any:
        """Returns the encoder output for the source [B, M]."""
        ...

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Encodes inputs [B, M]. Returns the cache of W = `width` hypotheses of `max_length` positions."""
        ...

    def decode_step(
        self, tokens: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Returns the logits [B, W, V] that follow the last tokens [B, W], and the cache."""
        ...


def check_translates(model: Any) -> None:
    """Checks that a model fulfils `SequenceToSequence`.

    Raises:
      UserError: A method or attribute is missing. The message names all of them.
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
      The result of `compute`, and the weights [layers, B, H, L, M]. L is W in a decoding step.

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
    """A Linen module that continues texts, such as `tfm.models.decoder_lm.DecoderLM`.

    It is created as `Model(config, vocabulary_size=V)`. The methods run inside `apply(..., method=name)`.

    Attributes:
      config: A dataclass with `dtype`, and with `max_length`, the number of positions, or None if it is not
        limited.
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
        """Returns x [B, L, D] and a table [V, D], whose product x @ table.T is the logits of next tokens."""
        ...

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Returns the cache of W = `width` hypotheses of `max_length` positions that follow tokens [B, P].

        The context is padded with 0 at the end, and P may be 0. All W hypotheses share it, as in `prefill`.
        """
        ...

    def prefill(self, tokens: jax.Array, cache: Any) -> DecodingCache:
        """Returns the cache with tokens [B, P], padded with 0 at the end, before all hypotheses."""
        ...

    def decode_step(
        self, tokens: jax.Array, cache: Any, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Returns the logits [B, W, V] that follow the last tokens [B, W], and the cache.

        The position is counted from 0 after the prefix, and shared by the whole batch.
        """
        ...


def check_continues(model: Any) -> None:
    """Checks that a model fulfils `LanguageModel`.

    Raises:
      UserError: A method is missing. The message names all of them.
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
