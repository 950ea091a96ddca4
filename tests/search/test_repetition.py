"""Tests of the penalty of repeated tokens and of the ban of repeated n-grams, against brute force."""

import itertools

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


class Unrepeated(Sentence):
    """A sentence without repeated pairs of tokens."""

    def extensions(self, words):
        pairs = set(itertools.pairwise(words))
        return {
            token: gain
            for token, gain in super().extensions(words).items()
            if token == EOS or not words or (words[-1], token) not in pairs
        }


class Penalized(Sentence):
    """A sentence whose repeated tokens have a penalty of 1.5."""

    def log_probabilities(self, words):
        logits = super().log_probabilities(words)
        raw = self.table[self.state(words)].astype(np.float64)
        for token in set(words):
            raw[token] = raw[token] / 1.5 if raw[token] > 0 else raw[token] * 1.5
        return raw - np.logaddexp.reduce(raw) if np.isfinite(logits).any() else logits


CASES = {"no_repeat_ngram": (Unrepeated, 2), "repetition_penalty": (Penalized, 1.5)}


def run(table, name, value, width, prefix=None):
    limits = search.Limits(MAX_LENGTH, BOS, EOS, search.Constraints(prefix=prefix), **{name: value})
    if width == 1:
        return search.greedy_search(step, begin(table, 1), limits, batch_size=len(table))
    return search.beam_search(
        step,
        begin(table, width),
        limits,
        batch_size=len(table),
        beam_size=width,
        length_penalty=0.6,
        reorder=reorder,
    )


found = on_host(run, "name", "value", "width")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_wide_beam_finds_the_best_output(name, seed):
    kind, value = CASES[name]
    table = random_table(seed)
    outputs = found(table, name=name, value=value, width=EVERYTHING)
    for row in range(BATCH):
        sentence = kind(table[row], alpha=0.6)
        (expected,) = sentence.best(sentence.outputs(), 1)
        assert tuple(outputs.tokens[row, 0, : outputs.lengths[row, 0]]) == expected
        np.testing.assert_allclose(outputs.scores[row, 0], sentence.score(expected), rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_greedy_search_takes_the_most_probable_token_that_is_left(name):
    kind, value = CASES[name]
    table = random_table(2)
    outputs = found(table, name=name, value=value, width=1)
    for row in range(BATCH):
        assert tuple(outputs.tokens[row, 0, : outputs.lengths[row, 0]]) == kind(table[row]).greedy()


@pytest.mark.parametrize("width", [1, 4])
def test_forced_prefix_may_repeat_but_what_follows_may_not(width):
    prefix = np.full((BATCH, 3), 3, np.int32)
    outputs = found(random_table(2), name="no_repeat_ngram", value=1, width=width, prefix=prefix)
    for row in range(BATCH):
        words = outputs.tokens[row, 0, : outputs.lengths[row, 0]].tolist()
        assert words[:3] == [3, 3, 3]
        assert words[3] != 3
        assert words[-1] == EOS
