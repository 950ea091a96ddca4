"""Constraints on the outputs of a search: length limits, forbidden tokens, forced prefixes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.search.top_k import top_k


class Constraints(NamedTuple):
    """Which outputs are allowed; by default all of at most `max_length` tokens.

    Attributes:
      limits: int32 [B], at least 1: the maximum number of tokens of each row's output, EOS counted;
        `max_length` when None, or where it is more than that.
      minimum: the minimum number of tokens of every output, EOS counted, as far as its limit allows.
      forbidden: tuple of ids that are never chosen, such as padding.
      prefix: int32 [B, P], the first tokens of the outputs; -1 where the search is free. A forced token
        counts with its probability.
    """

    limits: jax.Array | np.ndarray | None = None
    minimum: int = 1
    forbidden: tuple[int, ...] = ()
    prefix: jax.Array | np.ndarray | None = None

    def resolve(self, batch: int, max_length: int, eos_id: int) -> "Constraints":
        """The same with limits int32 [batch], none above `max_length`.

        Raises:
          ValueError: no output satisfies them.
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

    def at_limit(self, position: jax.Array) -> jax.Array:
        """bool [B]: where the token at `position` is the last one that the limit allows."""
        assert self.limits is not None, "made by `resolve`"
        return position + 1 >= self.limits

    def forced_tokens(self, position: jax.Array) -> jax.Array:
        """int32 [B]: the token that the prefix requires at `position`, -1 where any is allowed."""
        assert self.prefix is not None
        column = jnp.minimum(position, self.prefix.shape[1] - 1)
        forced = jnp.where(position < self.prefix.shape[1], self.prefix[:, column], -1)
        return jnp.where(self.at_limit(position), -1, forced)

    def may_end(self, position: jax.Array, eos_id: int) -> jax.Array:
        """bool [B]: where EOS is allowed at `position`."""
        allowed = (position + 1 >= self.minimum) | self.at_limit(position)
        if self.prefix is None:
            return allowed
        return allowed & jnp.isin(self.forced_tokens(position), jnp.array([-1, eos_id]))

    def mask_logits(self, logits: jax.Array, position: jax.Array, eos_id: int) -> jax.Array:
        """Logits [B, W, V] with -inf for every token that is not allowed at `position`."""
        token = jnp.arange(logits.shape[-1])
        allowed = (token != eos_id) | self.may_end(position, eos_id)[:, None, None]
        if self.forbidden:
            allowed &= ~jnp.isin(token, jnp.array(self.forbidden))
        if self.prefix is not None:
            forced = self.forced_tokens(position)[:, None, None]
            allowed &= (forced < 0) | (forced == token)
        return jnp.where(allowed, logits, -jnp.inf)

    def candidates(self, logits: jax.Array, position: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """The most probable tokens, at least `count`, that are allowed at `position`; EOS is not masked.

        `mask_logits` without a pass over all logits [B, W, V]: returns logits and tokens, both
        [B, W, count or more].
        """
        values, tokens = top_k(logits, min(count + len(self.forbidden), logits.shape[-1]))
        if self.prefix is not None:
            forced = self.forced_tokens(position)[:, None, None]
            forced_logit = jnp.take_along_axis(
                logits, jnp.broadcast_to(jnp.maximum(forced, 0), (*logits.shape[:2], 1)), axis=-1
            )
            first = jnp.arange(values.shape[-1]) == 0
            values = jnp.where(forced < 0, values, jnp.where(first, forced_logit, -jnp.inf))
            tokens = jnp.where(forced < 0, tokens, forced)
        if self.forbidden:
            values = jnp.where(jnp.isin(tokens, jnp.array(self.forbidden)), -jnp.inf, values)
        return values, tokens


def check_tokens(logits: jax.Array, bos_id: int, eos_id: int, constraints: Constraints) -> None:
    """Checks that the ids are of the vocabulary: JAX takes the last token for one beyond it.

    Raises:
      ValueError: they are not.
    """
    classes = logits.shape[-1]
    for name, token in (("bos_id", bos_id), ("eos_id", eos_id)):
        if not 0 <= token < classes:
            raise ValueError(f"{name} must be a token of the logits, from 0 to {classes - 1}, got {token}")
    if any(token < 0 for token in constraints.forbidden):
        raise ValueError(f"constraints.forbidden must be ids from 0, got {tuple(constraints.forbidden)}")
