"""Continuations of texts: against a plain loop, one program for all prefixes, samples that stand alone."""

import dataclasses
import functools
import logging

import jax
import numpy as np
import pytest

from tfm.data.character_tokenizers import CharacterTokenizer
from tfm.data.tokenizer import BOS_ID, EOS_ID
from tfm.decoding import continuation
from tfm.decoding.continuation import GenerationConfig, continue_texts, continue_tokens
from tfm.errors import UserError
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.testing.parameters import random_parameters

VOCABULARY = 12
MODEL = DecoderLM(
    DecoderLMConfig(layers=1, d_model=16, d_ff=24, heads=2, max_positions=24), vocabulary_size=VOCABULARY
)
PREFIXES = [[3, 4, 5], [], [7, 8, 9, 10, 11, 6, 5], [3]]
GREEDY = GenerationConfig(samples=0, max_tokens=5)
SAMPLED = GenerationConfig(samples=3, max_tokens=5, batch_size=2)
apply = jax.jit(lambda params, tokens: MODEL.apply({"params": params}, tokens, train=False))


@functools.cache
def parameters():
    """Large enough for probabilities that differ."""
    params = random_parameters(MODEL, np.ones((1, 1), int), deviation=0.02)
    return jax.tree.map(lambda x: 8 * x, params)


def log_probabilities(history):
    """float64 [V] of the token behind a history, by the forward pass; what follows it does not matter."""
    tokens = np.zeros((1, MODEL.config.max_positions), int)  # one program for all lengths
    tokens[0, : len(history)] = history
    logits = np.asarray(apply(parameters(), tokens), np.float64)[0, len(history) - 1]
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def score(prefix, ids):
    """The log-probability of ids behind a prefix."""
    history, total = [BOS_ID, *prefix], 0.0
    for token in ids:
        total += log_probabilities(history)[token]
        history.append(token)
    return total


def greedy(prefix, most):
    history = [BOS_ID, *prefix]
    for _ in range(most):
        found = log_probabilities(history)
        found[[0, BOS_ID]] = -np.inf
        history.append(int(found.argmax()))
        if history[-1] == EOS_ID:
            break
    else:
        history.append(EOS_ID)
    return history[1 + len(prefix) :]


@pytest.mark.long
def test_greedy_search_against_a_loop():
    found = continue_tokens(MODEL, parameters(), PREFIXES, GREEDY)
    assert [[each.ids for each in one] for one in found] == [[greedy(prefix, 5)] for prefix in PREFIXES]
    for prefix, [one] in zip(PREFIXES, found, strict=True):
        assert one.score == pytest.approx(score(prefix, one.ids), abs=1e-4)


@pytest.mark.long
def test_scores_are_those_of_the_model():
    for config in (SAMPLED, dataclasses.replace(GREEDY, beam_size=3)):
        for prefix, found in zip(
            PREFIXES, continue_tokens(MODEL, parameters(), PREFIXES, config), strict=True
        ):
            assert len(found) == 3
            for one in found:
                assert one.score == pytest.approx(score(prefix, one.ids), abs=1e-4)
                assert one.ids[-1] == EOS_ID
                assert len(one.ids) <= 6


@pytest.mark.long
def test_a_beam_is_no_worse_than_greedy():
    beams = continue_tokens(MODEL, parameters(), PREFIXES, dataclasses.replace(GREEDY, beam_size=12))
    for prefix, found in zip(PREFIXES, beams, strict=True):
        assert found[0].score >= score(prefix, greedy(prefix, 5)) - 1e-4
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.long
def test_samples_do_not_depend_on_neighbours():
    together = continue_tokens(MODEL, parameters(), PREFIXES, SAMPLED)
    for number, prefix in enumerate(PREFIXES):
        [alone] = continue_tokens(MODEL, parameters(), [prefix], SAMPLED, first=number)
        assert [each.ids for each in alone] == [each.ids for each in together[number]]
    other = continue_tokens(MODEL, parameters(), PREFIXES, dataclasses.replace(SAMPLED, seed=1))
    assert other != together
    first, again = continue_tokens(MODEL, parameters(), [[3, 4], [3, 4]], SAMPLED)
    assert [each.ids for each in first] != [each.ids for each in again]


def test_one_program_for_all_prefixes_of_a_bucket():
    continuation.continue_batch.clear_cache()
    for length in range(8):
        continue_tokens(MODEL, parameters(), [[3] * length], SAMPLED)
    assert continuation.continue_batch._cache_size() == 1


@pytest.mark.long
def test_a_low_temperature_is_greedy():
    for fields in ({"temperature": 0.001}, {"top_k": 1}, {"top_p": 1e-6}):
        config = dataclasses.replace(SAMPLED, **fields)
        for prefix, found in zip(
            PREFIXES, continue_tokens(MODEL, parameters(), PREFIXES, config), strict=True
        ):
            assert {tuple(each.ids) for each in found} == {tuple(greedy(prefix, 5))}


@pytest.mark.long
def test_an_ensemble_of_equals_is_one():
    one = continue_tokens(MODEL, parameters(), PREFIXES, GREEDY)
    two = continue_tokens(MODEL, (parameters(), parameters()), PREFIXES, GREEDY)
    assert [each[0].ids for each in two] == [each[0].ids for each in one]


@pytest.mark.long
def test_a_long_prefix_keeps_its_end(caplog):
    long = list(np.random.default_rng(0).integers(3, VOCABULARY, 40))
    config = dataclasses.replace(GREEDY, max_tokens=14)
    with caplog.at_level(logging.WARNING):
        [[found]] = continue_tokens(MODEL, parameters(), [long], config)
    assert "A text of 40 tokens keeps the last 10" in caplog.text
    history = long[-10:]
    for token in found.ids[:-1]:
        expected = log_probabilities(history)
        expected[[0, BOS_ID]] = -np.inf
        assert token == expected.argmax()
        history.append(token)
    with pytest.raises(UserError, match="max_tokens must be below the 24 positions"):
        continue_tokens(MODEL, parameters(), [[3]], dataclasses.replace(GREEDY, max_tokens=24))


@pytest.mark.long
def test_texts_are_continued():
    tokenizer = CharacterTokenizer()
    model = DecoderLM(MODEL.config, vocabulary_size=len(tokenizer))
    params = random_parameters(model, np.ones((1, 1), int), deviation=0.02)
    found = continue_texts(model, params, tokenizer, ["ab", ""], SAMPLED)
    ids = continue_tokens(model, params, tokenizer.encode(["ab", ""]), SAMPLED)
    expected = [[tokenizer.decode(each.ids) for each in one] for one in ids]
    assert [[each.text for each in one] for one in found] == expected


@pytest.mark.long
def test_nan_is_refused():
    broken = jax.tree.map(lambda x: x * np.nan, parameters())
    with pytest.raises(UserError, match="got NaN"):
        continue_tokens(MODEL, broken, [[3]], SAMPLED)
