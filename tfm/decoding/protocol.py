"""What decoding, scoring and alignment expect of models: protocols, checks, and the form of parameters."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.array_types import Array
from tfm.data.tokenizers.protocol import BOS_ID
from tfm.errors import UserError
from tfm.layers.observe import read_attention

Params = Any  # a tree of parameters
Ensemble = tuple[Params, ...]  # the parameters of several models that decode together
Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class DecodingCache(Protocol):
    """The state of decoding, a pytree whose leaves all begin with the axis B.

    The coverage penalty also needs the method `add_coverage`, and the attributes `coverage` float [B, W, M]
    and `source_mask` bool [B, 1, 1, M]. If the cache has space for a limited number of positions, the
    attribute `max_length` is this number.
    """

    def reorder(self, parents: jax.Array) -> "DecodingCache":
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`.

        Args:
          parents: int32 [B, W].
        """
        ...


@runtime_checkable
class SequenceToSequence(Protocol):
    """A Linen module that translates, such as `tfm.models.Transformer`.

    The methods are called by `apply(..., method=name)`.

    Attributes:
      config: A dataclass with the fields `dtype` and `max_length`. `max_length` is the maximum number of
        tokens of a source and of a target. None means no limit.
      attention_points: {kind of attention: name of its weights}, see docs/interpret.md. The kinds are
        "encoder", "decoder" and "cross". A kind that the model does not have is missing. A name contains * in
        place of the index of the layer.

    For `tfm visualize`, a model also has `attention_tracks`, {kind of attention: (queries, keys)}. The tracks
    are "source", "read" (target tokens that the decoder reads) and "predicted" (target tokens). If the
    embeddings of a track belong to no kind, `embedding_tracks` is {track: name of its embeddings}.
    """

    config: Any
    attention_points: Mapping[str, str]

    def features(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns x [B, L, D] and a table [V, D]. The logits are x @ table.T.

        Args:
          inputs: Source tokens, int [B, M].
          targets: Decoder input, int [B, L]. This is the target shifted right by one position.
          train: Whether dropout is on.
          **packing: input_positions, input_segments, target_positions and target_segments, for packed rows.
        """
        ...

    def encode(self, inputs: jax.Array) -> Any:
        """Returns the encoder output of source tokens, int [B, M]."""
        ...

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Encodes source tokens int [B, M] and returns a cache for their hypotheses.

        The cache has space for W = `width` hypotheses of `max_length` tokens for each row. A larger
        `max_length` only appends zeros to axes of the cache.
        """
        ...

    def decode_step(
        self, tokens: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Returns the logits [B, W, V] after the last tokens [B, W], and the next cache.

        `position` is counted from 0 and shared by the whole batch.
        """
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """A Linen module that continues texts, such as `tfm.models.decoder_lm.DecoderLM`.

    It is created by `Model(config, vocabulary_size=V)`. The methods are called by `apply(..., method=name)`.

    Attributes:
      config: A dataclass with the fields `dtype` and `max_length`. `max_length` is the maximum number of
        tokens of a text. None means no limit.
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
        """Returns x [B, L, D] and a table [V, D]. The logits of the next tokens are x @ table.T."""
        ...

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> DecodingCache:
        """Returns a cache for W = `width` hypotheses of `max_length` tokens that continue each context.

        `context` are the tokens before the hypotheses, int [B, P], padded at the end with 0. P may be 0.
        """
        ...

    def prefill(self, tokens: jax.Array, cache: Any) -> DecodingCache:
        """Returns a cache, before its first `decode_step`, with more tokens at the end of its prefix.

        `tokens` are int [B, P], padded at the end with 0.
        """
        ...

    def decode_step(
        self, tokens: jax.Array, cache: Any, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Returns the logits [B, W, V] after the last tokens [B, W], and the next cache.

        `position` is counted from 0 after the prefix, and shared by the whole batch.
        """
        ...


def check_translates(model: Any) -> None:
    """Raises a UserError if a model does not implement `SequenceToSequence`."""
    needed = ("encode", "features", "init_cache", "decode_step", "attention_points")
    example = "a sequence-to-sequence model such as transformer"
    _check_attributes(model, needed, "does not translate", example, SequenceToSequence)


def check_continues(model: Any) -> None:
    """Raises a UserError if a model does not implement `LanguageModel`."""
    needed = ("prefill", "features", "init_cache", "decode_step")
    _check_attributes(model, needed, "is no language model", "decoder_lm", LanguageModel)


def _check_attributes(
    model: Any, needed: Sequence[str], problem: str, example: str, protocol: type[Any]
) -> None:
    """Raises a UserError that lists all missing methods and attributes of a model."""
    missing = [name for name in needed if not hasattr(model, name)]
    if missing:
        raise UserError(
            f"The model {_name_of(model)!r} {problem}: it has no {' and no '.join(missing)}. Choose "
            f"{example}, or see tfm.decoding.protocol.{protocol.__name__}."
        )


def _name_of(model: Any) -> str:
    """Returns the name of a model in its config, or the name of its class if the config has no name."""
    return getattr(model.config, "name", type(model).__name__)


def read_cross_attention(model: Any, compute: Callable[[], Any]) -> tuple[Any, jax.Array]:
    """Calls a function that applies a model, and reads the model's attention to the source.

    Args:
      model: A `SequenceToSequence`.
      compute: Function without arguments that applies the model.

    Returns:
      The result of `compute`, and the attention weights [layers, B, H, L, M]. In a decoding step, L is W.

    Raises:
      UserError: If the model has no attention to the source.
    """
    if "cross" not in model.attention_points:
        raise UserError(
            f"Alignments and the coverage penalty need a model that attends to the source, but the model "
            f"{_name_of(model)!r} has no 'cross' in its attention_points. Choose another model. A "
            "recurrent model attends to the source unless model.attention is 'none'."
        )
    return read_attention(model.attention_points["cross"], compute)


def as_ensemble(model: Params | Ensemble) -> Ensemble:
    """Returns the members of an ensemble, or a tuple with the parameters or variables of one model."""
    return model if isinstance(model, tuple) else (model,)


def shift_right(targets: Array, positions: Array | None = None) -> jax.Array:
    """Returns the decoder input [B, L]: tokens shifted right by one, and BOS at position 0 of sentences.

    Args:
      targets: int [B, L].
      positions: int [B, L], the positions in packed rows. None: each row has one sentence.
    """
    positions = jnp.arange(targets.shape[1]) if positions is None else positions
    return jnp.where(positions == 0, BOS_ID, jnp.roll(targets, 1, axis=-1))


def search_parameters(params: Params, dtype: str = "") -> Params:
    """Converts parameters to the form that is fastest for decoding: JAX arrays, so that no call copies them.

    Args:
      params: The parameters of one model.
      dtype: "float32" or "bfloat16", the dtype of all results. Empty keeps the dtype of each parameter.
    """
    if dtype:
        return _cast_all(params, dtype)
    # Arrays of JAX stay where they are, because several hosts may divide them.
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x), params)


@functools.partial(jax.jit, static_argnums=1)
def _cast_all(params: Params, dtype: str) -> Params:
    """Converts the dtype of all parameters."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def with_dtype(model: Model, dtype: str) -> Model:
    """Returns the model with the compute dtype that fits `search_parameters` of this dtype."""
    if not dtype:
        return model
    return model.clone(config=dataclasses.replace(model.config, dtype=dtype))
