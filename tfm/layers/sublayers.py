"""The sublayers of section 3: attention, feed-forward network, residual connection, embeddings; and dropout.

Shape letters as of `tfm.layers`.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.attention import dot_product_attention, weights_of
from tfm.dropout import dropout
from tfm.layers.matmul import dot_general
from tfm.layers.parameter_axes import by_batch

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(nn.gelu, approximate=True),  # of Hendrycks and Gimpel 2016, GPT-2 and BERT
    "swish": nn.swish,
}
NORM_ORDERS = ("post", "pre", "norm_then_add")
LAYER_NORM_EPSILON = 1e-6

dense = functools.partial(
    nn.DenseGeneral, kernel_init=nn.initializers.glorot_uniform(), dot_general=dot_general
)


class Dropout(nn.Module):
    """`tfm.dropout.dropout` with the key of the "dropout" collection."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
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
      attention: a function of query [B, L, H, K], key [B, M, H, K], value [B, M, H, V] and mask= to
        [B, L, H, V], such as `tfm.attention.dot_product_attention`. It gets dropout_rate= and dropout_rng=
        too where weights are dropped.
      implementation: None, or what `attention` gets as implementation=, but for cached decoding, whose few
        queries a fused kernel does not serve.
      encode_positions: None, or a function that puts positions into queries and keys, as rotary ones do:
        (x [B, L, H, K], positions [B, L] or [L]) -> [B, L, H, K].
      dtype: compute dtype; parameters are float32.

    With the collection "attention" mutable it leaves its weights [B, H, L, M] there, for pictures.
    """

    features: int
    heads: int
    key_features: int | None = None
    value_features: int | None = None
    use_bias: bool = False
    dropout_rate: float = 0.0
    attention: Callable[..., jax.Array] = dot_product_attention
    implementation: str | None = None
    encode_positions: Callable[[jax.Array, jax.Array], jax.Array] | None = None
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

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
        train: bool,
    ) -> jax.Array:
        """x [B, L, D] attends to memory [B, M, D] under mask [B, 1 or H, L, M] -> [B, L, D].

        The positions of x [B, L] or [L] and of memory [B, M] or [M] are 0, 1, 2, ... when None.
        """
        key, value = self.keys_values(memory, memory_positions)
        query = self._query(x, positions)
        if self._collects():
            self.sow("attention", "weights", weights_of(self.attention, query, key, mask=mask))
        options = {}
        if self.implementation is not None:
            options["implementation"] = self.implementation
        if train and self.dropout_rate:
            options |= {"dropout_rate": self.dropout_rate, "dropout_rng": self.make_rng("dropout")}
        return self.output(self.attention(query, key, value, mask=mask, **options))

    def keys_values(
        self, memory: jax.Array, positions: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """[B, M, D] -> keys [B, M, H, K] and values [B, M, H, V]; for a decoder, once a sentence."""
        return self._with_positions(self.key(memory), positions), self.value(memory)

    def attend_cached(
        self,
        x: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: jax.Array | None,
        positions: jax.Array | None = None,
        memory_positions: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, W, D] attends to key [B, H, K, M] and value [B, H, M, V], laid out as in a `LayerCache`."""
        query = self._query(x, positions)
        key, value = key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)
        if self._collects():
            self.sow("attention", "weights", weights_of(self.attention, query, key, mask=mask))
        return self.output(self.attention(query, key, value, mask=mask))

    def _query(self, x, positions):
        return self._with_positions(self.query(x), positions)

    def _with_positions(self, x, positions):
        if self.encode_positions is None:
            return x
        positions = jnp.arange(x.shape[-3]) if positions is None else positions
        return self.encode_positions(x, positions)

    def _collects(self):
        return self.is_mutable_collection("attention") and not self.is_initializing()


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation 2; [..., D] -> [..., D].

    Attributes:
      features: D.
      hidden: F.
      activation: a name in `ACTIVATIONS`, or a function of arrays; relu in the paper.
      dropout_rate: of the hidden layer (0 in the paper).
      dtype: compute dtype.
    """

    features: int
    hidden: int
    activation: str | Callable[[jax.Array], jax.Array] = "relu"
    dropout_rate: float = 0.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        activation = ACTIVATIONS.get(self.activation, self.activation)
        if not callable(activation):
            raise ValueError(f"activation must be a function or one of {(*ACTIVATIONS,)}, got {activation!r}")
        x = dense(self.hidden, dtype=self.dtype, name="hidden")(x)
        x = activation(x)
        x = Dropout(self.dropout_rate)(x, train=train)
        return dense(self.features, dtype=self.dtype, name="output")(x)


def layer_norm(
    dtype: jnp.dtype = jnp.float32, epsilon: float = LAYER_NORM_EPSILON, name: str | None = None
) -> nn.Module:
    """LayerNorm, computed in float32. The variance in two passes: one pass cancels.

    Args:
      dtype: of the output.
      epsilon: added to the variance; 1e-6 in the authors' code.
      name: of the module.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


class Residual(nn.Module):
    """The connection around each sublayer, section 3.1 and 5.4.

    Attributes:
      order: where the LayerNorm stands.
        "post", the paper's: LayerNorm(x + Dropout(Sublayer(x)));
        "pre": x + Dropout(Sublayer(LayerNorm(x)));
        "norm_then_add": x + Dropout(LayerNorm(Sublayer(x))).
      dropout_rate: P_drop.
      norm: makes the norm, called as norm(name="norm").
    """

    order: str = "post"
    dropout_rate: float = 0.1
    norm: Callable[..., nn.Module] = layer_norm

    @nn.compact
    def __call__(self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array], *, train: bool) -> jax.Array:
        """x [..., D] and a function [..., D] -> [..., D]."""
        if self.order not in NORM_ORDERS:
            raise ValueError(f"order must be one of {NORM_ORDERS}, got {self.order!r}")
        norm = self.norm(name="norm")
        drop = Dropout(self.dropout_rate)
        if self.order == "pre":
            return by_batch(x + drop(sublayer(norm(x)), train=train))
        if self.order == "norm_then_add":
            return by_batch(x + drop(norm(sublayer(x)), train=train))
        return by_batch(norm(x + drop(sublayer(x), train=train)))


class Embedding(nn.Module):
    """Token embedding whose matrix is also the pre-softmax projection, section 3.4.

    A subclass that makes `output_table` another parameter, at the end of its `setup`, unties the two.

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
        self.output_table = self.table

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[...] -> [..., D], multiplied by sqrt(D)."""
        return by_batch(jnp.take(self.table, tokens, axis=0)).astype(self.dtype) * self.features**0.5

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., V]."""
        x, table = x.astype(self.dtype), self.output_table.astype(self.dtype)
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
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Integers [...] -> [..., D]; a position beyond the table makes NaN, which nobody takes for a row."""
        init = nn.initializers.normal(self.features**-0.5)
        table = self.param("table", init, (self.length, self.features))
        return jnp.take(table, positions, axis=0, mode="fill")
