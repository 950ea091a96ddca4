"""The base class of models that consist of Transformer layers. Shape letters as in `tfm.layers`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm.array_types import Array
from tfm.dropout import STEPS, hash_indices
from tfm.errors import UserError
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.dense import KERNEL_INIT, dense
from tfm.layers.embedding import Embedding, LearnedPositions
from tfm.layers.feed_forward import FeedForward
from tfm.layers.kv_cache import DecodingCache
from tfm.layers.layer import Layer
from tfm.layers.observe import is_active, observe
from tfm.layers.position_terms import (
    ATTENTION_POSITIONS,
    SINUSOIDAL_POSITIONS,
    RelativeBias,
)
from tfm.layers.residual import NORMS, DeepNorm, Residual, apply_deep_norm
from tfm.layers.stack import Stack
from tfm.positions import sinusoidal_encoding


class ComposedModule(nn.Module):
    """A module whose `make_...` methods return its submodules, so that a subclass can replace them.

    Linen makes a new module the child of the module whose method is running. `nn.nowrap` excludes the
    `make_...` methods from this rule. Therefore the module that they return becomes a child of the caller,
    such as a layer or a stack.
    """

    def __init_subclass__(cls, **keywords: Any):
        for name, method in vars(cls).items():
            if name.startswith("make_") and inspect.isfunction(method):
                nn.nowrap(method)
        super().__init_subclass__(**keywords)


class TransformerBase(ComposedModule):
    """A base class of models whose layers are described by a `BlockConfig`.

    A subclass creates its stacks in `setup`. It must define `embedding` and `dropout` there, too, and a
    decoder `decoder`, `decoder_positions` and `decoder_embedding_norm`.

    Attributes:
      config: A `BlockConfig`, or a `SequenceConfig` if the model reads tokens.
      attention_class: Class of every attention. It takes the fields of `MultiHeadAttention`.
    """

    config: Any
    attention_class: ClassVar[Callable[..., nn.Module]] = MultiHeadAttention

    def make_initializers(self) -> tuple[Initializer, Initializer]:
        """Returns two initializers: for the kernels inside a sublayer, and for its output kernel."""
        return KERNEL_INIT, KERNEL_INIT

    def make_table_init(self) -> Initializer | None:
        """Returns the initializer of embedding and position tables. None keeps the default of the layers."""
        return None

    def make_dense(self, *arguments: Any, **keywords: Any) -> nn.Module:
        """Returns a projection of a sublayer, called like `tfm.layers.dense.dense`."""
        return dense(*arguments, **keywords)

    def make_positions(self) -> Callable[[jax.Array], jax.Array] | None:
        """Returns the function that computes the vectors added to embeddings: positions [...] -> [..., D].

        Returns None if positions act only inside attention, or not at all.
        """
        config = self.config
        if config.positions == "learned":
            return LearnedPositions(config.max_positions, config.d_model, self.make_table_init())
        layout = SINUSOIDAL_POSITIONS.get(config.positions)
        if layout is None:
            return None
        encode = functools.partial(sinusoidal_encoding, features=config.d_model, layout=layout)
        return lambda positions: encode(positions + config.first_position)

    def make_norm(self, name: str | None = None) -> nn.Module:
        """Returns the norm of a residual connection, or of a stack's output."""
        config = self.config
        return NORMS[config.norm](jnp.dtype(config.dtype), config.layer_norm_epsilon, name)

    def make_token_embedding(self, *, tied: bool) -> nn.Module:
        """Returns an embedding of `vocabulary_size` tokens. It also computes the logits."""
        config = self.config
        return Embedding(
            self.vocabulary_size,
            config.d_model,
            jnp.dtype(config.dtype),
            scale=None if config.scale_embedding else 1.0,
            table_init=self.make_table_init(),
            tied=tied,
            use_bias=config.logits_bias,
        )

    def make_embedding_norm(self) -> nn.Module | None:
        """Returns the norm of the sum of embeddings and positions, or None if the config has none."""
        return self.make_norm() if self.config.embedding_norm else None

    def make_attention(self) -> nn.Module:
        """Returns an attention without relative positions, such as the attention to an encoder output."""
        config = self.config
        kernel_init, output_init = self.make_initializers()
        return self.attention_class(
            features=config.d_model,
            heads=config.heads,
            key_features=config.key_features,
            value_features=config.value_features,
            key_value_heads=config.key_value_heads,
            use_bias=config.attention_bias,
            dropout_rate=config.attention_dropout,
            implementation=config.attention,
            scale=None if config.scale_attention else 1.0,
            dtype=jnp.dtype(config.dtype),
            kernel_init=kernel_init,
            output_init=output_init,
            make_dense=self.make_dense,
        )

    def make_self_attention(self) -> nn.Module:
        """Returns the self-attention of a layer, called like `tfm.layers.MultiHeadAttention`."""
        config = self.config
        make_terms = ATTENTION_POSITIONS.get(config.positions)
        fields = make_terms(config.heads) if make_terms else {}
        if config.attention_window is not None:
            fields["window"] = config.attention_window
        attention = self.make_attention()
        return attention.clone(**fields) if fields else attention

    def make_masked_self_attention(self) -> nn.Module:
        """Returns the masked self-attention of a decoder layer.

        A relative bias uses all its buckets for earlier positions, because a decoder does not see later ones.
        """
        attention = self.make_self_attention()
        bias = getattr(attention, "position_bias", None)
        if not isinstance(bias, RelativeBias):
            return attention
        return attention.clone(position_bias=bias.clone(bidirectional=False))

    def make_feed_forward(self) -> nn.Module:
        """Returns the feed-forward network of a layer. With kernel 1, it is position-wise."""
        config = self.config
        rate = config.feed_forward_dropout
        kernel_init, output_init = self.make_initializers()
        return FeedForward(
            features=config.d_model,
            hidden=config.d_ff,
            activation=config.activation,
            dropout_rate=config.dropout if rate is None else rate,
            dtype=jnp.dtype(config.dtype),
            kernel_init=kernel_init,
            output_init=output_init,
            gated=config.gated,
            make_dense=self.make_dense,
            kernel=config.feed_forward_kernel,
        )

    def make_residual(self) -> nn.Module:
        """Returns the residual connection around a sublayer, called like `tfm.layers.Residual`."""
        return Residual(self.config.norm_order, self.config.dropout, self.make_norm)

    def make_layer_with(
        self, deep_norm: DeepNorm, self_attention: nn.Module, cross_attention: nn.Module | None = None
    ) -> nn.Module:
        """Returns a layer with these attentions. Applies `deep_norm` if the config asks for DeepNorm."""
        layer = Layer(self_attention, self.make_feed_forward(), cross_attention, self.make_residual)
        return apply_deep_norm(layer, deep_norm) if self.config.deep_norm else layer

    def make_stack(self, make_layer: Callable[[int], nn.Module], depth: int) -> nn.Module:
        """Returns a stack of `depth` layers. `make_layer` maps the index of a layer to the layer."""
        final_norm = None if self.config.norm_order == "post" else self.make_norm
        return Stack(make_layer, depth, final_norm, self.config.remat, self.config.scan)

    def check_device(self) -> None:
        """Raises a UserError if the config's attention is "cudnn", but JAX's default device is no GPU."""
        if self.config.attention == "cudnn" and jax.default_backend() != "gpu":
            raise UserError(
                f"model.attention 'cudnn' needs a CUDA device, but this is a {jax.default_backend()}. "
                "Set --config.model.attention=xla."
            )

    def add_positions(
        self,
        stack: str,
        x: jax.Array,
        encode: Callable[..., jax.Array] | None,
        positions: jax.Array,
        *,
        norm: nn.Module | None = None,
        train: bool,
    ) -> jax.Array:
        """Adds the encoding of positions to embeddings and applies dropout to the sum (section 5.4).

        Args:
          stack: Name of the stack that reads the sum. The names of the activations begin with it.
          x: Embeddings, [B, L, D].
          encode: The result of `make_positions`. None adds nothing.
          positions: Positions of x, int [B, L] or [L].
          norm: Norm that is applied to the sum before the dropout, as in BERT. The paper has none.
          train: Whether dropout is on.

        Returns:
          [B, L, D].
        """
        x = observe(self, f"{stack}.embeddings", x, positions=positions)
        if encode is not None:
            added = encode(positions).astype(self.config.dtype)
            if is_active():  # An edit may change the positions of some rows only.
                added = jnp.broadcast_to(added, x.shape)
            x = x + observe(self, f"{stack}.positions", added, positions=positions)
        return self.dropout(x if norm is None else norm(x), train=train)

    def logits(self, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Returns the logits [B, L, V] of the output x [B, L, D] of a stack, as the activation "logits".

        `x` may have the column of ones that `Embedding.fused_inputs` adds.
        """
        logits = self.embedding.logits(x[..., : self.config.d_model])
        return observe(self, "logits", logits, "BLV", positions=positions)

    def decode_step(
        self, tokens: jax.Array, cache: DecodingCache, position: jax.Array
    ) -> tuple[jax.Array, DecodingCache]:
        """Computes one decoding step of a model with the stack `decoder` and with `decoder_positions`.

        Args:
          tokens: Last token of each hypothesis, int [B, W]. At position 0, this is BOS.
          cache: A `DecodingCache`.
          position: Position after the prefix, an int32 scalar counted from 0. The whole batch shares it.

        Returns:
          The logits of the next tokens, [B, W, V], and the cache with the keys and values of this step.

        Raises:
          ValueError: See `DecodingCache.begin_step`.
        """
        cache, where = cache.begin_step(position)
        positions = jnp.broadcast_to(where["positions"], tokens.shape)
        x = self.embedding(tokens)
        norm = self.decoder_embedding_norm
        x = self.add_positions("decoder", x, self.decoder_positions, positions, norm=norm, train=False)
        x, written = self.decoder.decode_step(x, cache.layers, position, **where)
        return self.logits(x, where["positions"]), cache.replace(layers=written)

    def positions_or_index(self, positions: jax.Array | None, tokens: jax.Array) -> jax.Array:
        """Returns the positions, or 0, 1, 2, ... for tokens [B, L] if the positions are None.

        Raises:
          ValueError: If positions are None and L is above `config.max_length`.
        """
        if positions is not None:
            return positions
        self.check_length(tokens.shape[-1])
        return jnp.arange(tokens.shape[-1])

    def shift_positions(self, *positions: jax.Array, rows: int, train: bool) -> tuple[jax.Array, ...]:
        """Adds a random offset of 0 to `config.random_start` to the positions of each row in training.

        The offsets are the same on any number of devices, like `tfm.dropout.dropout`.

        Args:
          *positions: Positions int [B, L] or [L] of several sequences. Each row has one offset for all.
          rows: Number of rows, B.
          train: Whether to add offsets.

        Returns:
          The positions [B, L] of each sequence. Outside training, and if `random_start` is 0, they are
          unchanged.
        """
        if not train or not self.config.random_start:
            return positions
        noise = hash_indices(self.make_rng("dropout"), (rows, 1))
        start = (noise * (self.config.random_start + 1) // STEPS).astype(jnp.int32)
        return tuple(each + start for each in positions)

    def check_length(self, length: int) -> None:
        """Raises a ValueError if `length` is above `config.max_length`."""
        max_length = self.config.max_length
        if max_length is not None and length > max_length:
            raise ValueError(
                f"Expected at most {max_length} positions (model.max_positions - model.random_start), got "
                f"{length}. Shorten the sequence, or train with model.max_positions="
                f"{length + self.config.random_start}."
            )


def segments_or_tokens(model: Any, segments: Array, packed: bool) -> Array:
    """Returns segments int [B, L] in the form in which attention of the model is fastest.

    Args:
      model: The model that reads the segments.
      segments: Number of the text that each token belongs to. 0 is padding.
      packed: Whether a row may contain several texts.

    Returns:
      bool [B, L], True for tokens, if rows are not packed and the model is a `TransformerBase`. Attention
      then need not compare segments. Otherwise the segments.
    """
    return segments if packed or not isinstance(model, TransformerBase) else segments > 0
