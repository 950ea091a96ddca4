"""Attention whose memory is linear in the length (Dao et al. 2022, FlashAttention).

A block of queries visits one block of keys after the other, because a softmax needs only the maximum and the
sum of the exponentials so far. The gradient computes the weights of each block again. Blocks of keys that a
causal mask or a window hides are left out. Shape letters as in `tfm.attention`, and S positions of a block.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from tfm.array_types import Array, check_arrays
from tfm.masks import AttentionMask, check_mask_axes

BLOCK = 256  # positions of a block, S
product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@check_arrays
def blockwise_attention(
    query: Float[Array, "*batch L H K"],
    key: Float[Array, "*batch M H K"],
    value: Float[Array, "*batch M H V"],
    *,
    mask: Bool[Array, "*#batch #H #L #M"] | AttentionMask | None = None,
    scale: float | None = None,
    block: int = BLOCK,
) -> Float[jax.Array, "*batch L H V"]:
    """Computes softmax(scale * Q K^T) V, equation 1, without an array of all logits.

    Args:
      query: [..., L, H, K].
      key: [..., M, H, K].
      value: [..., M, H, V]. V may differ from K.
      mask: booleans [..., H, L, M], True where a query may attend to a key, or an `AttentionMask`. Each axis
        of the booleans may have size 1. They need all batch axes, except in a mask [1, L, M]. An
        `AttentionMask` needs arguments with one batch axis, and saves the blocks that it hides. None shows
        all keys.
      scale: factor of the logits. None means K ** -0.5.
      block: number of positions of a block, S. It changes only time, memory and the order of sums.

    Returns:
      [..., L, H, V] in the dtype of `value`. A query without a visible key gets zeros.

    Raises:
      ValueError: if shapes do not fit.
    """
    length, keys = query.shape[-3], key.shape[-3]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    form: Any = AttentionMask() if mask is None else mask
    if isinstance(form, AttentionMask):
        form = jax.tree.map(lambda x: _pad(x, -1, block), form)
    else:
        check_mask_axes(form, query.ndim)
        form = jnp.broadcast_to(form, (*form.shape[:-2], length, keys))
        form = _pad(_pad(form, -1, block), -2, block)
    arrays = [_pad(x.swapaxes(-2, -3), -2, block) for x in (query * scale, key, value)]
    output = jnp.asarray(_attend(*arrays, form, keys, block))
    return output[..., :length, :].swapaxes(-2, -3).astype(value.dtype)


def _pad(x: Array, axis: int, block: int) -> Array:
    """Pads an axis with zeros to a multiple of `block`."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(query: Array, key: Array, value: Array, mask: Any, keys: int, block: int) -> Array:
    """Computes the attention of query [..., H, L, K] to key [..., H, M, K] and value [..., H, M, V].

    L and M are multiples of S = `block`. Only the first `keys` keys are visible. Returns float32
    [..., H, L, V].
    """
    return _attend_forward(query, key, value, mask, keys, block)[0]


def _attend_forward(query, key, value, mask, keys, block):
    """Returns the output and the arguments of `_attend_backward`."""

    def attend(row):
        rows = _slice(query, row, block)

        def step(column, state):
            output, total, maximum = state
            visible = _visible(mask, row, column, keys, block)
            logits = product("...lk,...mk->...lm", rows, _slice(key, column, block))
            logits = jnp.where(visible, logits, jnp.finfo(jnp.float32).min)
            larger = jnp.maximum(maximum, logits.max(-1, keepdims=True))
            weights, factor = jnp.where(visible, jnp.exp(logits - larger), 0), jnp.exp(maximum - larger)
            values = _slice(value, column, block)
            new = product("...lm,...mv->...lv", weights.astype(values.dtype), values)
            return output * factor + new, total * factor + weights.sum(-1, keepdims=True), larger

        zeros = jnp.zeros_like(rows[..., :1], jnp.float32)
        output = jnp.broadcast_to(zeros, (*rows.shape[:-1], value.shape[-1]))
        before, after = getattr(mask, "reach", (None, None))
        begin, end = _block_range(row, before, after, key.shape[-2], block)
        state = output, zeros, zeros + jnp.finfo(jnp.float32).min
        output, total, maximum = jax.lax.fori_loop(begin, end, step, state)
        total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
        return output / total, maximum + jnp.log(total)

    rows = jax.lax.map(attend, jnp.arange(query.shape[-2] // block))
    output, log_total = (_join(x) for x in rows)
    return output, (query, key, value, mask, output, log_total)


def _attend_backward(keys, block, saved, gradient):
    """Returns the gradients of query, key and value, and None for the mask."""
    query, key, value, mask, output, log_total = saved
    weighted = (gradient * output).sum(-1, keepdims=True)

    def attend(query_gradient, column):
        columns, values = _slice(key, column, block), _slice(value, column, block)

        def step(row, state):
            query_gradient, key_gradient, value_gradient = state
            rows, row_gradient = _slice(query, row, block), _slice(gradient, row, block)
            logits = product("...lk,...mk->...lm", rows, columns)
            visible = _visible(mask, row, column, keys, block)
            weights = jnp.where(visible, jnp.exp(logits - _slice(log_total, row, block)), 0)
            value_gradient += product("...lm,...lv->...mv", weights, row_gradient)
            change = product("...lv,...mv->...lm", row_gradient, values) - _slice(weighted, row, block)
            change = (weights * change).astype(rows.dtype)
            key_gradient += product("...lm,...lk->...mk", change, rows)
            rows = _slice(query_gradient, row, block) + product("...lm,...mk->...lk", change, columns)
            put = jax.lax.dynamic_update_slice_in_dim
            return put(query_gradient, rows, row * block, -2), key_gradient, value_gradient

        before, after = getattr(mask, "reach", (None, None))
        begin, end = _block_range(column, after, before, query.shape[-2], block)
        state = query_gradient, *(jnp.zeros_like(x, jnp.float32) for x in (columns, values))
        query_gradient, *gradients = jax.lax.fori_loop(begin, end, step, state)
        return query_gradient, gradients

    zeros = jnp.zeros_like(query, jnp.float32)
    query_gradient, gradients = jax.lax.scan(attend, zeros, jnp.arange(key.shape[-2] // block))
    pairs = zip((query_gradient, *map(_join, gradients)), (query, key, value), strict=True)
    return *(each.astype(x.dtype) for each, x in pairs), None


_attend.defvjp(_attend_forward, _attend_backward)


def _slice(x: Array, index: Any, block: int, axis: int = -2) -> Array:
    """Returns the block with this index along an axis."""
    return jax.lax.dynamic_slice_in_dim(x, index * block, block, axis)


def _join(blocks: Array) -> Array:
    """Joins blocks [blocks, ..., S, features] to [..., L, features]."""
    return jnp.moveaxis(blocks, 0, -3).reshape(*blocks.shape[1:-2], -1, blocks.shape[-1])


def _block_range(
    index: Array, before: int | None, after: int | None, length: int, block: int
) -> tuple[Array | int, Array | int]:
    """Returns the first block, and the end of the blocks, that a block sees if it sees so many positions."""
    blocks = length // block
    begin = 0 if before is None else jnp.maximum(index * block - before, 0) // block
    end = blocks if after is None else jnp.minimum(((index + 1) * block - 1 + after) // block + 1, blocks)
    return begin, end


def _visible(mask: Any, row: Any, column: Any, keys: int, block: int) -> Array:
    """Returns which keys of a block the queries of a block see, bool [..., 1 or H, S, S] or smaller."""
    rows, columns = row * block + jnp.arange(block), column * block + jnp.arange(block)
    if isinstance(mask, AttentionMask):
        segments = ((mask.query_segments, row), (mask.key_segments, column))
        cut = [None if x is None else _slice(x, index, block, -1) for x, index in segments]
        visible = dataclasses.replace(mask, query_segments=cut[0], key_segments=cut[1]).to_array(
            rows, columns
        )
    else:
        visible = jnp.asarray(_slice(_slice(mask, row, block), column, block, -1))
    return columns < keys if visible is None else visible & (columns < keys)
