"""Tests of a single layer."""

import jax
import jax.numpy as jnp
import numpy as np

from tfm.layers import FeedForward, Layer, MultiHeadAttention

ROWS = np.random.default_rng(0).normal(size=(4, 2, 5, 8)).astype(np.float32)


def test_vectors_of_positions_change_queries_and_keys_but_not_values():
    x, encoder_output, vectors, source_vectors = ROWS
    layer = Layer(MultiHeadAttention(8, 2), FeedForward(8, 16), MultiHeadAttention(8, 2))
    variables = layer.init(jax.random.key(0), x, encoder_output, mask=None, train=False)
    added = {"position_vectors": vectors, "source_vectors": source_vectors}
    found = layer.apply(variables, x, encoder_output, mask=None, train=False, **added)

    def by_hand(layer):
        def attend(x):
            return layer.self_attention(x + vectors, x + vectors, x, mask=None, train=False)

        def attend_to_source(x):
            keys = encoder_output + source_vectors
            return layer.cross_attention(x + vectors, keys, encoder_output, mask=None, train=False)

        y = layer.self_attention_residual(jnp.asarray(x), attend, train=False)
        y = layer.cross_attention_residual(y, attend_to_source, train=False)
        return layer.feed_forward_residual(y, lambda y: layer.feed_forward(y, train=False), train=False)

    expected = layer.apply(variables, method=by_hand)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    plain = layer.apply(variables, x, encoder_output, mask=None, train=False)
    assert np.abs(found - plain).max() > 0.01
