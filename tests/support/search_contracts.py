"""Contracts of searches over an opaque step function, as pytest classes.

The searches run over the small model of `tests.support.automaton` and are compared with brute force and
with slow searches.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from tests.support.automaton import (
    BOS,
    EOS,
    EVERYTHING,
    MAX_LENGTH,
    Sentence,
    Words,
    begin,
    random_batch,
    random_table,
    reorder,
    step,
)
from tests.support.comparison import assert_trees_equal
from tfm import search
from tfm.testing.models import quick_jit

BATCHES = [random_batch(seed) for seed in range(6)]


def _run_in_stages(is_unfinished: Any, advance: Any, progress: Any, **options: Any) -> search.Hypotheses:
    """Calls `search.run_in_stages` with a state that has the same space in all stages."""
    return search.run_in_stages(is_unfinished, advance, progress, short_state=progress.state, **options)


STAGES = {
    f"{steps} steps, then {rows} rows": functools.partial(_run_in_stages, steps=steps, part_size=rows)
    for steps, rows in [(0, 3), (2, 1), (MAX_LENGTH, 4)]
}


class SearchContract:
    """The contract of every search.

    Attributes:
      cases: {name: search}, functions such as `tfm.search.greedy_search`.
      options: further arguments of the searches. `beam_size` or `samples` is W.
      penalized: whether the searches have the argument `length_penalty`.
    """

    cases: ClassVar[Mapping[str, Callable[..., search.Hypotheses]]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    penalized: ClassVar[bool] = True

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases and random batches."""
        if "find" in metafunc.fixturenames:
            metafunc.parametrize("find", self.cases.values(), ids=self.cases.keys())
        if "batch" in metafunc.fixturenames:
            metafunc.parametrize("batch", BATCHES, ids=range(len(BATCHES)))

    def run(self, find: Any, batch: list[Sentence], **options: Any) -> search.Hypotheses:
        """Returns what a search finds, as NumPy arrays."""
        one, static = batch[0], tuple((dict(self.options) | options).items())
        table, limits, _, _, prefix, _, _ = map(np.array, zip(*batch, strict=True))
        alpha = one.alpha if self.penalized else None
        allowed = np.array(one.allowed) if one.allowed else None
        constraints = search.Constraints(limits, one.minimum, prefix=prefix, allowed=allowed)
        found = _run(find, one.forbidden, static, table, constraints, alpha)
        return jax.tree.map(np.asarray, found)

    def found(
        self, find: Any, batch: list[Sentence], **options: Any
    ) -> Iterator[tuple[Sentence, list[Words]]]:
        """Yields (sentence, outputs), and checks tokens, scores and lengths."""
        found = self.run(find, batch, **options)
        assert [each.dtype for each in found] == [np.int32, np.float32, np.int32]
        for sentence, *row in zip(batch, *found, strict=True):
            sentence, outputs = sentence._replace(alpha=sentence.alpha * self.penalized), []
            for tokens, score, length in zip(*row, strict=True):
                words = tuple(tokens[:length].tolist())
                assert not tokens[length:].any()
                assert words.index(EOS) == len(words) - 1 if words else np.isneginf(score)
                assert all(token in sentence.extensions(words[:i]) for i, token in enumerate(words))
                np.testing.assert_allclose(
                    score, sentence.score(words) if words else score, rtol=1e-5, atol=1e-5
                )
                outputs += [words] if words else []
            yield sentence, outputs

    def test_outputs_are_allowed_and_have_the_scores_of_the_model(self, find, batch):
        assert any(outputs for _, outputs in self.found(find, batch))

    def test_rows_do_not_depend_on_each_other(self, find, batch):
        others = [each._replace(table=-each.table, limit=MAX_LENGTH + 1 - each.limit) for each in batch]
        mixed = [(one, other)[i % 2] for i, (one, other) in enumerate(zip(batch, others, strict=True))]
        for alone, together in zip(self.run(find, batch), self.run(find, mixed), strict=True):
            np.testing.assert_array_equal(alone[::2], together[::2])

    @pytest.mark.parametrize("run_loop", STAGES.values(), ids=STAGES)
    def test_stages_and_parts_of_the_rows_change_no_bit(self, find, batch, run_loop):
        if "run_loop" not in inspect.signature(find).parameters:
            pytest.skip("The search runs its own loop.")
        staged = self.run(find, batch, run_loop=run_loop)
        assert_trees_equal(staged, self.run(find, batch))

    def edges(self, eos: float) -> list[Sentence]:
        """Returns sentences of every limit and length of a prefix, with this logit of EOS everywhere."""
        table = random_table(0, 1, sharpness=0.1)[0]
        table[:, EOS] = eos
        prefixes = [(4,) * length + (-1,) * (3 - length) for length in range(4)]
        limits = range(1, MAX_LENGTH + 3)  # the last two are above the maximum
        return [Sentence(table, limit, prefix=prefix, alpha=0.6) for limit in limits for prefix in prefixes]

    def test_outputs_reach_their_limit_exactly(self, find):
        batch = self.edges(eos=-60.0)
        expected = [min(each.limit, MAX_LENGTH) for each in batch]
        assert self.run(find, batch).lengths[:, 0].tolist() == expected

    @pytest.mark.parametrize("minimum", range(1, MAX_LENGTH + 2))
    def test_outputs_reach_their_minimum_exactly(self, find, minimum):
        batch = [each._replace(minimum=minimum) for each in self.edges(eos=60.0)]
        forced = [sum(token >= 0 for token in each.prefix) for each in batch]
        expected = [
            min(max(minimum, n + 1), each.limit, MAX_LENGTH) for n, each in zip(forced, batch, strict=True)
        ]
        assert self.run(find, batch).lengths[:, 0].tolist() == expected


class GreedyContract(SearchContract):
    """The contract of a search that takes the most probable token at each position, or the first of them."""

    def test_each_token_is_the_most_probable_one(self, find, batch):
        ties = [each._replace(table=np.round(each.table / 2) + 0.0) for each in batch]  # without -0.0
        for sentence, outputs in [*self.found(find, batch), *self.found(find, ties)]:
            assert set(outputs) == {sentence.greedy()} - {()}


class BeamContract(SearchContract):
    """The contract of beam search. Its arguments are the arguments of `tfm.search.beam_search`."""

    options: ClassVar[Mapping[str, Any]] = {"beam_size": 3, "reorder": reorder}

    def test_a_wide_beam_finds_every_output(self, find, batch):
        for sentence, outputs in self.found(find, batch, beam_size=EVERYTHING):
            assert outputs == sentence.best(sentence.outputs(), EVERYTHING)

    @pytest.mark.parametrize(("width", "count"), [(1, 1), (2, 2), (4, 1), (4, 3)])
    def test_a_narrow_beam_equals_one_without_pruning(self, find, batch, width, count):
        for sentence, outputs in self.found(find, batch, beam_size=width, n_best=count):
            assert outputs == sentence.best(sentence.beam(width), count)


@quick_jit(static_argnums=(0, 1, 2))
def _run(find, forbidden, options, table, constraints, alpha):
    """Returns the hypotheses that a search finds."""
    chosen = dict(options) if alpha is None else {"length_penalty": alpha} | dict(options)
    width: Any = chosen.get("beam_size", chosen.get("samples", 1))
    limits = search.Limits(MAX_LENGTH, BOS, EOS, constraints._replace(forbidden=forbidden))
    return find(step, begin(table, width), limits, batch_size=len(table), **chosen)
