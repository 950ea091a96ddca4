"""Reductions of attention as pure NumPy functions: words, head mean, rollout, norms of values.

Shape letters: N layers, H heads, L queries, M keys, V value features, D model features.
"""

import itertools
from collections.abc import Sequence

import numpy as np


def merge_words(weights: np.ndarray, queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
    """Merges weights between pieces into weights between words (Clark et al. 2019, section 4.1).

    Computes the mean over the pieces of a query word, and the sum over the pieces of a key word. If all rows
    sum to 1 before, they do so afterwards.

    Args:
      weights: float [..., L, M].
      queries, keys: the number of the word of each of the L and M pieces, counted from 0 and ascending.

    Returns:
      Float [..., words of the queries, words of the keys].
    """
    rows, columns = (np.eye(max(words, default=-1) + 1)[list(words)] for words in (queries, keys))
    return np.swapaxes(rows / rows.sum(0), 0, 1) @ weights @ columns


def attention_rollout(weights: np.ndarray) -> np.ndarray:
    """Estimates how much of each input reaches each layer through attention and residual connections.

    The rollout of a layer is the product of (A + I) / 2 over all layers up to it, where A is the mean of the
    heads (Abnar and Zuidema 2020, section 3).

    Args:
      weights: weights of self-attention, float [N, H, L, L].

    Returns:
      Float [N, L, L]. Row i is position i after the layer, column j is position j of the input of the stack.
    """
    steps = (weights.mean(1) + np.eye(weights.shape[-1])) / 2
    return np.stack(list(itertools.accumulate(steps, lambda before, step: step @ before)))


def cross_rollout(cross: np.ndarray, encoder: np.ndarray) -> np.ndarray:
    """Multiplies the head mean of cross-attention by the rollout of the whole encoder.

    Args:
      cross: weights of cross-attention, float [N, H, L, M].
      encoder: weights of the encoder's self-attention, float [N', H', M, M].

    Returns:
      Float [N, L, M]. Column j is position j of the encoder's input. In the mean of the heads, it is
      position j of the encoder's output.
    """
    return cross.mean(1) @ attention_rollout(encoder)[-1]


def value_norms(
    weights: np.ndarray, values: np.ndarray, kernels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the norm of the vector that each key adds to the output of a query.

    The norm is the weight times the norm of the value after the output projection (Kobayashi et al. 2020,
    equation 7). A large weight on a value that is almost 0 adds almost nothing.

    Args:
      weights: float [N, H, L, M].
      values: float [N, M, H, V], with biases.
      kernels: kernels of the output projection, float [N, H, V, D].

    Returns:
      The norms of the vectors of each head, float [N, H, L, M], and of their sums over the heads [N, L, M].
    """
    transformed = np.einsum("nmhv,nhvd->nhmd", values, kernels)
    norms = weights * np.linalg.norm(transformed, axis=-1)[:, :, None]
    # Dot products between heads avoid an array [N, L, M, D] of the summed vectors.
    products = np.einsum("nhmd,ngmd->nmhg", transformed, transformed)
    squares = np.einsum("nhlm,nglm,nmhg->nlm", weights, weights, products)
    return norms, np.sqrt(np.maximum(squares, 0))
