"""What is searched for: finished sequences, and the constraints on them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LARGEST_BLOCK = 256
LARGEST_LOG = 88.0  # of a float32


class Hypotheses(NamedTuple):
    """Finished sequences of each sentence.

    Attributes:
      tokens: int32 [B, N, T], up to and with EOS, 0 behind it.
      scores: float32 [B, N]; -inf, with no tokens, where there is no (further) hypothesis.
      lengths: int32 [B, N], EOS counted.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class Constraints(NamedTuple):
    """Which outputs there may be; by default all of at most `max_length` tokens.

    Attributes:
      limits: int32 [B], at least 1: tokens that a sentence's output may have, EOS counted; `max_length` when
        None, or where it is more than that.
      minimum: tokens that every output has at least, EOS counted, so far as its limit allows.
      forbidden: tuple of ids that are never chosen, such as padding.
      prefix: int32 [B, P], how the outputs begin; -1 where the search is free. A forced token counts with
        its probability.
    """

    limits: jax.Array | None = None
    minimum: int = 1
    forbidden: tuple[int, ...] = ()
    prefix: jax.Array | None = None

    def resolve(self, batch, max_length, eos_id):
        """The same with limits int32 [batch], none above `max_length`.

        Raises:
          ValueError: there is no output that these allow.
        """
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, for EOS, got {max_length}")
        if eos_id in self.forbidden:
            raise ValueError(
                f"constraints.forbidden must not have eos_id {eos_id}, without which no output ends, "
                f"got {tuple(self.forbidden)}; see constraints.minimum for longer outputs"
            )
        if isinstance(self.limits, np.ndarray) and (self.limits < 1).any():
            raise ValueError(f"constraints.limits must be at least 1, for EOS, got {self.limits.min()}")
        limits = max_length if self.limits is None else jnp.minimum(self.limits, max_length)
        return self._replace(limits=jnp.broadcast_to(limits, (batch,)).astype(jnp.int32))

    def at_limit(self, position):
        """bool [B]: where the token at `position` is the last one."""
        return position + 1 >= self.limits

    def forced(self, position):
        """int32 [B]: the token that must stand at `position`, -1 where any may."""
        place = jnp.minimum(position, self.prefix.shape[1] - 1)
        forced = jnp.where(position < self.prefix.shape[1], self.prefix[:, place], -1)
        return jnp.where(self.at_limit(position), -1, forced)

    def may_end(self, position, eos_id):
        """bool [B]: where EOS may stand at `position`."""
        allowed = (position + 1 >= self.minimum) | self.at_limit(position)
        if self.prefix is None:
            return allowed
        return allowed & jnp.isin(self.forced(position), jnp.array([-1, eos_id]))

    def restrict(self, logits, position, eos_id):
        """Logits [B, W, V] of the tokens that may stand at `position`, -inf for all others."""
        token = jnp.arange(logits.shape[-1])
        allowed = (token != eos_id) | self.may_end(position, eos_id)[:, None, None]
        if self.forbidden:
            allowed &= ~jnp.isin(token, jnp.array(self.forbidden))
        if self.prefix is not None:
            forced = self.forced(position)[:, None, None]
            allowed &= (forced < 0) | (forced == token)
        return jnp.where(allowed, logits, -jnp.inf)

    def candidates(self, logits, position, count):
        """The likeliest tokens, at least `count`, that may stand at `position`, EOS aside.

        `restrict` without a pass over all logits [B, W, V]: returns logits and tokens [B, W, count or more].
        """
        values, tokens = largest(logits, min(count + len(self.forbidden), logits.shape[-1]))
        if self.forbidden:
            values = jnp.where(jnp.isin(tokens, jnp.array(self.forbidden)), -jnp.inf, values)
        if self.prefix is None:
            return values, tokens
        forced = self.forced(position)[:, None, None]
        only = jnp.take_along_axis(
            logits, jnp.broadcast_to(jnp.maximum(forced, 0), (*logits.shape[:2], 1)), axis=-1
        )
        first = jnp.arange(values.shape[-1]) == 0
        return (
            jnp.where(forced < 0, values, jnp.where(first, only, -jnp.inf)),
            jnp.where(forced < 0, tokens, forced),
        )


def gather_beams(tree, parents):
    """Leaves [B, W, ...] -> [B, W', ...]: hypothesis w continues `parents[b, w]`, int32 [B, W']."""

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def check_tokens(logits, bos_id, eos_id, constraints):
    """Whether the ids are of the vocabulary: JAX takes the last token for one beyond it.

    Raises:
      ValueError: they are not.
    """
    classes = logits.shape[-1]
    for name, token in [("bos_id", bos_id), ("eos_id", eos_id)]:
        if not 0 <= token < classes:
            raise ValueError(f"{name} must be a token of the logits, from 0 to {classes - 1}, got {token}")
    if any(token < 0 for token in constraints.forbidden):
        raise ValueError(f"constraints.forbidden must be ids from 0, got {tuple(constraints.forbidden)}")


def check_penalty(alpha, max_length):
    """Whether scores over the length penalty are numbers, where `alpha` is one that is known.

    Raises:
      ValueError: they are not.
    """
    if isinstance(alpha, int | float) and not abs(alpha * math.log((5 + max_length) / 6)) < LARGEST_LOG:
        raise ValueError(
            f"length_penalty must leave ((5 + length) / 6) ** length_penalty a float32, got {alpha} for up "
            f"to {max_length} tokens"
        )


def batch_of(state):
    """B, with which every leaf of a decoding state begins.

    Raises:
      ValueError: leaves that begin otherwise, or none at all.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
    beginnings = {shape[:1] for shape in shapes}
    if len(beginnings) != 1 or () in beginnings:
        raise ValueError(f"expected a state whose leaves all begin with the axis B, got the shapes {shapes}")
    return shapes[0][0]


def check_capacity(state, max_length):
    """Whether a decoding state goes as far as the search.

    Args:
      state: any pytree; each of its nodes may say by an attribute `max_length` for how many positions it is
        made, as `tfm.layers.kv_cache.DecodeCache` does.
      max_length: of the search.

    Raises:
      ValueError: a node is made for fewer.
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "max_length"))
    for node in nodes:
        most = getattr(node, "max_length", None)
        if most is not None and max_length > most:
            raise ValueError(
                f"max_length must be at most {most}, for so many positions the state ({type(node).__name__}) "
                f"is made, got {max_length}"
            )


def follow_parents(state, parents):
    """`gather_beams` of a state with leaves [B, W, ...], for parents int32 [B, W].

    Raises:
      ValueError: a leaf begins otherwise.
    """
    for leaf in jax.tree.leaves(state):
        if leaf.shape[:2] != parents.shape:
            raise ValueError(
                f"expected a state with leaves [B, W, ...], B and W {parents.shape}, got one of shape "
                f"{leaf.shape}: give it these axes, or beam search a `reorder` that knows it"
            )
    return gather_beams(state, parents)


def no_hypotheses(batch, count, max_length, score):
    """`Hypotheses` [batch, count] without tokens."""
    return Hypotheses(
        tokens=jnp.zeros((batch, count, max_length), jnp.int32),
        scores=jnp.full((batch, count), score, jnp.float32),
        lengths=jnp.zeros((batch, count), jnp.int32),
    )


def largest(x, count):
    """`jax.lax.top_k` over the last axis in two stages, where its length has a divisor that suits.

    The largest numbers lie in the blocks whose own largest are largest. Finding those is a plain maximum,
    which a CPU does several times faster than a selection.
    """
    length = x.shape[-1]
    block = max(size for size in range(1, LARGEST_BLOCK + 1) if length % size == 0)
    if block * count * 4 > length:
        return jax.lax.top_k(x, count)
    blocks = x.reshape(*x.shape[:-1], length // block, block)
    _, chosen = jax.lax.top_k(blocks.max(-1), count)
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=-2)
    values, places = jax.lax.top_k(candidates.reshape(*x.shape[:-1], count * block), count)
    return values, jnp.take_along_axis(chosen, places // block, axis=-1) * block + places % block
