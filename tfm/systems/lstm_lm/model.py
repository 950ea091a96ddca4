"""A language model of stacked LSTMs with dropout between the layers (Zaremba et al. 2014).

Shape letters as in `tfm.layers`. F is the width of a state and of an embedding.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.config import InheritsHelp, check_fields, field
from tfm.layers.block_config import fixed_field, name_field, rate_field, size_field
from tfm.layers.carry_cache import CarryCache
from tfm.masks import PAD_ID
from tfm.systems.lstm_lm.cells import Initializers, LSTMCell, RecurrentLayer, State, output_of, select_state


@dataclasses.dataclass(frozen=True)
class LSTMConfig(InheritsHelp):
    """The config of an LSTM language model. The defaults are the large model of section 4.1."""

    name: str = name_field("lstm_lm")
    layers: int = fixed_field(2, "Number of layers.", minimum=1, maximum=1000, unit="layers")
    features: int = size_field(1500, "Width of the states and of the embeddings, F.")
    tied_embeddings: bool = fixed_field(False, "One shared matrix for the embedding and the logits.")
    initial_range: float = fixed_field(
        0.04,
        "Bound of the initial parameters. All are uniform between -initial_range and initial_range.",
        greater_than=0,
        maximum=10,
    )
    forget_bias: float = fixed_field(0.0, "Constant added to the forget gates.", minimum=-10, maximum=10)
    dropout: float = rate_field(0.65, "Dropout rate of each layer's input and of the last layer's output.")
    dtype: str = field("float32", "Compute dtype. Parameters are float32.", choices=("float32", "bfloat16"))

    def __post_init__(self):
        check_fields(self, "model")

    @property
    def max_length(self) -> None:
        """Returns None, because recurrent models accept sequences of any length."""
        return None


class LSTMLanguageModel(nn.Module):
    """A recurrent model that implements `tfm.decoding.protocol.LanguageModel`.

    Attributes:
      config: See `LSTMConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: LSTMConfig
    vocabulary_size: int

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        init = functools.partial(draw_uniform, limit=config.initial_range)
        self.embedding = layers.Embedding(
            self.vocabulary_size,
            config.features,
            dtype,
            scale=1.0,
            table_init=init,
            tied=config.tied_embeddings,
            use_bias=True,
            bias_init=init,
        )
        parts = Initializers(*[init] * len(Initializers._fields))
        self.layers = [
            RecurrentLayer(LSTMCell(config.features, parts, config.forget_bias, dtype))
            for _ in range(config.layers)
        ]
        self.dropout = layers.Dropout(config.dropout)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """Returns the logits [B, L, V] of the token after each position. See `features`."""
        x, table = self.features(tokens, positions=positions, segments=segments, train=train)
        return x @ table.astype(x.dtype).T

    def features(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns x [B, L, F + 1] and the table [V, F + 1], whose last column is the bias of the logits.

        Their product is the logits. For the arguments, see `tfm.models.decoder_lm.DecoderLM.features`.
        Positions are ignored, and the states restart with each segment.
        """
        del positions
        segments = jnp.ones_like(tokens) if segments is None else segments
        x = self.embedding(tokens)
        for layer in self.layers:
            x = output_of(layer(self.dropout(x, train=train), segments))
        return self.embedding.fused_inputs(self.dropout(x, train=train))

    def init_cache(self, context: jax.Array, *, width: int, max_length: int) -> CarryCache:
        """Returns a cache for W = `width` hypotheses that continue a context int [B, P], padded with 0."""
        del max_length  # the cache has the same size for hypotheses of any length
        carry = tuple(layer.cell.initial_state((len(context), width)) for layer in self.layers)
        return self.prefill(context, CarryCache(carry))

    def prefill(self, tokens: jax.Array, cache: CarryCache) -> CarryCache:
        """Returns the cache with tokens int [B, P], padded at the end with 0, appended to its prefix."""

        def step(model, states, tokens):
            read, _ = model._advance(tokens[:, None], states)
            return select_state((tokens != PAD_ID)[:, None], read, states), None

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1)
        carry, _ = scan(self, cache.carry, jnp.asarray(tokens))
        return cache.replace(carry=carry)

    def decode_step(
        self, tokens: jax.Array, cache: CarryCache, position: jax.Array
    ) -> tuple[jax.Array, CarryCache]:
        """Returns the logits [B, W, V] after the last tokens int [B, W], and the next cache."""
        del position
        carry, x = self._advance(tokens, cache.carry)
        return self.embedding.logits(x), cache.replace(carry=carry)

    def _advance(self, tokens: jax.Array, carry: tuple[State, ...]) -> tuple[tuple[State, ...], jax.Array]:
        """Returns the states and the last output after tokens int [B, 1 or W]; arrays [B, W, F]."""
        x = self.embedding(tokens)
        states = []
        for layer, state in zip(self.layers, carry, strict=True):
            state, x = layer.cell(state, x)
            states.append(state)
        return tuple(states), x


def draw_uniform(
    key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32, *, limit: float
) -> jax.Array:
    """Draws parameters uniformly between -limit and limit."""
    return jax.random.uniform(key, shape, dtype, -limit, limit)


Config = LSTMConfig
Model = LSTMLanguageModel
