"""Cross-entropy with label smoothing (section 5.4) as a (sum, count) pair.

Sums and counts are added over micro-batches, devices and hosts before the one division, so that a batch
split unevenly has the same loss and gradient as the whole.
"""

import math

import jax
import jax.numpy as jnp


def smoothed_cross_entropy(logits, labels, weights, *, smoothing):
    """Cross-entropy against 1 - smoothing on the label and smoothing / (V - 1) on each other class.

    Args:
      logits: [..., V], any float dtype; computed in float32.
      labels: int [...].
      weights: [...]; 0 where the position is padding.
      smoothing: epsilon_ls in [0, 1); the paper's is 0.1.

    Returns:
      (sum, count): float32 scalars, the weighted sum of the losses in nats and the sum of the weights.
      `smoothing_entropy(smoothing, V)` is the lowest value that sum / count can reach.
    """
    logits = logits.astype(jnp.float32)
    classes = logits.shape[-1]
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = normaliser - label_logit
    if smoothing:
        other = smoothing / (classes - 1)
        # sum_v q_v (normaliser - logit_v): q is `other`, and 1 - smoothing - other more on the label
        losses = (1 - smoothing - other) * losses + other * (classes * normaliser - logits.sum(-1))
    weights = weights.astype(jnp.float32)
    return (losses * weights).sum(), weights.sum()


def smoothing_entropy(smoothing, classes):
    """Entropy of the smoothed target in nats: subtract it to compare losses across smoothing values."""
    if smoothing == 0:
        return 0.0
    other = smoothing / (classes - 1)
    return -((1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(other))
