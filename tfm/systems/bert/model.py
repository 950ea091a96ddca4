"""BERT (Devlin et al. 2018): a Transformer encoder that reads one or two texts in both directions.

    tokens    [CLS]  the  dog  [SEP]  it  [MASK]  [SEP]
    types       0     0    0     0    1     1       1

The defaults describe BERT base: the sum of the embeddings of tokens, types and positions is normalized, and
the layers are post-norm with the exact gelu and biases. Shape letters as in `tfm.layers`. C is the number of
classes, and K is the number of predicted tokens of a row.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from tfm import layers
from tfm.config import without_fields
from tfm.layers.block_config import SequenceConfig, fixed_field
from tfm.layers.dense import dense
from tfm.layers.feed_forward import ACTIVATIONS
from tfm.layers.observe import observe
from tfm.masks import PAD_ID, AttentionMask

# Standard deviation of the truncated normal initial values of all matrices, from the authors' code.
INITIAL_DEVIATION = 0.02
HEADS = ("pretraining", "classes", "tags", "regression")
POOLER_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


@dataclasses.dataclass(frozen=True)
@without_fields(
    first_position=0, scale_embedding=False, embedding_norm=True, logits_bias=True, random_start=0
)
class BertConfig(SequenceConfig):
    """The config of BERT. The defaults describe BERT base."""

    name: str = "bert"
    encoder_layers: int = fixed_field(12, "Number of layers, L.", minimum=1, maximum=1000, unit="layers")
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    attention_bias: bool = True
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-12
    attention_dropout: float = 0.1
    positions: str = "learned"
    max_positions: int = 512
    types: int = fixed_field(
        2,
        "Number of types of tokens: 0 for the first text, 1 for the second. 1: both texts have the same "
        "type, as in RoBERTa. 0: no embedding of types, as in DistilBERT.",
        minimum=0,
        maximum=64,
    )
    head: str = fixed_field(
        "pretraining",
        "Output of the model. pretraining: the tokens, and whether the second text follows the first. "
        "classes: a class of the row. tags: a class of each token. regression: a number for the row.",
        choices=HEADS,
    )
    classes: int = fixed_field(
        2, "Number of classes of the heads classes and tags.", minimum=2, maximum=1_000_000, unit="classes"
    )
    pooler_activation: str = fixed_field(
        "tanh",
        "Activation of the layer between the first token and the output for a row. DistilBERT has relu.",
        choices=tuple(POOLER_ACTIVATIONS),
    )


class Bert(layers.TransformerBase):
    """A bidirectional encoder of tokens with the output layers that `config.head` names.

    The layers of pretraining and of fine-tuning have different names, so that a warm start from a pretrained
    model never takes the layer of the next sentence for a classifier.

    To replace a submodule, override the method that creates it, as in `tfm.models.Transformer`.

    Attributes:
      config: See `BertConfig`.
      vocabulary_size: Size of the vocabulary, V.
    """

    config: BertConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {"encoder": "encoder.layers_*.self_attention.weights"}
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {"encoder": ("read", "read")}
    parameter_axes: ClassVar = {"types/table": (None, "model"), "head/kernel": ("model", None)}

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.positions = self.make_positions()
        if config.types:
            self.types = self.make_types()
        self.embedding_norm = self.make_norm()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        if config.head != "tags":
            self.pooler = self.make_projection(config.d_model)
        if config.head == "pretraining":
            self.transform, self.transform_norm = self.make_projection(config.d_model), self.make_norm()
            self.follows = self.make_projection(2)
        else:
            self.head = self.make_projection(1 if config.head == "regression" else config.classes)

    def make_initializers(self) -> tuple[Initializer, Initializer]:
        """Returns the same truncated normal initializer for all kernels."""
        return self.make_table_init(), self.make_table_init()

    def make_table_init(self) -> Initializer:
        """Returns a truncated normal initializer."""
        return nn.initializers.truncated_normal(INITIAL_DEVIATION)

    def make_embedding(self) -> nn.Module:
        """Returns the embedding of the tokens. In pretraining, it also computes logits with a bias."""
        config = self.config
        return layers.Embedding(
            self.vocabulary_size,
            config.d_model,
            jnp.dtype(config.dtype),
            scale=1.0,
            table_init=self.make_table_init(),
            use_bias=config.head == "pretraining",
        )

    def make_types(self) -> nn.Module:
        """Returns the embedding of the types of tokens."""
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        return layers.Embedding(config.types, config.d_model, dtype, 1.0, self.make_table_init())

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the layer with this index, counted from 0."""
        del index  # all layers are equal
        constants = layers.single_stack_constants(self.config.encoder_layers)
        return self.make_layer_with(constants, self.make_self_attention())

    def make_projection(self, features: int) -> nn.Module:
        """Returns a projection [..., D] -> [..., features] of an output layer."""
        return dense(features, kernel_init=self.make_table_init(), dtype=jnp.dtype(self.config.dtype))

    def __call__(
        self, tokens: jax.Array, types: jax.Array | None = None, *, train: bool
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Returns the logits of the head. See `features` for the arguments.

        Returns:
          pretraining: the logits of every token [B, L, V], and of whether the second text does not follow (0)
          or follows (1), [B, 2]. classes: [B, C]. tags: [B, L, C]. regression: the predicted numbers [B, 1].
        """
        x = self.features(tokens, types=types, train=train)
        if self.config.head == "pretraining":
            logits = observe(self, "logits", self.embedding.logits(self.transformed(x)), "BLV")
            return logits, self.follows(self.pooled(x))
        x = x if self.config.head == "tags" else self.pooled(x)
        return self.head(self.dropout(x, train=train))

    def pretraining_outputs(
        self, tokens: jax.Array, predicted: jax.Array, *, types: jax.Array | None = None, train: bool
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Returns the outputs of pretraining at some positions, for a fused loss.

        Args:
          tokens, types, train: See `features`.
          predicted: Positions of the tokens to predict, int [B, K].

        Returns:
          (x [B, K, D + 1], table [V, D + 1]), whose product x @ table.T is the logits of these tokens, and
          the logits [B, 2] of whether the second text follows the first.
        """
        x = self.features(tokens, types=types, train=train)
        at_positions = jnp.take_along_axis(x, predicted[..., None], axis=1)
        return self.embedding.fused_inputs(self.transformed(at_positions)), self.follows(self.pooled(x))

    def features(self, tokens: jax.Array, *, types: jax.Array | None = None, train: bool) -> jax.Array:
        """Returns the output of the last layer.

        Args:
          tokens: int [B, L], padded with 0.
          types: Type of each token, int [B, L]. None means 0. A model with fewer than two types ignores them.
          train: Whether dropout is on.

        Returns:
          [B, L, D] in the compute dtype.

        Raises:
          ValueError: If L is above `config.max_length`.
        """
        index = self.positions_or_index(None, tokens)
        x = self.embedding(tokens)
        if self.config.types:
            has_types = types is not None and self.config.types > 1
            x = x + self.types(types if has_types else jnp.zeros_like(tokens))
        x = self.add_positions("encoder", x, self.positions, index, norm=self.embedding_norm, train=train)
        return self.encoder(x, mask=AttentionMask(None, tokens != PAD_ID), positions=index, train=train)

    def transformed(self, x: jax.Array) -> jax.Array:
        """Returns the features [..., D] whose product with the embeddings is the logits of tokens."""
        return self.transform_norm(ACTIVATIONS[self.config.activation](self.transform(x)))

    def pooled(self, x: jax.Array) -> jax.Array:
        """Returns the features [B, D] of each row, from the output x [B, L, D] at the first token."""
        activation = POOLER_ACTIVATIONS[self.config.pooler_activation]
        return observe(self, "pooled", activation(self.pooler(x[:, 0])), "BD")


Config = BertConfig
Model = Bert
