"""Positions as pure functions: the sinusoids of section 3.5, and the relative positions of later papers.

Shape letters: L query length, M key length, H heads, K key features; `...` are batch axes.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int32, Integer, Real

from tfm.array_types import Array, check_arrays

LAYOUTS = ("interleaved", "concatenated")
MAX_TIMESCALE = 10_000.0
QueryPositions = Integer[Array, "*#batch L"]
KeyPositions = Integer[Array, "*#batch M"]


@check_arrays
def sinusoidal_encoding(
    positions: Real[Array, "*shape"], features: int, *, layout: str = "interleaved"
) -> Float32[jax.Array, "*shape {features}"]:
    """Computes sines and cosines whose wavelengths grow geometrically from 2 pi to 10000 * 2 pi.

    There is no table of positions and therefore no maximum length.

    Args:
      positions: integers or floats of any shape [...], counted from 0.
      features: D, an even number.
      layout: "interleaved" is the paper's order: PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i+1) is
        the cosine of the same angle. "concatenated" is the order of the authors' code: all sines before all
        cosines, with the exponent i / (D/2 - 1).

    Returns:
      float32 [..., D].

    Raises:
      ValueError: if `features` is odd or `layout` is unknown.
    """
    if features % 2:
        raise ValueError(f"Expected features to be even (a sine and a cosine per frequency), got {features}.")
    if layout not in LAYOUTS:
        raise ValueError(f"Expected layout to be one of {LAYOUTS}, got {layout!r}.")
    half = features // 2
    index = np.arange(half)
    exponent = 2 * index / features if layout == "interleaved" else index / max(half - 1, 1)
    frequencies = jnp.asarray(MAX_TIMESCALE**-exponent, jnp.float32)
    angles = jnp.asarray(positions, jnp.float32)[..., None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    if layout == "concatenated":
        return jnp.concatenate([sine, cosine], axis=-1)
    return jnp.stack([sine, cosine], axis=-1).reshape(*angles.shape[:-1], features)


@check_arrays
def rotary_encoding(
    x: Float[Array, "*batch L H K"], positions: Real[Array, "*#batch L"]
) -> Float[jax.Array, "*batch L H K"]:
    """Rotates each pair of features of queries or keys by an angle that is proportional to the position.

    RoFormer (Su et al. 2021), equation 34: features 2i and 2i + 1 turn by position / 10000^(2i/K). The
    product of a rotated query and a rotated key depends on the positions only through their distance.

    Args:
      x: [..., L, H, K] with an even K.
      positions: [..., L], counted from 0.

    Returns:
      [..., L, H, K] in the dtype of `x`. The rotation is computed in float32.

    Raises:
      ValueError: if K is odd.
    """
    features = x.shape[-1]
    if features % 2:
        raise ValueError(f"Expected x to have an even number of features to rotate in pairs, got {features}.")
    frequencies = jnp.asarray(MAX_TIMESCALE ** -(np.arange(0, features, 2) / features), jnp.float32)
    angles = jnp.asarray(positions, jnp.float32)[..., None, None] * frequencies  # [..., L, 1, K / 2]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


@check_arrays
def relative_distance(
    query_positions: QueryPositions, key_positions: KeyPositions
) -> Int32[jax.Array, "*#batch L M"]:
    """Returns the position of each key minus the position of each query, int32 [..., L, M].

    Distances of earlier keys are negative, also if the positions [..., L] and [..., M] are unsigned.
    """
    query_positions, key_positions = (jnp.asarray(x, jnp.int32) for x in (query_positions, key_positions))
    return key_positions[..., None, :] - query_positions[..., :, None]


def alibi_slopes(heads: int) -> np.ndarray:
    """Returns the slope of each head, float64 [H]: ALiBi (Press et al. 2022), section 3.

    The slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8 if H is a power of two. For any other H, as in the authors'
    code, the slopes for the next smaller power are followed by every second slope for the next larger power.

    Raises:
      ValueError: if `heads` is below 1.
    """
    if heads < 1:
        raise ValueError(f"Expected heads to be at least 1, got {heads}.")
    power = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    more_slopes = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([slopes, more_slopes[: heads - power]])


@check_arrays
def alibi_bias(
    query_positions: QueryPositions, key_positions: KeyPositions, heads: int
) -> Float32[jax.Array, "*#batch {heads} L M"]:
    """Returns the bias of ALiBi, float32 [..., H, L, M]: minus the distance, times the slope of each head.

    Press et al. use it in a decoder, where all keys are earlier. Here, later keys count in the same way.
    """
    distance = jnp.abs(relative_distance(query_positions, key_positions))[..., None, :, :]
    return -jnp.asarray(alibi_slopes(heads), jnp.float32)[:, None, None] * distance


@check_arrays
def relative_buckets(
    distance: Integer[Array, "*shape"], *, buckets: int = 32, max_distance: int = 128, bidirectional: bool
) -> Int32[jax.Array, "*shape"]:
    """Returns the bucket of each relative distance: T5 (Raffel et al. 2020), section 2.1.

    The first half of the buckets of a direction contain one distance each. The other buckets grow
    logarithmically. The last bucket also contains all distances from `max_distance` on.

    Args:
      distance: [...], see `relative_distance`.
      buckets: number of buckets, a multiple of 2, or of 4 if bidirectional.
      max_distance: must be above half of the buckets of a direction.
      bidirectional: if True, the first half of the buckets is for the query's own position and earlier keys,
        and the second half is for later keys. If False, later keys have bucket 0; a causal mask hides them.

    Returns:
      int32 [...], from 0 to `buckets` - 1.

    Raises:
      ValueError: if `buckets` is not a positive multiple of 2 (4 if bidirectional), or `max_distance` is not
        above half of the buckets of a direction.
    """
    divisor = 4 if bidirectional else 2
    if buckets < divisor or buckets % divisor:
        raise ValueError(f"Expected buckets to be a positive multiple of {divisor}, got {buckets}.")
    direction_buckets = buckets // 2 if bidirectional else buckets
    exact = direction_buckets // 2
    if max_distance <= exact:
        raise ValueError(
            f"Expected max_distance to be above {exact} for {buckets} buckets, got {max_distance}."
        )
    starts = [*range(1, exact), *_logarithmic_starts(exact, direction_buckets - exact, max_distance)]
    distance = jnp.asarray(distance, jnp.int32)
    absolute = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    bucket = jnp.searchsorted(jnp.asarray(starts, jnp.int32), absolute, side="right").astype(jnp.int32)
    return bucket + direction_buckets * (distance > 0) if bidirectional else bucket


def _logarithmic_starts(exact: int, steps: int, max_distance: int) -> Iterator[int]:
    """Yields the smallest distance of each of the `steps` logarithmic buckets after `exact` other buckets.

    Bucket exact + j begins at the smallest n with (n / exact)^steps >= (max_distance / exact)^j. Products of
    integers are compared, because they do not round.
    """
    n = exact
    for j in range(steps):
        while n**steps * exact**j < max_distance**j * exact**steps:
            n += 1
        yield n
