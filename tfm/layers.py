"""Flax modules around the pure functions: the sublayers and blocks of section 3, each usable on its own.

Shape letters: B batch, L query length, M key length, D model, F hidden, H heads, K key features, V value
features or vocabulary, W live hypotheses of a sentence while decoding, T positions in the cache.

Masks come from outside (`tfm.masks`); `train` is given at the call and turns dropout on, with the random
key of the collection "dropout". Blocks are composed from modules, so another mixer is another argument:

    EncoderLayer(mixer=MultiHeadAttention(features=512, heads=8), feed_forward=FeedForward(512, 2048))
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from tfm.attention import attention_weights, dot_product_attention
from tfm.decode_cache import LayerCache
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
      key_features: K of each head; D / H when None, as in the paper.
      value_features: V of each head; `key_features` when None.
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
        if self.key_features is None and self.features % self.heads:
            raise ValueError(f"features {self.features} do not divide into {self.heads} heads")
        key_features = self.key_features or self.features // self.heads
        value_features = self.value_features or key_features
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


class EncoderLayer(nn.Module):
    """Self-attention (or another mixer), then the feed-forward network, each in a residual connection."""

    mixer: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], Residual] = Residual

    def setup(self):
        self.mixer_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(self, x, *, mask, train):
        """x [B, L, D], mask [B, 1, L, L] or broadcastable -> [B, L, D]."""
        x = self.mixer_residual(x, lambda x: self.mixer(x, x, mask=mask, train=train), train=train)
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward network."""

    mixer: nn.Module
    cross_attention: nn.Module
    feed_forward: nn.Module
    residual: Callable[[], Residual] = Residual

    def setup(self):
        self.mixer_residual = self.residual()
        self.cross_attention_residual = self.residual()
        self.feed_forward_residual = self.residual()

    def __call__(self, x, memory, *, mask, memory_mask, train):
        """x [B, L, D], memory [B, M, D], mask [B, 1, L, L], memory_mask [B, 1, 1 or L, M] -> [B, L, D]."""
        x = self.mixer_residual(x, lambda x: self.mixer(x, x, mask=mask, train=train), train=train)
        x = self.cross_attention_residual(
            x, lambda x: self.cross_attention(x, memory, mask=memory_mask, train=train), train=train
        )
        return self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=train), train=train)

    def init_cache(self, memory, width, length):
        """The layer's part of a decoding cache, a `LayerCache`."""
        return LayerCache.empty(*self.cross_attention.keys_values(memory), width, length)

    def decode_step(self, x, cache, position, *, mask, memory_mask):
        """One position of W hypotheses: x [B, W, D] and the cache -> ([B, W, D], cache).

        The hypotheses of a sentence stand where `__call__` has query positions: they share its encoder output
        and one pool of cached positions, in which mask [B, 1, W, T * W] picks each one's own ancestors.
        """

        def self_attention(x):
            nonlocal cache
            cache = cache.write(position, *self.mixer.keys_values(x))
            return self.mixer.attend_cached(x, cache.key, cache.value, mask=mask)

        def cross_attention(x):
            memory = cache.memory_key, cache.memory_value
            return self.cross_attention.attend_cached(x, *memory, mask=memory_mask)

        x = self.mixer_residual(x, self_attention, train=False)
        x = self.cross_attention_residual(x, cross_attention, train=False)
        x = self.feed_forward_residual(x, lambda x: self.feed_forward(x, train=False), train=False)
        return x, cache


class Stack(nn.Module):
    """`depth` layers from `make_layer`; a final LayerNorm for norm orders that leave the sum as it is."""

    make_layer: Callable[[], nn.Module]
    depth: int
    final_norm: bool = False
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.layers = [self.make_layer() for _ in range(self.depth)]
        self.norm = layer_norm(self.dtype) if self.final_norm else lambda x: x

    def __call__(self, x, *arguments, **keywords):
        """x [B, L, D] -> [B, L, D]; everything else is handed to each layer."""
        for layer in self.layers:
            x = layer(x, *arguments, **keywords)
        return self.norm(x)

    def init_cache(self, memory, width, length):
        """A list of the layers' caches."""
        return [layer.init_cache(memory, width, length) for layer in self.layers]

    def decode_step(self, x, caches, position, **masks):
        """x [B, W, D] and the list of caches -> ([B, W, D], caches)."""
        written = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.decode_step(x, cache, position, **masks)
            written.append(cache)
        return self.norm(x), written
