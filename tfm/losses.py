"""Cross-entropy with label smoothing (section 5.4) as a (sum, count) pair.

Sums and counts are added over micro-batches, devices and hosts before the one division, so that a batch
split unevenly has the same loss and gradient as the whole.
"""

import functools
import math

import jax
import jax.numpy as jnp

from tfm import search


def smoothed_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, *, smoothing: float
) -> tuple[jax.Array, jax.Array]:
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
    weights = weights.astype(jnp.float32)
    return (losses * weights).sum(), weights.sum()


def _losses(logits, normaliser, label_logit, smoothing):
    """The losses [...] without and with smoothing, of logits [..., V] and their log sum exp."""
    nll = normaliser - label_logit
    if smoothing == 0:
        return nll, nll
    classes = logits.shape[-1]
    other = _other_share(smoothing, classes)
    # sum_v q_v (normaliser - logit_v): q is `other`, and 1 - smoothing - other more on the label
    return nll, (1 - smoothing - other) * nll + other * (classes * normaliser - logits.sum(-1))


def _other_share(smoothing, classes):
    """What of the smoothed target each other class has.

    Raises:
      ValueError: a smoothing out of range, or no other class.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    if smoothing and classes < 2:
        raise ValueError(f"smoothing needs two classes, got {classes} for smoothing {smoothing}")
    return smoothing / (classes - 1) if smoothing else 0.0


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def projected_cross_entropy(
    features: jax.Array,
    table: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    smoothing: float,
    chunk: int,
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """`smoothed_cross_entropy` of the logits `features @ table.T`, which are never there as a whole.

    The gradient of each chunk of positions is made while its logits are at hand, so that the largest array is
    [chunk, V], and the backward pass has nothing left to do but to scale.

    Args:
      features: [B, L, D], the decoder's output.
      table: [V, D], the embedding matrix.
      labels, weights: [B, L], as in `smoothed_cross_entropy`.
      smoothing: epsilon_ls.
      chunk: positions whose logits are held at once, or B if that is more.

    Returns:
      A dict of (sum, count) pairs of float32 scalars: "loss"; "nll", the loss without smoothing; "accuracy",
      how often no other class has a larger logit than the label. Only "loss" has a gradient, with respect to
      `features` and `table`.
    """

    def add(total, block):
        return jax.tree.map(jnp.add, total, _block_sums(table, *block, smoothing)[0]), None

    sums, _ = jax.lax.scan(add, (0.0, 0.0, 0.0), _blocks(features, labels, weights, chunk))
    return _named(sums, weights)


def _forward(features, table, labels, weights, smoothing, chunk):
    def add(carry, block):
        total, table_gradient = carry
        sums, logit_gradient = _block_sums(table, *block, smoothing)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        logit_gradient = logit_gradient().astype(features.dtype)
        table_gradient += product("blv,bld->vd", logit_gradient, block[0])
        gradient = product("blv,vd->bld", logit_gradient, table.astype(features.dtype)).astype(features.dtype)
        return (jax.tree.map(jnp.add, total, sums), table_gradient), gradient

    start = ((0.0, 0.0, 0.0), jnp.zeros(table.shape, jnp.float32))
    (sums, table_gradient), gradient = jax.lax.scan(add, start, _blocks(features, labels, weights, chunk))
    return _named(sums, weights), (_joined(gradient, labels), table_gradient.astype(table.dtype))


def _backward(smoothing, chunk, gradients, cotangents):
    scale = cotangents["loss"][0]
    gradient, table_gradient = ((x * scale).astype(x.dtype) for x in gradients)
    return gradient, table_gradient, None, None


projected_cross_entropy.defvjp(_forward, _backward)


def projected_log_probabilities(
    features: jax.Array, table: jax.Array, labels: jax.Array, chunk: int
) -> jax.Array:
    """`tfm.search.token_scores` of the logits `features @ table.T`, which are never there as a whole.

    Args:
      features, table, labels, chunk: as of `projected_cross_entropy`.

    Returns:
      float32 [B, L], the log-probability of each label.
    """

    def score(block):
        features, labels, _ = block
        return search.token_scores(_logits(table, features), labels)

    blocks = _blocks(features, labels, jnp.ones(labels.shape), chunk)
    return _joined(jax.lax.map(score, blocks), labels)


def _blocks(features, labels, weights, chunk):
    """Features [N, B, l, D], labels and weights [N, B, l]: N pieces of the length, filled up with weight 0.

    Rows stay whole, so that a batch that is split over devices stays where it is.
    """
    rows, length = labels.shape
    piece = min(max(chunk // rows, 1), length)
    missing = -length % piece

    def split(x):
        padded = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(rows, -1, piece, *x.shape[2:]), 1, 0)

    return split(features), split(labels), split(weights.astype(jnp.float32))


def _joined(blocks, labels):
    """What each of `_blocks` was turned into, [N, B, l, ...], as [B, L, ...] like labels [B, L]."""
    rows, length = labels.shape
    return jnp.moveaxis(blocks, 0, 1).reshape(rows, -1, *blocks.shape[3:])[:, :length]


def _logits(table, features):
    """float32 [B, l, V], of a product in the dtype of the features."""
    return jnp.einsum(
        "bld,vd->blv", features, table.astype(features.dtype), preferred_element_type=jnp.float32
    )


def _block_sums(table, features, labels, weights, smoothing):
    """Sums of loss, nll and hits of one block, and a function that gives the gradient of its logits."""
    logits = _logits(table, features)
    classes = logits.shape[-1]
    other = _other_share(smoothing, classes)
    largest = logits.max(-1)
    exponentials = jnp.exp(logits - largest[..., None])
    normaliser = exponentials.sum(-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    nll, loss = _losses(logits, largest + jnp.log(normaliser), label_logit, smoothing)

    def gradient():
        share = exponentials / normaliser[..., None] - other
        on_label = jnp.arange(classes) == labels[..., None]
        return jnp.where(on_label, share - (1 - smoothing - other), share) * weights[..., None]

    hits = (label_logit >= largest).astype(jnp.float32)
    return tuple((x * weights).sum() for x in (loss, nll, hits)), gradient


def _named(sums, weights):
    count = weights.astype(jnp.float32).sum()
    return {name: (total, count) for name, total in zip(("loss", "nll", "accuracy"), sums, strict=True)}


def smoothing_entropy(smoothing: float, classes: int) -> float:
    """Entropy of the smoothed target in nats: subtract it to compare losses across smoothing values."""
    if smoothing == 0:
        return 0.0
    other = _other_share(smoothing, classes)
    return -((1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(other))
