"""The sublayers of section 3: attention, feed-forward network, residual connection, embeddings; and dropout.

Shape letters as of `tfm.layers`.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp

from tfm.attention import attention_weights, dot_product_attention
from tfm.dropout import dropout
from tfm.products import dot_general
from tfm.sharding import by_batch

ACTIVATIONS = {"relu": nn.relu, "gelu": nn.gelu, "swish": nn.swish}
NORM_ORDERS = ("post", "pre", "norm_then_add")

dense = functools.partial(
    nn.DenseGeneral, kernel_init=nn.initializers.glorot_uniform(), dot_general=dot_general
)


class Dropout(nn.Module):
    """`tfm.dropout.dropout` with the key of the "dropout" collection."""

    rate: float

    @nn.compact
    def __call__(self, x, *, train):
        if not train or self.rate == 0:
            return x
        return dropout(self.make_rng("dropout"), x, self.rate)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Attributes:
      features: D, of the output.
      heads: H.
      key_features, value_features: K and V of each head; D / H when None, as in the paper, each by itself.
      use_bias: biases on the four projections (none in the paper, present in its authors' code).
      dropout_rate: of the attention weights (0 in the paper).
      implementation: of `tfm.attention.dot_product_attention`.
      dtype: compute dtype; parameters are float32.

    With the collection "attention" mutable it leaves its weights [B, H, L, M] there, for pictures.
    """

    features: int
    heads: int
    key_features: int | None = None
    value_features: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    implementation: str | None = None
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        if None in (self.key_features, self.value_features) and self.features % self.heads:
            raise ValueError(f"features {self.features} do not divide into {self.heads} heads")
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or self.features // self.heads
        self.query = self._projection((self.heads, key_features), -1)
        self.key = self._projection((self.heads, key_features), -1)
        self.value = self._projection((self.heads, value_features), -1)
        self.output = self._projection(self.features, (-2, -1))

    def _projection(self, features, axis):
        return dense(features, axis, use_bias=self.use_bias, dtype=self.dtype)

    def __call__(self, x, memory, *, mask, train):
        """x [B, L, D] attends to memory [B, M, D] under mask [B, 1 or H, L, M] -> [B, L, D]."""
        return self.attend(x, *self.keys_values(memory), mask=mask, train=train)

    def keys_values(self, memory):
        """[B, M, D] -> keys [B, M, H, K] and values [B, M, H, V]; for a decoder, once a sentence."""
        return self.key(memory), self.value(memory)

    def attend(self, x, key, value, *, mask, train=False):
        """As `__call__`, against projected keys and values."""
        query = self.query(x)
        if self._collects():
            self.sow("attention", "weights", attention_weights(query, key, mask=mask))
        rate = self.dropout_rate if train else 0.0
        mixed = dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            dropout_rate=rate,
            dropout_rng=self.make_rng("dropout") if rate else None,
            implementation=self.implementation,
        )
        return self.output(mixed)

    def attend_cached(self, x, key, value, *, mask):
        """x [B, W, D] attends to key [B, H, K, M] and value [B, H, M, V], laid out as in a `LayerCache`."""
        # The heads are batch axes here, each with one head.
        query = self.query(x).swapaxes(1, 2)[..., None, :]
        key, value, mask = key.swapaxes(2, 3)[..., None, :], value[..., None, :], mask[:, None]
        if self._collects():
            self.sow("attention", "weights", attention_weights(query, key, mask=mask)[:, :, 0])
        mixed = dot_product_attention(query, key, value, mask=mask)
        return self.output(mixed[..., 0, :].swapaxes(1, 2))

    def _collects(self):
        return self.is_mutable_collection("attention") and not self.is_initializing()


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation 2; [..., D] -> [..., D].

    Attributes:
      features: D.
      hidden: F.
      activation: a name in `ACTIVATIONS`; relu in the paper.
      dropout_rate: of the hidden layer (0 in the paper).
      dtype: compute dtype.
    """

    features: int
    hidden: int
    activation: str = "relu"
    dropout_rate: float = 0.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, *, train):
        x = dense(self.hidden, dtype=self.dtype, name="hidden")(x)
        x = ACTIVATIONS[self.activation](x)
        x = Dropout(self.dropout_rate)(x, train=train)
        return dense(self.features, dtype=self.dtype, name="output")(x)


def layer_norm(dtype, name=None):
    """LayerNorm with the epsilon of the authors' code. The variance in two passes: one pass cancels."""
    return nn.LayerNorm(epsilon=1e-6, dtype=dtype, use_fast_variance=False, name=name)


class Residual(nn.Module):
    """The connection around each sublayer, section 3.1 and 5.4.

    Attributes:
      order: where the LayerNorm stands.
        "post", the paper's: LayerNorm(x + Dropout(Sublayer(x)));
        "pre": x + Dropout(Sublayer(LayerNorm(x)));
        "norm_then_add": x + Dropout(LayerNorm(Sublayer(x))).
      dropout_rate: P_drop.
      dtype: compute dtype.
    """

    order: str = "post"
    dropout_rate: float = 0.1
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, sublayer, *, train):
        """x [..., D] and a function [..., D] -> [..., D]."""
        if self.order not in NORM_ORDERS:
            raise ValueError(f"order must be one of {NORM_ORDERS}, got {self.order!r}")
        norm = layer_norm(self.dtype, name="norm")
        drop = Dropout(self.dropout_rate)
        if self.order == "pre":
            return by_batch(x + drop(sublayer(norm(x)), train=train))
        if self.order == "norm_then_add":
            return by_batch(x + drop(norm(sublayer(x)), train=train))
        return by_batch(norm(x + drop(sublayer(x), train=train)))


class Embedding(nn.Module):
    """Token embedding whose matrix is also the pre-softmax projection, section 3.4.

    Attributes:
      vocabulary_size: V.
      features: D.
      dtype: compute dtype.
    """

    vocabulary_size: int
    features: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        init = nn.initializers.normal(self.features**-0.5)
        self.table = self.param("table", init, (self.vocabulary_size, self.features))

    def __call__(self, tokens):
        """[...] -> [..., D], multiplied by sqrt(D)."""
        return by_batch(jnp.take(self.table, tokens, axis=0)).astype(self.dtype) * self.features**0.5

    def logits(self, x):
        """[..., D] -> [..., V]."""
        x, table = x.astype(self.dtype), self.table.astype(self.dtype)
        # Many logits cost more to turn round than the better order saves.
        return dot_general(x, table, (((x.ndim - 1,), (1,)), ((), ())), few_rows=64)


class LearnedPositions(nn.Module):
    """A learned vector for each position, in place of sinusoids (Table 3, row E).

    Attributes:
      length: T, positions.
      features: D.
    """

    length: int
    features: int

    @nn.compact
    def __call__(self, positions):
        """Integers [...] -> [..., D]; a position beyond the table makes NaN, which nobody takes for a row."""
        init = nn.initializers.normal(self.features**-0.5)
        table = self.param("table", init, (self.length, self.features))
        return jnp.take(table, positions, axis=0, mode="fill")
