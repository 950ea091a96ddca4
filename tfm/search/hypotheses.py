"""What is searched for: finished sequences, and the constraints on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


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

    def resolve(self, batch, max_length):
        """The same with limits int32 [batch], none above `max_length`."""
        limits = max_length if self.limits is None else jnp.minimum(self.limits, max_length)
        return self._replace(limits=jnp.broadcast_to(limits, (batch,)).astype(jnp.int32))

    def at_limit(self, position):
        """bool [B]: where the token at `position` is the last one."""
        return position + 1 >= self.limits

    def restrict(self, logits, position, eos_id):
        """Logits [B, W, V] of the tokens that may stand at `position`, -inf for all others."""
        classes = logits.shape[-1]
        if self.forbidden:
            logits = jnp.where(jnp.isin(jnp.arange(classes), jnp.array(self.forbidden)), -jnp.inf, logits)
        if self.minimum > 1:
            too_early = (position + 1 < self.minimum) & ~self.at_limit(position)[:, None, None]
            logits = jnp.where(too_early & (jnp.arange(classes) == eos_id), -jnp.inf, logits)
        if self.prefix is not None:
            place = jnp.minimum(position, self.prefix.shape[1] - 1)
            forced = jnp.where(position < self.prefix.shape[1], self.prefix[:, place], -1)
            forced = jnp.where(self.at_limit(position), -1, forced)[:, None, None]
            logits = jnp.where((forced < 0) | (forced == jnp.arange(classes)), logits, -jnp.inf)
        return logits


def gather_beams(tree, parents):
    """Leaves [B, W, ...] -> [B, W', ...]: hypothesis w continues `parents[b, w]`, int32 [B, W']."""

    def gather(leaf):
        return jnp.take_along_axis(leaf, parents.reshape(*parents.shape, *[1] * (leaf.ndim - 2)), axis=1)

    return jax.tree.map(gather, tree)


def no_hypotheses(batch, count, max_length, score):
    """`Hypotheses` [batch, count] without tokens."""
    return Hypotheses(
        tokens=jnp.zeros((batch, count, max_length), jnp.int32),
        scores=jnp.full((batch, count), score, jnp.float32),
        lengths=jnp.zeros((batch, count), jnp.int32),
    )
