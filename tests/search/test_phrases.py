"""Tests of phrases that an output must contain, against brute force."""

import numpy as np
import pytest

from tests.references.search_reference import on_host
from tests.support.automaton import (
    BATCH,
    BOS,
    EOS,
    EVERYTHING,
    MAX_LENGTH,
    Sentence,
    begin,
    random_table,
    reorder,
    step,
)
from tfm import search

# The phrases of each row. The automaton has the tokens 0 to 5, of which 1 is EOS.
PHRASES = [[[2]], [[3, 4]], [[2], [5]], [[2, 3], [3]], [[]], [[4, 4]], [[5, 2, 5]], [[0, 2], [2, 3]]]


def pad(phrases):
    padded = np.full((len(phrases), 2, 3), -1, np.int32)
    for row, of_row in enumerate(phrases):
        for number, phrase in enumerate(of_row):
            padded[row, number, : len(phrase)] = phrase
    return padded


def run(table, phrases, width, max_lengths=None, prefix=None):
    constraints = search.Constraints(max_lengths, prefix=prefix, phrases=phrases)
    limits = search.Limits(MAX_LENGTH, BOS, EOS, constraints)
    options = {"batch_size": len(table), "beam_size": width, "length_penalty": 0.6, "reorder": reorder}
    return search.beam_search(step, begin(table, width), limits, **options)


found = on_host(run, "width")


def contains(words, phrases):
    """Returns whether an output contains all phrases."""
    return all(
        any(list(words[i : i + len(phrase)]) == phrase for i in range(len(words))) for phrase in phrases
    )


def best_tokens(outputs, row):
    return tuple(outputs.tokens[row, 0, : outputs.lengths[row, 0]].tolist())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_wide_beam_finds_the_best_output_with_all_phrases(seed):
    table = random_table(seed)
    outputs = found(table, pad(PHRASES), width=EVERYTHING)
    for row in range(BATCH):
        sentence = Sentence(table[row], alpha=0.6)
        (expected,) = sentence.best((w for w in sentence.outputs() if contains(w, PHRASES[row])), 1)
        assert best_tokens(outputs, row) == expected
        np.testing.assert_allclose(outputs.scores[row, 0], sentence.score(expected), rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [2, 4])
def test_outputs_of_a_narrow_beam_contain_the_phrases(seed, width):
    outputs = found(random_table(seed), pad(PHRASES), width=width)
    assert all(contains(best_tokens(outputs, row), PHRASES[row]) for row in range(BATCH))


def test_rows_without_phrases_and_other_rows_do_not_change():
    table = random_table(5)
    some = [[] if row % 2 else phrases for row, phrases in enumerate(PHRASES)]
    alone, plain, mixed = (found(table, pad(x), width=4) for x in (PHRASES, [[]] * BATCH, some))
    for row in range(BATCH):
        expected = plain if row % 2 else alone
        assert best_tokens(mixed, row) == best_tokens(expected, row)


def test_row_without_room_for_its_phrases_still_has_an_output():
    table = random_table(6)
    outputs = found(table, pad(PHRASES), width=3, max_lengths=np.full(BATCH, 2, np.int32))
    assert (outputs.lengths[:, 0] > 0).all()
    assert contains(best_tokens(outputs, 0), PHRASES[0])


def test_outputs_with_phrases_begin_with_the_forced_prefix():
    prefix = np.full((BATCH, 2), -1, np.int32)
    prefix[:, 0] = 3
    outputs = found(random_table(0), pad(PHRASES), width=4, prefix=prefix)
    assert outputs.tokens[:, 0, 0].tolist() == [3] * BATCH
    assert all(contains(best_tokens(outputs, row), PHRASES[row]) for row in range(BATCH))


def test_greedy_search_rejects_phrases():
    limits = search.Limits(MAX_LENGTH, BOS, EOS, search.Constraints(phrases=pad(PHRASES)))
    table = random_table(0)
    with pytest.raises(ValueError, match=r"constraints\.phrases"):
        search.greedy_search(step, begin(table, 1), limits, batch_size=BATCH)
