"""Small shapes, random arrays and parameters for the tests of layers."""

import jax
import jax.numpy as jnp
import numpy as np

from tfm import layers
from tfm.layers.kv_cache import DecodingCache, KeyValueCache

B, L, M, D, F, H = 2, 5, 6, 8, 12, 2


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention(**fields):
    return layers.MultiHeadAttention(D, H, **fields)


def noisy(variables, seed=1):
    """Adds noise to parameters, so that biases and scales are not zeros and ones."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), variables["params"])


def cache_of(max_length):
    """Returns a cache of two rows and three hypotheses, with five source positions."""
    key, value, *source = (jnp.zeros((2, length, 1, 4)) for length in (1, 1, 5, 5))
    return DecodingCache(
        layers=[KeyValueCache.empty(key, value, slots=3 * max_length, source=tuple(source))],
        source_mask=jnp.ones((2, 1, 1, 5), bool),
        ancestors=jnp.zeros((2, 3, max_length), jnp.int32),
        coverage=jnp.zeros((2, 3, 5)),
    )
