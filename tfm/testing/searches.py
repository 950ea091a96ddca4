"""Contracts of searches over an opaque step function, as pytest classes.

The model is a small random automaton: a table gives the logits of the next token in each of its states, and the
state depends on all tokens before. A hypothesis that lost its state therefore gets the logits of another one.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import search
from tfm.testing.models import quick_jit

VOCABULARY, EOS, BOS, STATES = 6, 1, 2, 997
BATCH, MAX_LENGTH = 8, 5
EVERYTHING = sum((VOCABULARY - 1) ** length for length in range(MAX_LENGTH))  # outputs without constraints
Search = Callable[..., search.Hypotheses]


def next_state(state: Any, token: Any) -> Any:
    """Returns the state of the automaton after a token, for integers or arrays of them."""
    return (state * 31 + token * 7 + 11) % STATES


def step(tokens: jax.Array, state: dict[str, jax.Array], position: jax.Array) -> Any:
    """Returns the logits after the last tokens, and the new state."""
    current = next_state(state["current"], tokens)
    return jax.vmap(lambda table, row: table[row])(state["table"], current), state | {"current": current}


def reorder(state: dict[str, jax.Array], parents: jax.Array) -> dict[str, jax.Array]:
    """Reorders the automaton's states. The table belongs to the batch row."""
    return state | {"current": search.gather_beams(state["current"], parents)}


def begin(table: Any, width: int) -> dict[str, jax.Array]:
    """Returns the decoding state for a table of logits [B, states, V]."""
    return {"current": jnp.zeros((len(table), width), jnp.int32), "table": jnp.asarray(table)}


class Sentence(NamedTuple):
    """One row of a problem, in plain Python: the model, and what its outputs may be."""

    table: np.ndarray  # logits [states, V]
    limit: int = MAX_LENGTH
    minimum: int = 1
    forbidden: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    alpha: float = 0.0

    def log_probabilities(self, words: tuple[int, ...]) -> np.ndarray:
        """Returns the log-probabilities of all tokens after `words`, float64 [V]."""
        logits = self.table[functools.reduce(next_state, (BOS, *words), 0)].astype(np.float64)
        return logits if np.isneginf(logits).all() else logits - np.logaddexp.reduce(logits)

    def extensions(self, words: tuple[int, ...]) -> dict[int, float]:
        """Returns the log-probabilities of the tokens that may follow `words`."""
        length = len(words) + 1
        allowed = {EOS} if length >= self.limit else set(range(VOCABULARY)) - set(self.forbidden)
        if length < min(self.minimum, self.limit):
            allowed -= {EOS}
        if length < self.limit and length <= len(self.prefix) and self.prefix[length - 1] >= 0:
            allowed &= {self.prefix[length - 1]}
        found = self.log_probabilities(words)
        return {token: found[token] for token in sorted(allowed) if found[token] > -np.inf}

    def score(self, words: tuple[int, ...]) -> float:
        """Returns the log-probability of an output over its length penalty."""
        total = sum(self.log_probabilities(words[:i])[token] for i, token in enumerate(words))
        return total / ((5 + len(words)) / 6) ** self.alpha

    def outputs(self, words: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
        """Yields every output that begins with `words` and is allowed."""
        for token in self.extensions(words):
            yield from [(*words, token)] if token == EOS else self.outputs((*words, token))

    def best(self, outputs: Any, count: int) -> list[tuple[int, ...]]:
        """Returns the outputs of the highest scores, the best first."""
        return sorted(outputs, key=self.score, reverse=True)[:count]

    def beam(self, width: int) -> list[tuple[int, ...]]:
        """Returns all outputs that a beam search finds, without ever pruning a hypothesis."""
        live, finished = [(0.0, ())], []
        while live:
            extended = [
                (score + gain, (*words, token))
                for score, words in live
                for token, gain in self.extensions(words).items()
            ]
            finished += [words for _, words in extended if words[-1] == EOS]
            live = sorted((each for each in extended if each[1][-1] != EOS), reverse=True)[:width]
        return finished

    def greedy(self) -> tuple[int, ...]:
        """Returns the output of the most probable token at each position, () if no token is possible."""
        words: tuple[int, ...] = ()
        while words[-1:] != (EOS,):
            extensions = self.extensions(words)
            if not extensions:
                return ()
            words = (*words, max(extensions, key=lambda token: (extensions[token], -token)))
        return words


class Problem(NamedTuple):
    """A batch of sentences."""

    table: np.ndarray  # logits [B, states, V]
    limits: np.ndarray  # [B]
    minimum: int = 1
    forbidden: tuple[int, ...] = ()
    prefix: np.ndarray | None = None  # [B, P], -1 where the search is free
    alpha: float = 0.0

    def sentence(self, row: int) -> Sentence:
        """Returns a row of the batch."""
        prefix = () if self.prefix is None else tuple(self.prefix[row].tolist())
        limit = min(int(self.limits[row]), MAX_LENGTH)
        return Sentence(self.table[row], limit, self.minimum, self.forbidden, prefix, self.alpha)


def random_table(seed: int, batch: int = BATCH, sharpness: float = 2.0, ruled_out: float = 0.0) -> np.ndarray:
    """Returns random logits [batch, states, V], of which a share `ruled_out` is -inf."""
    rng = np.random.default_rng(seed)
    table = sharpness * rng.normal(size=(batch, STATES, VOCABULARY))
    return np.where(rng.random(table.shape) < ruled_out, -np.inf, table).astype(np.float32)


def random_problem(seed: int) -> Problem:
    """Returns a problem with random constraints. Its forbidden tokens are the most probable ones."""
    rng = np.random.default_rng((seed, 2))
    table = random_table(seed, ruled_out=float(rng.choice([0.0, 0.3])))
    forbidden = tuple(rng.permutation([0, BOS, 3])[: rng.integers(4)].tolist())
    table[..., list(forbidden)] += 3
    shape = BATCH, int(rng.integers(1, MAX_LENGTH + 2))
    prefix = np.where(rng.random(shape) < 0.7, -1, rng.integers(0, VOCABULARY, shape))
    limits, minimum = rng.integers(1, MAX_LENGTH + 2, BATCH), int(rng.integers(1, MAX_LENGTH + 2))
    return Problem(table, limits, minimum, forbidden, prefix, float(rng.choice([0.0, 0.6, 1.5, -0.5])))


class SearchContract:
    """The contract of every search.

    Attributes:
      cases: {name: search}, functions such as `tfm.search.greedy_search`.
      options: further arguments of the searches, of which `beam_size` or `samples` is W.
      penalized: whether the searches have the argument `length_penalty`.
    """

    cases: ClassVar[Mapping[str, Search]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    penalized: ClassVar[bool] = True
    SEEDS: ClassVar[tuple[int, ...]] = tuple(range(6))

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases, and by the seeds of the problems."""
        if "find" in metafunc.fixturenames:
            metafunc.parametrize("find", self.cases.values(), ids=self.cases.keys())
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", self.SEEDS)

    def run(self, find: Search, problem: Problem, **options: Any) -> search.Hypotheses:
        """Returns what a search finds, as NumPy arrays."""
        alpha = problem.alpha if self.penalized else None
        arrays = problem.table, problem.limits, problem.minimum, problem.prefix, alpha
        static = tuple((dict(self.options) | options).items())
        return jax.tree.map(np.asarray, _run(find, problem.forbidden, static, *arrays))

    def found(self, find: Search, problem: Problem, **options: Any) -> Iterator[tuple[Sentence, list[Any]]]:
        """Yields each sentence with [(output, score)], after checking how the arrays are filled."""
        tokens, scores, lengths = self.run(find, problem, **options)
        assert (tokens.dtype, scores.dtype, lengths.dtype) == (np.int32, np.float32, np.int32)
        assert not tokens[np.arange(MAX_LENGTH) >= lengths[..., None]].any()
        np.testing.assert_array_equal(lengths == 0, np.isneginf(scores))
        for row in range(len(tokens)):
            words = [tuple(each[:length].tolist()) for each, length in zip(tokens[row], lengths[row], strict=True)]
            alpha = problem.alpha if self.penalized else 0.0
            yield problem.sentence(row)._replace(alpha=alpha), list(zip(words, scores[row], strict=True))

    def test_outputs_are_allowed_and_have_the_scores_of_the_model(self, find, seed):
        for sentence, outputs in self.found(find, random_problem(seed)):
            for words, score in outputs:
                for position, token in enumerate(words):
                    assert token in sentence.extensions(words[:position])
                    assert (token == EOS) == (position == len(words) - 1)
                np.testing.assert_allclose(score, sentence.score(words) if words else -np.inf, rtol=1e-5, atol=1e-5)

    def test_rows_do_not_depend_on_each_other(self, find, seed):
        problem, change = random_problem(seed), np.arange(BATCH) % 2 == 1
        table = np.where(change[:, None, None], random_table(seed + 100), problem.table)
        limits = np.where(change, 1 + problem.limits % MAX_LENGTH, problem.limits)
        other = problem._replace(table=table, limits=limits, prefix=np.where(change[:, None], -1, problem.prefix))
        for one, another in zip(self.run(find, problem), self.run(find, other), strict=True):
            np.testing.assert_array_equal(one[~change], another[~change])

    def boundary(self, eos: float) -> tuple[Problem, np.ndarray]:
        """Returns a problem with this logit for EOS, and the length of the prefix of each row."""
        table, lengths = random_table(0, 4 * MAX_LENGTH, sharpness=0.1), np.tile([0, 1, 2, 3], MAX_LENGTH)
        table[..., EOS] = eos
        prefix = np.where(np.arange(3) < lengths[:, None], 4, -1)
        return Problem(table, 1 + np.arange(len(table)) // 4, prefix=prefix, alpha=0.6), lengths

    def test_outputs_reach_their_limit_exactly(self, find):
        problem, _ = self.boundary(eos=-60.0)
        np.testing.assert_array_equal(self.run(find, problem).lengths[:, 0], problem.limits)
        beyond = problem._replace(limits=problem.limits + MAX_LENGTH - 1)  # capped at the maximum
        assert (self.run(find, beyond).lengths[:, 0] == MAX_LENGTH).all()

    @pytest.mark.parametrize("minimum", range(1, MAX_LENGTH + 2))
    def test_outputs_reach_their_minimum_exactly(self, find, minimum):
        problem, prefixes = self.boundary(eos=60.0)
        found = self.run(find, problem._replace(minimum=minimum)).lengths[:, 0]
        np.testing.assert_array_equal(found, np.minimum(np.maximum(minimum, prefixes + 1), problem.limits))


class GreedyContract(SearchContract):
    """The contract of a search that takes the most probable token at each position."""

    def test_each_token_is_the_most_probable_one(self, find, seed):
        problem = random_problem(seed)
        ties = np.round(problem.table / 2) + 0.0  # without -0.0; of equal logits, the first token counts
        for each in (problem, problem._replace(table=ties)):
            for sentence, outputs in self.found(find, each):
                assert {words for words, _ in outputs} == {sentence.greedy()}


class BeamContract(SearchContract):
    """The contract of beam search, whose arguments are those of `tfm.search.beam_search`."""

    options: ClassVar[Mapping[str, Any]] = {"beam_size": 3, "reorder": reorder}

    def test_a_wide_beam_finds_every_output(self, find, seed):
        for sentence, outputs in self.found(find, random_problem(seed), beam_size=EVERYTHING):
            expected = sentence.best(sentence.outputs(), EVERYTHING)
            assert [words for words, _ in outputs if words] == expected

    @pytest.mark.parametrize(("width", "count"), [(1, 1), (2, 2), (4, 1), (4, 3)])
    def test_a_narrow_beam_equals_one_without_pruning(self, find, seed, width, count):
        for sentence, outputs in self.found(find, random_problem(seed), beam_size=width, n_best=count):
            expected = sentence.best(sentence.beam(width), count)
            assert [words for words, _ in outputs if words] == expected


@quick_jit(static_argnums=(0, 1, 2))
def _run(find, forbidden, options, table, limits, minimum, prefix, alpha):
    """Returns the hypotheses that a search finds in one compiled program."""
    chosen = dict(options) if alpha is None else {"length_penalty": alpha} | dict(options)
    width = chosen.get("beam_size", chosen.get("samples", 1))
    constraints = search.Constraints(limits, minimum, forbidden, prefix)
    ids = {"max_length": MAX_LENGTH, "bos_id": BOS, "eos_id": EOS}
    return find(step, begin(table, width), constraints=constraints, **ids, **chosen)
