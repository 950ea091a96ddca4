"""Limits on the outputs of a search: special tokens, lengths, forbidden tokens and forced prefixes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.search.repetition import find_repeating_tokens, penalize_repetition
from tfm.search.top_k import top_k

Array = jax.Array | np.ndarray


class Constraints(NamedTuple):
    """Optional constraints on the outputs. By default all outputs of at most `max_length` tokens are allowed.

    At the last position of an output, EOS is the only choice, even if another constraint excludes it.

    Attributes:
      max_lengths: int32 [B], at least 1. Maximum number of tokens in the outputs of each row, including EOS.
        Values above `Limits.max_length` are reduced to it. None means `Limits.max_length` for all rows.
      min_length: Minimum number of tokens in every output, including EOS. An output may be shorter if its
        maximum length is smaller.
      forbidden: Ids that are never chosen, such as padding.
      prefix: int32 [B, P], the first tokens of each output. -1 allows any token. A forced token contributes
        its log-probability to the score.
      allowed: bool [P, V], True for the tokens, including EOS, that are allowed at each of the first P
        positions. All tokens are allowed at later positions. For example, a model whose outputs are words
        followed by image codes allows only words at the first positions and only codes after them.
      phrases: int32 [B, P, L], token sequences that the outputs of each row must contain, padded with -1. An
        output may lack some of them only if the search has found no output with all. Only for beam search.
    """

    max_lengths: Array | None = None
    min_length: int = 1
    forbidden: tuple[int, ...] = ()
    prefix: Array | None = None
    allowed: Array | None = None
    phrases: Array | None = None


class Limits(NamedTuple):
    """The special tokens and the maximum length of outputs, and further constraints on them.

    Attributes:
      max_length: Maximum number of tokens in an output, including EOS, T. Must be static.
      bos_id: The token that the model reads at position 0, or int32 [B], a token for each row.
      eos_id: The token that ends an output.
      constraints: Further `Constraints`.
      force_eos: Whether EOS is the only choice at the last position of an output. Otherwise an output may
        have `max_length` tokens without EOS. Beam search does not support this. Must be static.
      no_repeat_ngram: Length of the n-grams that an output may have only once, apart from the repetitions
        within `constraints.prefix`. 0 allows all. Must be static.
      repetition_penalty: See `tfm.search.repetition.penalize_repetition`. It changes the probabilities, and
        so the scores. Must be static.
    """

    max_length: int
    bos_id: int | Array
    eos_id: int
    constraints: Constraints = Constraints()
    force_eos: bool = True
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0

    def for_batch(self, batch_size: int) -> "Limits":
        """Returns the limits with `constraints.max_lengths` as int32 [B], reduced to at most `max_length`.

        Raises:
          ValueError: If `max_length` is below 1, if EOS is forbidden, or if a maximum length in a NumPy array
            is below 1. Values of JAX arrays are not checked.
        """
        constraints = self.constraints
        if self.max_length < 1:
            raise ValueError(f"Expected max_length to be at least 1, for EOS, got {self.max_length}.")
        if self.eos_id in constraints.forbidden:
            raise ValueError(
                f"Expected constraints.forbidden without eos_id {self.eos_id}, because every output needs "
                f"it, got {tuple(constraints.forbidden)}. To make outputs longer, set constraints.min_length."
            )
        lengths = constraints.max_lengths
        if isinstance(lengths, np.ndarray) and (lengths < 1).any():
            raise ValueError(
                f"Expected constraints.max_lengths to be at least 1, for EOS, got {lengths.min()}."
            )
        max_lengths = jnp.full(batch_size, self.max_length, jnp.int32)
        if lengths is not None:
            max_lengths = jnp.minimum(lengths, max_lengths).astype(jnp.int32)
        return self._replace(constraints=constraints._replace(max_lengths=max_lengths))

    def take(self, rows: jax.Array) -> "Limits":
        """Returns the limits of some rows, int32 [R], of the batch. Needs `for_batch`. Keeps `bos_id`."""
        prefix, phrases = (
            None if array is None else jnp.asarray(array)[rows]
            for array in (self.constraints.prefix, self.constraints.phrases)
        )
        lengths = self.max_lengths[rows]
        constraints = self.constraints._replace(max_lengths=lengths, prefix=prefix, phrases=phrases)
        return self._replace(constraints=constraints)

    @property
    def max_lengths(self) -> jax.Array:
        """The maximum length of each row, int32 [B]. Available only after `for_batch`."""
        assert self.constraints.max_lengths is not None, "Call `for_batch` before reading max_lengths."
        return jnp.asarray(self.constraints.max_lengths)

    def first_tokens(self, batch_size: int, width: int) -> jax.Array:
        """Returns the tokens that W = `width` hypotheses of each row read at position 0, int32 [B, W]."""
        token = self.bos_id if jnp.ndim(self.bos_id) == 0 else jnp.asarray(self.bos_id)[:, None]
        return jnp.full((batch_size, width), token, jnp.int32)

    def check_tokens(self, logits: jax.Array) -> None:
        """Checks that the special tokens and the constraints fit the vocabulary of logits [B, W, V].

        Without this check, indexing by an id that is too large would silently read the last token.

        Raises:
          ValueError: If `bos_id` or `eos_id` is not from 0 to V - 1, if a forbidden id is negative, or if
            `constraints.allowed` is not [P, V]. An array as `bos_id` is not checked.
        """
        classes, constraints = logits.shape[-1], self.constraints
        for name, token in (("bos_id", self.bos_id), ("eos_id", self.eos_id)):
            if jnp.ndim(token) == 0 and not 0 <= token < classes:
                raise ValueError(
                    f"Expected {name} to be a token of the logits, from 0 to {classes - 1}, got {token}."
                )
        if any(token < 0 for token in constraints.forbidden):
            raise ValueError(
                f"Expected constraints.forbidden to be ids from 0, got {tuple(constraints.forbidden)}."
            )
        if constraints.allowed is not None and constraints.allowed.shape[1:] != (classes,):
            raise ValueError(
                f"Expected constraints.allowed [P, V] with V {classes}, got {constraints.allowed.shape}."
            )

    def must_end(self, position: jax.Array) -> jax.Array:
        """Returns bool [B], True where only EOS is allowed at `position`, the last of an output.

        All are False if `force_eos` is False.
        """
        return (position + 1 >= self.max_lengths) & self.force_eos

    def may_end(self, position: jax.Array) -> jax.Array:
        """Returns bool [B], True where EOS is allowed at `position`."""
        may_end = position + 1 >= self.constraints.min_length
        if self.constraints.allowed is not None:
            may_end &= self._allowed_tokens(position)[self.eos_id]
        if self.constraints.prefix is not None:
            may_end &= jnp.isin(self._forced_tokens(position), jnp.array([-1, self.eos_id]))
        return may_end | self.must_end(position)

    def penalize(self, logits: jax.Array, tokens: jax.Array, position: jax.Array) -> jax.Array:
        """Returns the logits [B, W, V] with the repetition penalty. Outputs so far: int32 [B, W, T]."""
        if self.repetition_penalty == 1:
            return logits
        return penalize_repetition(logits, tokens, position, self.repetition_penalty)

    def mask_repetition(self, logits: jax.Array, tokens: jax.Array, position: jax.Array) -> jax.Array:
        """Returns the logits [B, W, V] with -inf for tokens that would repeat an n-gram of an output.

        EOS may end any output, and a forced prefix may repeat n-grams. The outputs so far are int32
        [B, W, T].
        """
        if not self.no_repeat_ngram:
            return logits
        classes = jnp.arange(logits.shape[-1])
        repeats = find_repeating_tokens(tokens, position, self.no_repeat_ngram, len(classes))
        repeats &= classes != self.eos_id
        if self.constraints.prefix is not None:
            repeats &= classes != self._forced_tokens(position)[:, None, None]
        return jnp.where(repeats, -jnp.inf, logits)

    def mask_logits(self, logits: jax.Array, position: jax.Array) -> jax.Array:
        """Returns the logits [B, W, V] with -inf for every token that is not allowed at `position`."""
        constraints, tokens = self.constraints, jnp.arange(logits.shape[-1])
        allowed = (tokens != self.eos_id) | self.may_end(position)[:, None, None]
        if constraints.forbidden:
            allowed &= ~jnp.isin(tokens, jnp.array(constraints.forbidden))
        if constraints.allowed is not None:
            allowed &= self._allowed_tokens(position) | self.must_end(position)[:, None, None]
        if constraints.prefix is not None:
            forced = self._forced_tokens(position)[:, None, None]
            allowed &= (forced < 0) | (forced == tokens)
        return jnp.where(allowed, logits, -jnp.inf)

    def best_tokens(self, logits: jax.Array, position: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """Returns the most probable tokens that are allowed at `position`.

        EOS may be among them even where `may_end` is False. This method reads all logits [B, W, V] fewer
        times than `mask_logits`.

        Returns:
          (logits, tokens), both [B, W, K] with K at least min(count, V). Tokens with the logit -inf are not
          allowed.
        """
        constraints = self.constraints
        if constraints.allowed is not None:
            logits = jnp.where(self._allowed_tokens(position), logits, -jnp.inf)
        values, tokens = top_k(logits, min(count + len(constraints.forbidden), logits.shape[-1]))
        if constraints.prefix is not None:
            forced = self._forced_tokens(position)[:, None, None]
            index = jnp.broadcast_to(jnp.maximum(forced, 0), (*logits.shape[:2], 1))
            forced_logit = jnp.take_along_axis(logits, index, axis=-1)
            is_first = jnp.arange(values.shape[-1]) == 0
            values = jnp.where(forced < 0, values, jnp.where(is_first, forced_logit, -jnp.inf))
            tokens = jnp.where(forced < 0, tokens, forced)
        if constraints.forbidden:
            is_forbidden = jnp.isin(tokens, jnp.array(constraints.forbidden))
            values = jnp.where(is_forbidden, -jnp.inf, values)
        return values, tokens

    def _allowed_tokens(self, position: jax.Array) -> jax.Array:
        """Returns bool [V], True for the tokens that `constraints.allowed` allows at `position`."""
        allowed = self.constraints.allowed
        assert allowed is not None
        count = len(allowed)
        return (position >= count) | jnp.asarray(allowed)[jnp.minimum(position, count - 1)]

    def _forced_tokens(self, position: jax.Array) -> jax.Array:
        """Returns int32 [B], the token that the prefix requires at `position`, or -1 if it requires none."""
        prefix = self.constraints.prefix
        assert prefix is not None
        length = prefix.shape[1]
        forced = jnp.where(position < length, prefix[:, jnp.minimum(position, length - 1)], -1)
        return jnp.where(self.must_end(position), -1, forced)
