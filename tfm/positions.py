"""Sinusoidal positional encoding (section 3.5)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Num

from tfm.array_types import Array

LAYOUTS = ("interleaved", "concatenated")
MAX_TIMESCALE = 10_000.0


def sinusoidal_encoding(
    positions: Num[Array, "*shape"], features: int, *, layout: str = "interleaved"
) -> Float32[Array, "*shape {features}"]:
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
