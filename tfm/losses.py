"""Cross-entropy with label smoothing (section 5.4) as a (sum, count) pair.

Sums and counts are added over gradient accumulation steps, devices and hosts before the one division, so that
a batch split unevenly has the same loss and gradient as the whole.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Float, Float32, Int, Shaped

from tfm.array_types import Array
from tfm.matmul import dot_general
from tfm.search import token_scores

SumAndCount = tuple[Float32[jax.Array, ""], Float32[jax.Array, ""]]


def smoothed_cross_entropy(
    logits: Float[Array, "*batch V"],
    labels: Int[Array, "*batch"],
    weights: Shaped[Array, "*batch"],
    *,
    smoothing: float,
) -> SumAndCount:
    """Cross-entropy against 1 - smoothing on the label and smoothing / (V - 1) on each other class.

    Args:
      logits: [..., V], any float dtype; computed in float32.
      labels: int [...].
      weights: [...]; 0 where the position is padding.
      smoothing: epsilon_ls in [0, 1); the paper's is 0.1.

    Returns:
      (sum, count): float32 scalars, the weighted sum of the losses in nats and the sum of the weights.
      `smoothing_entropy(smoothing, V)` is the lowest value that sum / count can reach.

    Raises:
      ValueError: other shapes, which could be broadcast to a loss that counts less than it sums, or a
        smoothing out of range.
    """
    if not logits.shape[:-1] == labels.shape == weights.shape:
        raise ValueError(
            "expected logits [..., V], labels [...] and weights [...], got shapes "
            f"{logits.shape}, {labels.shape} and {weights.shape}"
        )
    logits = logits.astype(jnp.float32)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    _, losses = _losses(logits, jax.nn.logsumexp(logits, axis=-1), label_logit, smoothing)
    return (losses * weights).sum(), jnp.sum(weights, dtype=jnp.float32)


def smoothing_entropy(smoothing: float, classes: int) -> float:
    """Entropy of the smoothed target in nats: subtract it to compare losses across smoothing values."""
    other = _other_probability(smoothing, classes)
    if smoothing == 0:
        return 0.0
    return -((1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(other))


def _other_probability(smoothing, classes):
    """The probability of each class but the label in the smoothed target.

    Raises:
      ValueError: a smoothing out of range, or no other class.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    if smoothing and classes < 2:
        raise ValueError(f"smoothing needs two classes, got {classes} for smoothing {smoothing}")
    return smoothing / (classes - 1) if smoothing else 0.0


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def fused_linear_cross_entropy(
    features: Float[Array, "B L D"],
    table: Float[Array, "V D"],
    labels: Int[Array, "B L"],
    weights: Shaped[Array, "B L"],
    smoothing: float,
    chunk_size: int,
) -> dict[str, SumAndCount]:
    """`smoothed_cross_entropy` of the logits `features @ table.T`, computed in chunks of positions.

    A custom VJP: the forward pass also computes the gradient of each chunk while it has the chunk's logits,
    so that the largest array is [chunk_size, V], and the backward pass only multiplies by a scalar.

    Args:
      features: [B, L, D], the decoder's output.
      table: [V, D], the embedding matrix.
      labels, weights: [B, L], as in `smoothed_cross_entropy`.
      smoothing: epsilon_ls.
      chunk_size: positions in a chunk, or B if that is more.

    Returns:
      A dict of (sum, count) pairs of float32 scalars: "loss"; "nll", the loss without smoothing; "accuracy",
      how often no other class has a larger logit than the label. Only "loss" has a gradient, with respect to
      `features` and `table`.
    """

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, _chunk_sums(table, chunk, smoothing)[0]), None

    sums, _ = jax.lax.scan(add, (0.0, 0.0, 0.0), _split(features, labels, weights, chunk_size))
    return _name_sums(sums, weights)


def _forward(features, table, labels, weights, smoothing, chunk_size):
    def add(carry, chunk):
        total, table_gradient = carry
        sums, logit_gradient = _chunk_sums(table, chunk, smoothing)
        logit_gradient = logit_gradient().astype(features.dtype)
        # One dimension of positions: where there are two, XLA first writes the gradient transposed.
        flat_gradient, flat_features = (x.reshape(-1, x.shape[-1]) for x in (logit_gradient, chunk[0]))
        table_gradient += _product(flat_gradient, flat_features, axes=(0, 0))
        gradient = _product(logit_gradient, table.astype(features.dtype), axes=(2, 0))
        return (jax.tree.map(jnp.add, total, sums), table_gradient), gradient.astype(features.dtype)

    start = ((0.0, 0.0, 0.0), jnp.zeros(table.shape, jnp.float32))
    chunks = _split(features, labels, weights, chunk_size)
    (sums, table_gradient), gradient = jax.lax.scan(add, start, chunks)
    return _name_sums(sums, weights), (_join(gradient, labels), table_gradient.astype(table.dtype))


def _backward(smoothing, chunk_size, gradients, cotangents):
    scale = cotangents["loss"][0]
    gradient, table_gradient = ((x * scale).astype(x.dtype) for x in gradients)
    return gradient, table_gradient, None, None


fused_linear_cross_entropy.defvjp(_forward, _backward)


def chunked_log_probabilities(
    features: Float[Array, "B L D"], table: Float[Array, "V D"], labels: Int[Array, "B L"], chunk_size: int
) -> Float32[jax.Array, "B L"]:
    """`tfm.search.token_scores` of the logits `features @ table.T`, computed in chunks of positions.

    Args:
      features, table, labels, chunk_size: as in `fused_linear_cross_entropy`.

    Returns:
      float32 [B, L], the log-probability of each label.
    """

    def score(chunk):
        features, labels, _ = chunk
        return token_scores(_logits(table, features), labels)

    chunks = _split(features, labels, jnp.ones(labels.shape), chunk_size)
    return _join(jax.lax.map(score, chunks), labels)


def _split(features, labels, weights, chunk_size):
    """Features [N, B, l, D], labels and weights [N, B, l]: N chunks of the length, padded with weight 0.

    Chunks have all rows of the batch, so that a batch that is sharded over devices is not resharded.
    """
    rows, length = labels.shape
    chunk_length = min(max(chunk_size // rows, 1), length)
    missing = -length % chunk_length

    def split(x):
        padded = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(rows, -1, chunk_length, *x.shape[2:]), 1, 0)

    return split(features), split(labels), split(weights.astype(jnp.float32))


def _join(chunks, labels):
    """The inverse of `_split` for results [N, B, l, ...]: [B, L, ...] for labels [B, L]."""
    rows, length = labels.shape
    return jnp.moveaxis(chunks, 0, 1).reshape(rows, -1, *chunks.shape[3:])[:, :length]


def _logits(table, features):
    """float32 [B, l, V], of a product in the dtype of the features."""
    return _product(features, table.astype(features.dtype), axes=(2, 1))


def _product(x, y, axes):
    """float32; sums over one axis of x and one of y."""
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return dot_general(x, y, numbers, max_skinny_rows=0, preferred_element_type=jnp.float32)


def _chunk_sums(table, chunk, smoothing):
    """Sums of loss, nll and correct labels of one chunk, and a function: the gradient of its logits."""
    features, labels, weights = chunk
    logits = _logits(table, features)
    classes = logits.shape[-1]
    other = _other_probability(smoothing, classes)
    max_logit = logits.max(-1)
    exponentials = jnp.exp(logits - max_logit[..., None])
    z = exponentials.sum(-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    nll, loss = _losses(logits, max_logit + jnp.log(z), label_logit, smoothing)

    def gradient():
        difference = exponentials / z[..., None] - other
        is_label = jnp.arange(classes) == labels[..., None]
        return jnp.where(is_label, difference - (1 - smoothing - other), difference) * weights[..., None]

    correct = (label_logit >= max_logit).astype(jnp.float32)
    return tuple((x * weights).sum() for x in (loss, nll, correct)), gradient


def _losses(logits, log_z, label_logit, smoothing):
    """The losses [...] without and with smoothing, of logits [..., V] and their log sum exp."""
    nll = log_z - label_logit
    if not smoothing:
        return nll, nll
    classes = logits.shape[-1]
    other = _other_probability(smoothing, classes)
    # sum_v q_v (log_z - logit_v): q is `other`, and 1 - smoothing - other more on the label
    return nll, (1 - smoothing - other) * nll + other * (classes * log_z - logits.sum(-1))


def _name_sums(sums, weights):
    count = jnp.sum(weights, dtype=jnp.float32)
    return {name: (total, count) for name, total in zip(("loss", "nll", "accuracy"), sums, strict=True)}
