"""The parts that a Transformer is made of, from the fields of its config: what its stacks have in common.

Shape letters as in `tfm.layers`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm.errors import UserError
from tfm.layers import activations
from tfm.layers.attention import MultiHeadAttention, RestrictMask
from tfm.layers.composition import ComposedModule
from tfm.layers.dense import KERNEL_INIT
from tfm.layers.embedding import LearnedPositions
from tfm.layers.feed_forward import FeedForward
from tfm.layers.normalization import NORMS
from tfm.layers.position_bias import RelativeBias, RelativeKeys, linear_bias
from tfm.layers.residual import Residual
from tfm.layers.stack import Stack
from tfm.masks import combine_masks, local_mask
from tfm.positions import LAYOUTS, rotary_encoding, sinusoidal_encoding

# What is not added to embeddings: {name: config -> fields of the `MultiHeadAttention` of self-attention}.
ATTENTION_POSITIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda config: {},
    "rotary": lambda config: {"encode_positions": rotary_encoding},
    "relative_keys": lambda config: {"position_bias": RelativeKeys()},
    "relative_bias": lambda config: {"position_bias": RelativeBias(config.heads)},
    "alibi": lambda config: {"position_bias": linear_bias},
}
BIAS_POSITIONS = ("relative_keys", "relative_bias", "alibi")  # which add to the logits
POSITIONS = (*LAYOUTS, "learned", *ATTENTION_POSITIONS)


class TransformerParts(ComposedModule):
    """Makes the parts of a Transformer; a subclass arranges them in its `setup`.

    That has `config` with the fields below that are read, and sets `embedding` and `dropout`.
    """

    def make_initializers(self) -> tuple[Initializer, Initializer]:
        """Initializers of kernels: of those inside of a sublayer, and of the sublayers' output kernels."""
        return KERNEL_INIT, KERNEL_INIT

    def make_table_init(self) -> Initializer | None:
        """Initializer of the tables of embedding and positions; None is that of the layers themselves."""
        return None

    def make_positions(self) -> Callable[[jax.Array], jax.Array] | None:
        """What is added to the embeddings of a stack: positions [...] -> [..., D]; None adds nothing."""
        config = self.config
        if config.positions == "learned":
            return LearnedPositions(config.max_positions, config.d_model, self.make_table_init())
        if config.positions in ATTENTION_POSITIONS:
            return None
        return functools.partial(sinusoidal_encoding, features=config.d_model, layout=config.positions)

    def make_norm(self, name: str | None = None) -> nn.Module:
        """The norm of each residual connection, and of a stack's output for orders other than "post"."""
        config = self.config
        return NORMS[config.norm](jnp.dtype(config.dtype), config.layer_norm_epsilon, name)

    def make_attention(self) -> nn.Module:
        """Each attention, a `tfm.layers.Mixer`."""
        config = self.config
        kernel_init, output_init = self.make_initializers()
        return MultiHeadAttention(
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
        )

    def make_mixer(self) -> nn.Module:
        """Self-attention of each layer, or its replacement, a `tfm.layers.Mixer`."""
        config = self.config
        fields = (
            ATTENTION_POSITIONS[config.positions](config) if config.positions in ATTENTION_POSITIONS else {}
        )
        if config.attention_window is not None:
            fields["restrict_mask"] = restrict_to_window(config.attention_window)
        attention = self.make_attention()
        return attention.clone(**fields) if fields else attention

    def make_causal_mixer(self) -> nn.Module:
        """Masked self-attention of each layer of a decoder: `make_mixer`'s.

        A relative bias has all its buckets for earlier positions there.
        """
        mixer = self.make_mixer()
        bias = getattr(mixer, "position_bias", None)
        if not isinstance(bias, RelativeBias):
            return mixer
        return mixer.clone(position_bias=bias.clone(bidirectional=False))

    def make_feed_forward(self) -> nn.Module:
        """The position-wise network; called as `tfm.layers.FeedForward` is."""
        config = self.config
        kernel_init, output_init = self.make_initializers()
        return FeedForward(
            config.d_model,
            config.d_ff,
            config.activation,
            config.feed_forward_dropout,
            jnp.dtype(config.dtype),
            kernel_init,
            output_init,
            config.gated,
        )

    def make_residual(self) -> nn.Module:
        """The connection around each sublayer; called as `tfm.layers.Residual` is."""
        return Residual(self.config.norm_order, self.config.dropout, self.make_norm)

    def make_stack(self, make_layer: Callable[[], nn.Module], depth: int) -> nn.Module:
        """A stack of `depth` equal layers."""
        final_norm = None if self.config.norm_order == "post" else self.make_norm
        return Stack(make_layer, depth, final_norm, self.config.remat, self.config.scan)

    def _check_device(self):
        """Raises a UserError where the attention of the config does not exist on this device."""
        if self.config.attention == "cudnn" and jax.default_backend() != "gpu":
            raise UserError(
                f"model.attention 'cudnn' needs a CUDA device, but this is a {jax.default_backend()}: "
                "set --config.model.attention=xla."
            )

    def _embed(
        self,
        stack: str,
        tokens: jax.Array,
        encoding: Callable[..., Any] | None,
        positions: jax.Array,
        *,
        train: bool,
    ) -> jax.Array:
        """Embedding plus position of a stack, with dropout on the sum (section 5.4)."""
        return self._add_positions(stack, self.embedding(tokens), encoding, positions, train=train)

    def _add_positions(
        self,
        stack: str,
        x: jax.Array,
        encoding: Callable[..., Any] | None,
        positions: jax.Array,
        *,
        train: bool,
    ) -> jax.Array:
        """x [B, L, D] plus the encoding of positions [B, L] or [L], with dropout on the sum."""
        x = activations.observe(self, f"{stack}.embeddings", x, positions=positions)
        if encoding is not None:
            added = encoding(positions).astype(self.config.dtype)
            if activations.is_active():  # each row has its own to edit
                added = jnp.broadcast_to(added, x.shape)
            x = x + activations.observe(self, f"{stack}.positions", added, positions=positions)
        return self.dropout(x, train=train)

    def _positions(self, positions: jax.Array | None, tokens: jax.Array) -> jax.Array:
        """The given positions, or 0, 1, 2, ... of the tokens."""
        if positions is not None:
            return positions
        self._check_length(tokens.shape[-1])
        return jnp.arange(tokens.shape[-1])

    def _check_length(self, length: int) -> None:
        """Raises a ValueError for more positions than the config has."""
        max_length = self.config.max_length
        if max_length is not None and length > max_length:
            raise ValueError(f"{length} positions are more than the {max_length} of model.max_positions")


def restrict_to_window(window: int) -> RestrictMask:
    """The `restrict_mask` of a `MultiHeadAttention` that sees a neighbourhood, see `tfm.masks.local_mask`."""

    def restrict(mask, positions, memory_positions):
        return combine_masks(mask, local_mask(positions, memory_positions, window))

    return restrict
