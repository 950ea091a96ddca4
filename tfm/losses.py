"""Cross-entropy with label smoothing (section 5.4) as a pair of sum and count, and log-probabilities.

Sums and counts are added over micro-batches, devices and hosts, and divided once. An unevenly divided batch
therefore has the same loss and gradient as the whole batch.

Labels are class ids from 0 to V - 1. Where the weight is 0, a label may have any value, for example -100.
Other invalid labels raise a ValueError. Inside `jax.jit` and similar transformations, values are unknown, and
invalid labels turn the sum and its gradient into NaN instead.

Shape letters: B batch, L length, D model width, V classes (vocabulary); `...` are batch axes.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Float32, Integer, Shaped

from tfm.array_types import Array, check_arrays
from tfm.devices.matmul import dot_general

SumAndCount = tuple[Float32[jax.Array, ""], Float32[jax.Array, ""]]
Sums = tuple[jax.Array, jax.Array, jax.Array]  # of loss, nll and accuracy
Chunk = tuple[jax.Array, jax.Array, jax.Array]  # features [B, l, D], labels [B, l] and weights [B, l]


@check_arrays
def smoothed_cross_entropy(
    logits: Float[Array, "*batch V"],
    labels: Integer[Array, "*batch"],
    weights: Shaped[Array, "*batch"],
    *,
    smoothing: float,
) -> SumAndCount:
    """Computes the cross-entropy with 1 - smoothing on the label and smoothing / (V - 1) on other classes.

    Args:
      logits: [..., V] of any float type. The loss is computed in float32.
      labels: integers [...].
      weights: [...], 0 for padding.
      smoothing: epsilon_ls, at least 0 and below 1; 0.1 in the paper.

    Returns:
      (sum, count): float32 scalars, the weighted sum of the losses in nats and the sum of the weights. The
      minimum of sum / count is `smoothing_entropy(smoothing, V)`.

    Raises:
      ValueError: if shapes do not fit, a label is not a class, or `smoothing` is out of range.
    """
    count = jnp.sum(weights, dtype=jnp.float32)
    labels, weights = _check_labels(labels, weights, logits.shape[-1])
    logits = jnp.asarray(logits, jnp.float32)
    label_logit = _label_logits(logits, labels)
    losses, _ = _losses(logits, jax.nn.logsumexp(logits, axis=-1), label_logit, smoothing)
    return (losses * weights).sum(), count


def smoothing_entropy(smoothing: float, classes: int) -> float:
    """Returns the entropy of the smoothed target in nats: the lowest loss, to subtract in comparisons.

    Raises:
      ValueError: if `smoothing` is not at least 0 and below 1, or is above 0 for fewer than two classes.
    """
    other = _other_probability(smoothing, classes)
    if smoothing == 0:
        return 0.0
    return -((1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(other))


@check_arrays
def fused_linear_cross_entropy(
    features: Float[Array, "B L D"],
    table: Float[Array, "V D"],
    labels: Integer[Array, "B L"],
    weights: Shaped[Array, "B L"],
    smoothing: float,
    chunk_size: int,
) -> dict[str, SumAndCount]:
    """Computes `smoothed_cross_entropy` of the logits `features @ table.T` in chunks of positions.

    The largest array is [chunk_size, V], because the forward pass also computes the gradient of each chunk
    while it has the logits of the chunk. The backward pass only multiplies the gradient by a scalar.

    Args:
      features: [B, L, D], the output of the decoder.
      table: [V, D], the embedding matrix.
      labels, weights, smoothing: see `smoothed_cross_entropy`; [B, L].
      chunk_size: maximum number of positions in a chunk, at least 1. A chunk contains an equal number of
        positions of every row, at least one, so it has B positions if B is larger than `chunk_size`.

    Returns:
      A dict of (sum, count) pairs of float32 scalars. "loss" is the smoothed loss, and the only sum with a
      gradient, with respect to `features` and `table`. "nll" is the loss without smoothing. "accuracy" counts
      labels that no other class exceeds, so a label that ties with another class counts as correct.

    Raises:
      ValueError: as in `smoothed_cross_entropy`, or if `chunk_size` is below 1.
    """
    count = jnp.sum(weights, dtype=jnp.float32)
    labels, weights = _check_labels(labels, weights, table.shape[0])
    sums = _fused_sums(features, jnp.asarray(table), labels, weights, smoothing, chunk_size)
    return {name: (total, count) for name, total in zip(("loss", "nll", "accuracy"), sums, strict=True)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _fused_sums(features, table, labels, weights, smoothing, chunk_size):
    """Computes the sums of `fused_linear_cross_entropy` where no gradient is needed."""

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, _chunk_sums(table, chunk, smoothing)[0]), None

    return jax.lax.scan(add, (0.0, 0.0, 0.0), _split(features, labels, weights, chunk_size))[0]


def _forward(features, table, labels, weights, smoothing, chunk_size):
    """Computes the sums and the gradients of the loss with respect to features and table."""

    def add(carry, chunk):
        total, table_gradient = carry
        sums, make_gradient = _chunk_sums(table, chunk, smoothing)
        logit_gradient = make_gradient().astype(features.dtype)
        # With two axes of positions, XLA would first write the gradient transposed.
        flat_gradient, flat_features = (x.reshape(-1, x.shape[-1]) for x in (logit_gradient, chunk[0]))
        table_gradient += _product(flat_gradient, flat_features, axes=(0, 0))
        gradient = _product(logit_gradient, table.astype(features.dtype), axes=(2, 0))
        return (jax.tree.map(jnp.add, total, sums), table_gradient), gradient.astype(features.dtype)

    start = ((0.0, 0.0, 0.0), jnp.zeros(table.shape, jnp.float32))
    chunks = _split(features, labels, weights, chunk_size)
    (sums, table_gradient), gradient = jax.lax.scan(add, start, chunks)
    return sums, (_join(gradient, labels), table_gradient.astype(table.dtype))


def _backward(smoothing, chunk_size, gradients, cotangents):
    """Multiplies the gradients by the cotangent of the loss."""
    gradient, table_gradient = ((x * cotangents[0]).astype(x.dtype) for x in gradients)
    return gradient, table_gradient, None, None


_fused_sums.defvjp(_forward, _backward)


@check_arrays
def dropout_divergence(
    features: Float[Array, "B L D"],
    table: Float[Array, "V D"],
    weights: Shaped[Array, "B L"],
    chunk_size: int,
) -> SumAndCount:
    """Computes how much the predictions of two passes differ (R-Drop, Liang et al. 2021, equation 2).

    The divergence of a position is the mean of the Kullback-Leibler divergences in both directions.

    Args:
      features: [B, L, D] with an even B. Rows 2 i and 2 i + 1 contain the two passes over a row. Such
        neighbours stay on the same device, however the rows are divided.
      table: [V, D], the embedding matrix.
      weights: [B, L], 0 for padding, equal for both passes.
      chunk_size: see `fused_linear_cross_entropy`.

    Returns:
      (sum, count) over the positions of one pass: float32 scalars, the sum in nats.

    Raises:
      ValueError: if shapes do not fit, or if `chunk_size` is below 1.
    """
    table, weights = jnp.asarray(table), jnp.asarray(weights, jnp.float32)

    @jax.checkpoint
    def diverge(chunk):
        features, _, weights = chunk
        log_probabilities = jax.nn.log_softmax(_logits(table, features))
        one, other = log_probabilities[::2], log_probabilities[1::2]
        divergences = ((jnp.exp(one) - jnp.exp(other)) * (one - other)).sum(-1) / 2
        return (divergences * weights[::2]).sum()

    chunks = _split(features, weights, weights, chunk_size)
    return jax.lax.map(diverge, chunks).sum(), weights.sum() / 2


@check_arrays
def chunked_log_probabilities(
    features: Float[Array, "B L D"],
    table: Float[Array, "V D"],
    labels: Integer[Array, "B L"],
    chunk_size: int,
) -> Float32[jax.Array, "B L"]:
    """Computes `token_scores` of the logits `features @ table.T` in chunks of positions.

    The arguments are as in `fused_linear_cross_entropy`. Returns the log-probability of each label, [B, L].

    Raises:
      ValueError: if shapes do not fit, a label is not a class, or `chunk_size` is below 1. Inside `jax.jit`,
        a label that is not a class has the result NaN instead.
    """
    table = jnp.asarray(table)
    labels, ones = _check_labels(labels, jnp.ones(labels.shape), len(table))

    def score(chunk):
        features, labels, _ = chunk
        return token_scores(_logits(table, features), labels)

    return _join(jax.lax.map(score, _split(features, labels, ones, chunk_size)), labels) * ones


def log_z(logits: jax.Array) -> jax.Array:
    """Computes log(sum(exp(logits))) over the vocabulary: [..., V] -> float32 [...]."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def log_probability(logit: jax.Array, log_z: jax.Array) -> jax.Array:
    """Returns the log-probability logit - log_z in float32.

    For a logit of -inf the result is -inf, even if all logits and therefore `log_z` are -inf. If `log_z` is
    NaN, the result is NaN, because logits of NaN must never look like impossible tokens.
    """
    logit = logit.astype(jnp.float32)
    return jnp.where((logit == -jnp.inf) & ~jnp.isnan(log_z), -jnp.inf, logit - log_z)


def token_scores(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Computes log-probabilities of tokens: logits [..., L, V], targets int [..., L] -> float32 [..., L]."""
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_probability(target_logit, log_z(logits))


def _check_labels(labels: Array, weights: Array, classes: int) -> tuple[jax.Array, jax.Array]:
    """Returns labels and float32 weights that replace invalid labels by 0 and their weights by NaN.

    A weight of 0 stays 0, so the label does not matter. The function raises a ValueError if an invalid label
    has a weight and this process knows the values of the arrays.
    """
    is_class = (labels >= 0) & (labels < classes)
    is_valid = is_class | (weights == 0)
    is_known = not isinstance(is_valid, jax.core.Tracer) and getattr(is_valid, "is_fully_addressable", True)
    if is_known and not is_valid.all():
        invalid = labels[~is_valid][0]
        raise ValueError(f"Expected labels from 0 to {classes - 1}, or with weight 0, got {invalid}.")
    weights = jnp.where(is_valid, jnp.asarray(weights, jnp.float32), jnp.nan)
    return jnp.where(is_class, labels, 0), weights


def _other_probability(smoothing: float, classes: int) -> float:
    """Returns the probability of each other class in the smoothed target, or raises a ValueError."""
    if not 0 <= smoothing < 1:
        raise ValueError(f"Expected smoothing to be at least 0 and below 1, got {smoothing}.")
    if smoothing and classes < 2:
        raise ValueError(f"Expected at least two classes for smoothing {smoothing}, got {classes}.")
    return smoothing / (classes - 1) if smoothing else 0.0


def _split(features: Array, labels: Array, weights: jax.Array, chunk_size: int) -> Chunk:
    """Returns N chunks of features [N, B, l, D], labels and weights [N, B, l], padded with weight 0.

    A chunk contains all rows of the batch, so that a batch that is sharded over devices is not resharded.
    """
    if chunk_size < 1:
        raise ValueError(f"Expected chunk_size to be at least 1, got {chunk_size}.")
    rows, length = labels.shape
    chunk_length = max(min(chunk_size // max(rows, 1), length), 1)
    chunks = -(-length // chunk_length)

    def split(x):
        padded = jnp.pad(x, [(0, 0), (0, chunks * chunk_length - length), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(rows, chunks, chunk_length, *x.shape[2:]), 1, 0)

    return split(features), split(labels), split(weights)


def _join(chunks: jax.Array, labels: Array) -> jax.Array:
    """Returns [B, L, ...] for labels [B, L] from chunks [N, B, l, ...]; the inverse of `_split`."""
    number, rows, chunk_length = chunks.shape[:3]
    joined = jnp.moveaxis(chunks, 0, 1).reshape(rows, number * chunk_length, *chunks.shape[3:])
    return joined[:, : labels.shape[1]]


def _logits(table: jax.Array, features: jax.Array) -> jax.Array:
    """Returns float32 logits [B, l, V] from a product in the dtype of the features."""
    return _product(features, table.astype(features.dtype), axes=(2, 1))


def _product(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Returns the float32 product of two arrays, summed over one axis of each."""
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return dot_general(x, y, numbers, preferred_element_type=jnp.float32)


def _chunk_sums(table: jax.Array, chunk: Chunk, smoothing: float) -> tuple[Sums, Callable[[], jax.Array]]:
    """Returns the weighted sums of a chunk, and a function that computes the gradient.

    The gradient is the gradient of the summed loss with respect to the logits, float32 [B, l, V]. Only
    training calls the function.
    """
    features, labels, weights = chunk
    logits = _logits(table, features)
    classes = logits.shape[-1]
    other = _other_probability(smoothing, classes)
    max_logit = logits.max(-1)
    exponentials = jnp.exp(logits - max_logit[..., None])
    z = exponentials.sum(-1)
    label_logit = _label_logits(logits, labels)
    loss, nll = _losses(logits, max_logit + jnp.log(z), label_logit, smoothing)
    correct = (label_logit >= max_logit).astype(jnp.float32)

    def make_gradient():
        difference = exponentials / z[..., None] - other
        is_label = jnp.arange(classes) == labels[..., None]
        return jnp.where(is_label, difference - (1 - smoothing - other), difference) * weights[..., None]

    return ((loss * weights).sum(), (nll * weights).sum(), (correct * weights).sum()), make_gradient


def _label_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the logit of each label [...] from logits [..., V]."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _losses(
    logits: jax.Array, log_z: jax.Array, label_logit: jax.Array, smoothing: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the losses [...] with and without smoothing, from logits [..., V] and their log sum exp."""
    nll = log_z - label_logit
    if not smoothing:
        return nll, nll
    classes = logits.shape[-1]
    other = _other_probability(smoothing, classes)
    # sum_v q_v (log_z - logit_v), where q is `other`, plus 1 - smoothing - other for the label
    return (1 - smoothing - other) * nll + other * (classes * log_z - logits.sum(-1)), nll
