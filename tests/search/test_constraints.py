"""Constraints, coverage and ensembles in search, against brute force over every sequence."""

import functools

import jax
import numpy as np
import pytest

from tests.references.search_reference import (
    BOS,
    EOS,
    assert_found,
    beam,
    every_sequence,
    greedy,
    hash_step,
    log_probability,
    make_table,
    next_hash,
    on_host,
    penalized,
    reference_log_probabilities,
    sample,
    sequences,
    start,
)
from tfm import search

B, T, ALPHA = 6, 4, 0.6
EVERYTHING = len(every_sequence(T))  # a beam of this size loses nothing
LIMITS = np.array([4, 4, 3, 2, 1, 4])


def assert_finds_all(hypotheses, table, allowed, extra=lambda words: 0.0, limits=LIMITS):
    """The hypotheses are the allowed sequences and no others, in order of their score."""
    for row, limit in enumerate(limits):
        scored = [
            (penalized(log_probability(table[row], words), len(words), ALPHA) + extra(words), words)
            for words in every_sequence(limit)
            if allowed(row, words)
        ]
        assert scored
        assert_found(hypotheses, row, sorted(scored, reverse=True), rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("minimum", [2, 3])
def test_minimum_length_holds_within_limits(minimum):
    table = make_table(20, B)
    hypotheses = beam(table, ALPHA, EVERYTHING, T, limits=LIMITS, minimum=minimum)
    assert_finds_all(hypotheses, table, lambda row, words: len(words) >= min(minimum, LIMITS[row]))
    assert (
        greedy(table, T, limits=LIMITS, minimum=minimum).lengths[:, 0] >= np.minimum(minimum, LIMITS)
    ).all()


def test_forbidden_tokens_are_never_chosen():
    table = make_table(21, B)
    hypotheses = beam(table, ALPHA, EVERYTHING, T, limits=LIMITS, forbidden=(0, BOS))
    assert_finds_all(hypotheses, table, lambda row, words: not {0, BOS} & set(words))
    for row, score, words in sequences(greedy(table, T, limits=LIMITS, forbidden=(0, BOS))):
        assert not {0, BOS} & set(words)
        np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5)


PREFIX = np.array([[3, 0], [0, -1], [2, 3], [3, 3], [0, 0], [-1, -1]])


def begins_with_prefix(row, words):
    """The prefix, as far as the limit allows; the token at the limit is EOS."""
    forced_words = zip(words[: LIMITS[row] - 1], PREFIX[row], strict=False)
    prefix_length = min(int((PREFIX[row] >= 0).sum()), LIMITS[row] - 1)
    return len(words) > prefix_length and all(forced in (-1, word) for word, forced in forced_words)


def test_forced_prefixes_count_in_the_score():
    table = make_table(22, B)
    hypotheses = beam(table, ALPHA, EVERYTHING, T, limits=LIMITS, prefix=PREFIX)
    assert_finds_all(hypotheses, table, begins_with_prefix)


@pytest.mark.long
def test_greedy_and_samples_continue_a_prefix():
    table = make_table(23, B)
    found = (greedy(table, T, limits=LIMITS, prefix=PREFIX), sample(table, 0, 2, T, LIMITS, prefix=PREFIX))
    for hypotheses in found:
        for row, score, words in sequences(hypotheses):
            assert begins_with_prefix(row, words)
            np.testing.assert_allclose(score, log_probability(table[row], words), rtol=1e-5)


def test_forced_eos_ends_the_sequence():
    hypotheses = beam(make_table(24, B), ALPHA, 3, T, n_best=1, prefix=np.full((B, 2), [3, EOS]))
    assert (hypotheses.tokens[:, 0] == [3, EOS, 0, 0]).all()


def hash_penalty(state):
    return -(state["hash"] % 7) / 5


@pytest.mark.long
def test_search_with_coverage_is_exact():
    table = make_table(25, B)

    def extra(words):
        return -(functools.reduce(next_hash, (BOS, *words[:-1]), 0) % 7) / 5

    hypotheses = beam(table, ALPHA, EVERYTHING, T, limits=LIMITS, coverage=hash_penalty)
    assert_finds_all(hypotheses, table, lambda row, words: True, extra)
    best = beam(table, ALPHA, EVERYTHING, T, limits=LIMITS, coverage=hash_penalty, n_best=1)
    np.testing.assert_array_equal(best.tokens, hypotheses.tokens[:, :1])


def test_coverage_penalty_is_equation_14():
    rng = np.random.default_rng(0)
    attention, mask = rng.random((2, 3, 5)) * 1.6, np.arange(5) < [[5], [3]]
    expected = [
        [0.2 * sum(np.log(min(p, 1)) for p in row[m]) for row in rows]
        for rows, m in zip(attention, mask, strict=True)
    ]
    np.testing.assert_allclose(search.coverage_penalty(attention, mask, 0.2), expected, rtol=1e-5)
    assert np.isfinite(search.coverage_penalty(np.zeros((1, 1, 5)), mask[:1], 0.2)).all()


def test_ensembles_average_probabilities():
    first, second = make_table(26, B), make_table(27, B, ruled_out=0.2)
    step = search.ensemble(hash_step, hash_step)

    def find(first, second):
        return search.beam_search(
            step,
            (start(first, EVERYTHING), start(second, EVERYTHING)),
            beam_size=EVERYTHING,
            length_penalty=ALPHA,
            max_length=T,
            bos_id=BOS,
            eos_id=EOS,
            reorder=lambda states, parents: tuple(
                state | {"hash": search.gather_beams(state["hash"], parents)} for state in states
            ),
        )

    hypotheses = on_host(find)(first, second)
    for row in range(B):
        scored = []
        for words in every_sequence(T):
            total = 0.0
            for position, word in enumerate(words):
                each = [reference_log_probabilities(t[row], words[:position])[word] for t in (first, second)]
                total += np.log(np.mean(np.exp(each)))
            scored.append((penalized(total, len(words), ALPHA), words))
        assert_found(hypotheses, row, sorted(scored, reverse=True), rtol=1e-4)


@pytest.mark.long
def test_rows_with_own_keys_are_independent():
    table, keys = make_table(28, B), jax.random.split(jax.random.key(3), B)

    def draw(table, keys):
        return search.sample(
            hash_step, start(table, 3), keys, samples=3, max_length=9, bos_id=BOS, eos_id=EOS
        )

    together = on_host(draw)(table, keys)
    alone = on_host(draw)(table[4:5], keys[4:5])
    np.testing.assert_array_equal(together.tokens[4:5], alone.tokens)
    assert len({words for _, _, words in sequences(together)}) > B
