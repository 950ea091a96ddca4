"""A small random model for tests of searches, and slow searches over it in plain Python.

The model is an automaton. Its state depends on all tokens so far and selects the logits of the next token
from a table, so a hypothesis that lost its state gets other logits.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.search import gather_beams

VOCABULARY, EOS, BOS, STATES = 6, 1, 2, 997
MAX_LENGTH, BATCH = 5, 8
EVERYTHING = sum((VOCABULARY - 1) ** length for length in range(MAX_LENGTH))  # outputs without constraints
Words = tuple[int, ...]


def next_state(state: Any, token: Any) -> Any:
    """Returns the state of the automaton after a token, for integers or arrays of them."""
    return (state * 31 + token * 7 + 11) % STATES


def step(tokens: jax.Array, state: dict[str, jax.Array], position: jax.Array) -> Any:
    """Returns the logits after the last tokens, and the new state."""
    current = next_state(state["current"], tokens)
    return jax.vmap(lambda table, row: table[row])(state["table"], current), state | {"current": current}


def reorder(state: dict[str, jax.Array], parents: jax.Array) -> dict[str, jax.Array]:
    """Reorders the states of the automaton. The table belongs to the batch row."""
    return state | {"current": gather_beams(state["current"], parents)}


def begin(table: Any, width: int) -> dict[str, jax.Array]:
    """Returns the decoding state for logits [B, states, V]."""
    return {"current": jnp.zeros((len(table), width), jnp.int32), "table": jnp.asarray(table)}


def penalty(length: int, alpha: float) -> float:
    """Returns the length penalty of an output with a number of tokens."""
    return ((5 + length) / 6) ** alpha


class Sentence(NamedTuple):
    """The problem of one batch row, and slow searches for it in plain Python.

    Attributes:
      table: logits [states, V].
      limit, minimum, forbidden, prefix: This row's `max_lengths`, `min_length`, `forbidden` and `prefix`, see
        `tfm.search.Constraints`.
      alpha: Exponent of the length penalty.
      allowed: Tokens that are allowed at each of the first positions, see `tfm.search.Constraints`.
    """

    table: np.ndarray
    limit: int = MAX_LENGTH
    minimum: int = 1
    forbidden: Words = ()
    prefix: Words = ()
    alpha: float = 0.0
    allowed: tuple[tuple[bool, ...], ...] = ()

    def state(self, words: Words) -> int:
        """Returns the state of the automaton after `words`."""
        return functools.reduce(next_state, (BOS, *words), 0)

    def log_probabilities(self, words: Words) -> np.ndarray:
        """Returns the log-probabilities of all tokens after `words`, float64 [V]."""
        logits = self.table[self.state(words)].astype(np.float64)
        return logits if np.isneginf(logits).all() else logits - np.logaddexp.reduce(logits)

    def extensions(self, words: Words) -> dict[int, float]:
        """Returns the log-probabilities of the tokens that may follow `words`."""
        length, allowed = len(words) + 1, {EOS}
        if length < self.limit:
            allowed = (
                set(range(VOCABULARY)) - set(self.forbidden) - ({EOS} if length < self.minimum else set())
            )
            if length <= len(self.prefix) and self.prefix[length - 1] >= 0:
                allowed &= {self.prefix[length - 1]}
            if length <= len(self.allowed):
                allowed &= set(np.flatnonzero(self.allowed[length - 1]).tolist())
        found = self.log_probabilities(words)
        return {token: found[token] for token in sorted(allowed) if found[token] > -np.inf}

    def token_scores(self, words: Words) -> list[float]:
        """Returns the log-probability of each token of an output."""
        return [self.log_probabilities(words[:i])[token] for i, token in enumerate(words)]

    def score(self, words: Words) -> float:
        """Returns the log-probability of an output divided by its length penalty."""
        return sum(self.token_scores(words)) / penalty(len(words), self.alpha)

    def best(self, outputs: Iterable[Words], count: int) -> list[Words]:
        """Returns the outputs of the highest scores, the best first."""
        return sorted(outputs, key=self.score, reverse=True)[:count]

    def outputs(self, words: Words = ()) -> Iterator[Words]:
        """Yields every allowed output that begins with `words`."""
        for token in self.extensions(words):
            yield from [(*words, token)] if token == EOS else self.outputs((*words, token))

    def beam(self, width: int) -> Iterator[Words]:
        """Yields all outputs that a beam search finds without pruning."""
        live: list[tuple[float, Words]] = [(0.0, ())]
        while live:
            extended = [
                (total + gain, (*words, token))
                for total, words in live
                for token, gain in self.extensions(words).items()
            ]
            yield from (words for _, words in extended if words[-1] == EOS)
            live = sorted((each for each in extended if each[1][-1] != EOS), reverse=True)[:width]

    def greedy(self) -> Words:
        """Returns the output of the most probable token at each position, () if no token is possible."""
        words: Words = ()
        while words[-1:] != (EOS,):
            extensions = self.extensions(words)
            if not extensions:
                return ()
            words = (*words, max(extensions, key=lambda token: (extensions[token], -token)))
        return words


def random_table(seed: int, batch: int = BATCH, sharpness: float = 2.0, ruled_out: float = 0.0) -> np.ndarray:
    """Returns random logits [batch, states, V]. A share `ruled_out` of them is -inf."""
    rng = np.random.default_rng(seed)
    table = sharpness * rng.normal(size=(batch, STATES, VOCABULARY))
    return np.where(rng.random(table.shape) < ruled_out, -np.inf, table).astype(np.float32)


def random_batch(seed: int) -> list[Sentence]:
    """Returns sentences with random constraints. Forbidden tokens are probable, unless they are ruled out."""
    rng = np.random.default_rng((seed, 1))
    table = random_table(seed, ruled_out=float(rng.choice([0.0, 0.3])))
    forbidden = tuple(rng.permutation([0, BOS, 3])[: rng.integers(4)].tolist())
    table[..., list(forbidden)] += 3
    minimum, alpha = int(rng.integers(1, 4)), float(rng.choice([0.0, 0.6, 1.5, -0.5]))
    prefix_shape = BATCH, int(rng.integers(1, MAX_LENGTH + 2))
    is_free = rng.random(prefix_shape) < 0.7
    prefixes = np.where(is_free, -1, rng.integers(0, VOCABULARY, prefix_shape)).tolist()
    limits = rng.integers(1, MAX_LENGTH + 1, BATCH).tolist()
    allowed_shape = int(rng.integers(0, MAX_LENGTH)), VOCABULARY
    allowed = tuple(map(tuple, (rng.random(allowed_shape) < 0.8).tolist()))
    return [
        Sentence(logits, limit, minimum, forbidden, tuple(prefix), alpha, allowed)
        for logits, limit, prefix in zip(table, limits, prefixes, strict=True)
    ]
