"""Positions as pure functions: the sinusoids of section 3.5, and what later work puts in their place.

Shape letters: L query length, M key length, H heads, K key features; `...` are batch axes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Num

from tfm.array_types import Array

LAYOUTS = ("interleaved", "concatenated")
MAX_TIMESCALE = 10_000.0


def sinusoidal_encoding(
    positions: Num[Array, "*shape"], features: int, *, layout: str = "interleaved"
) -> Float32[jax.Array, "*shape {features}"]:
    """Sines and cosines whose wavelengths run geometrically from 2 pi to 10000 * 2 pi.

    Computed from the position itself, so there is no table and no maximum length.

    Args:
      positions: integers or floats of any shape [...]; counted from 0.
      features: D, even.
      layout: "interleaved" is the paper's: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same).
        "concatenated" is that of the authors' code: [all sines | all cosines] with exponent i / (D/2 - 1).

    Returns:
      float32 [..., D].

    Raises:
      ValueError: odd `features` or unknown `layout`.
    """
    if features % 2:
        raise ValueError(f"features must be even: each frequency has a sine and a cosine; got {features}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}")
    half = features // 2
    index = np.arange(half)
    exponent = 2 * index / features if layout == "interleaved" else index / max(half - 1, 1)
    frequencies = jnp.asarray(MAX_TIMESCALE**-exponent, jnp.float32)
    angles = jnp.asarray(positions, jnp.float32)[..., None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    if layout == "concatenated":
        return jnp.concatenate([sine, cosine], axis=-1)
    return jnp.stack([sine, cosine], axis=-1).reshape(*angles.shape[:-1], features)


def rotary_encoding(
    x: Float[Array, "*batch L H K"], positions: Num[Array, "*#batch L"]
) -> Float[jax.Array, "*batch L H K"]:
    """Queries or keys, each pair of features rotated by an angle that grows with the position.

    RoFormer (Su et al. 2021), equation 34: features 2i and 2i + 1 turn by position / 10000^(2i/K). The
    product of a query and a key then depends on their distance alone.

    Args:
      x: [..., L, H, K], K even.
      positions: [..., L], counted from 0.

    Returns:
      [..., L, H, K] in the dtype of `x`, rotated in float32.

    Raises:
      ValueError: odd K.
    """
    features = x.shape[-1]
    if features % 2:
        raise ValueError(f"key features must be even: rotary positions rotate pairs; got {features}")
    frequencies = jnp.asarray(MAX_TIMESCALE ** -(np.arange(0, features, 2) / features), jnp.float32)
    angles = jnp.asarray(positions, jnp.float32)[..., None, None] * frequencies  # [..., L, 1, K / 2]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


def relative_distance(
    query_positions: Int[Array, "*#batch L"], key_positions: Int[Array, "*#batch M"]
) -> Int[jax.Array, "*#batch L M"]:
    """[..., L], [..., M] -> [..., L, M]: the key's position minus the query's, negative for earlier keys."""
    return jnp.asarray(key_positions)[..., None, :] - jnp.asarray(query_positions)[..., :, None]


def alibi_slopes(heads: int) -> np.ndarray:
    """float64 [H], of attention with linear biases (Press et al. 2022), section 3.

    2^(-8/H), 2^(-16/H), ..., 2^-8 for H that is a power of two. For another H, as in the authors' code, those
    of the next smaller power, and then every second one of the next larger.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([slopes, more[: heads - power]])


def alibi_bias(
    query_positions: Int[Array, "*#batch L"], key_positions: Int[Array, "*#batch M"], heads: int
) -> Float32[jax.Array, "*#batch {heads} L M"]:
    """[..., L], [..., M] -> [..., H, L, M]: minus the distance, times each head's slope.

    Press et al. have it in a decoder, where all keys are earlier; later keys count alike here.
    """
    distance = jnp.abs(relative_distance(query_positions, key_positions))[..., None, :, :]
    return -jnp.asarray(alibi_slopes(heads), jnp.float32)[:, None, None] * distance


def relative_buckets(
    distance: Int[Array, "*shape"], *, buckets: int = 32, max_distance: int = 128, bidirectional: bool
) -> Int32[jax.Array, "*shape"]:
    """The bucket of each relative distance: T5 (Raffel et al. 2020), section 2.1.

    Half of the buckets of a direction hold one distance each; those beyond grow logarithmically, and the last
    holds all from `max_distance` on.

    Args:
      distance: [...], see `relative_distance`.
      buckets: how many there are; a multiple of 2, of 4 where bidirectional.
      max_distance: above half of the buckets of a direction.
      bidirectional: earlier keys, and the query's own position, have the first half of the buckets, later
        keys the second. When False later keys are in bucket 0, where a causal mask excludes them.

    Returns:
      int32 [...], from 0 to `buckets` - 1.

    Raises:
      ValueError: numbers of buckets or distances that do not fit together.
    """
    each = buckets // 2 if bidirectional else buckets
    exact = each // 2
    if buckets % (4 if bidirectional else 2) or not 0 < exact < max_distance:
        raise ValueError(
            f"buckets must divide into halves, and max_distance be above {exact}: got {buckets} and "
            f"{max_distance}"
        )
    starts = jnp.asarray([*range(1, exact), *_logarithmic_starts(exact, each, max_distance)], jnp.int32)
    how_far = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    bucket = jnp.searchsorted(starts, how_far, side="right").astype(jnp.int32)
    return bucket + each * (distance > 0) if bidirectional else bucket


def _logarithmic_starts(exact, each, max_distance):
    """The smallest distance of each bucket from number `exact` on, in integers, which do not round.

    Bucket exact + j begins at the smallest n with (n / exact)^s >= (max_distance / exact)^j where s is
    each - exact.
    """
    steps, n = each - exact, exact
    for j in range(steps):
        while n**steps * exact**j < max_distance**j * exact**steps:
            n += 1
        yield n
