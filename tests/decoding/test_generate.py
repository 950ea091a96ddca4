"""Tests of generation by a language model, against a plain loop over the forward pass."""

import dataclasses
import functools
import itertools
import logging

import jax
import numpy as np
import pytest

from tests.support.programs import count_programs
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding import generate
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import generate_ids, generate_texts
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
    """Returns parameters that are large enough for probabilities that differ."""
    params = random_parameters(MODEL, np.ones((1, 1), int), deviation=0.02)
    return jax.tree.map(lambda x: 8 * x, params)


def log_probabilities(history):
    """Returns the log-probabilities float64 [V] of the token after a history, by the forward pass."""
    tokens = np.zeros((1, MODEL.config.max_positions), int)  # one program for all lengths
    tokens[0, : len(history)] = history
    logits = np.asarray(apply(parameters(), tokens), np.float64)[0, len(history) - 1]
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def score(prefix, ids):
    """Returns the log-probability of ids after a prefix."""
    history, total = [BOS_ID, *prefix], 0.0
    for token in ids:
        total += log_probabilities(history)[token]
        history.append(token)
    return total


def ids_of(generated):
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in generated]


def greedy(prefix, most):
    """Returns the most probable next tokens, in a plain loop."""
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


DETERMINISTIC = [
    dataclasses.replace(SAMPLED, **fields)
    for fields in ({"temperature": 0.001}, {"top_k": 1}, {"top_p": 1e-6})
]


@pytest.mark.long
@pytest.mark.parametrize("config", [GREEDY, *DETERMINISTIC])
def test_greedy_search_and_samples_without_randomness_equal_a_loop(config):
    expected = [greedy(prefix, 5) for prefix in PREFIXES]
    for params in (parameters(), (parameters(), parameters())):  # an ensemble of equal models
        generated = generate_ids(MODEL, params, PREFIXES, config)
        assert ids_of(generated) == [[ids] * max(config.samples, 1) for ids in expected]


@pytest.mark.long
@pytest.mark.parametrize("config", [GREEDY, SAMPLED, dataclasses.replace(GREEDY, beam_size=12)])
def test_scores_are_log_probabilities_of_the_model(config):
    for prefix, hypotheses in zip(PREFIXES, generate_ids(MODEL, parameters(), PREFIXES, config), strict=True):
        assert len(hypotheses) == config.width
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(score(prefix, hypothesis.ids), abs=1e-4)
            assert hypothesis.ids.index(EOS_ID) == len(hypothesis.ids) - 1 <= 5
        if not config.samples:
            assert hypotheses[0].score >= score(prefix, greedy(prefix, 5)) - 1e-4
            assert hypotheses == sorted(hypotheses, key=lambda each: -each.score)


@pytest.mark.long
@pytest.mark.parametrize("max_tokens", [5, 30])  # all prefixes fit, or the window slides
def test_samples_depend_on_the_seed_and_on_the_number_of_their_prefix(max_tokens):
    config = dataclasses.replace(SAMPLED, max_tokens=max_tokens)
    prefixes = [[3, 4], LONG if max_tokens > 5 else [], [3, 4]]
    together = ids_of(generate_ids(MODEL, parameters(), prefixes, config))
    for number, prefix in enumerate(prefixes):
        alone = generate_ids(MODEL, parameters(), [prefix], config, start_index=number)
        assert ids_of(alone) == [together[number]]
    assert together[0] != together[2]
    assert len(set(map(tuple, together[0]))) > 1
    other = generate_ids(MODEL, parameters(), prefixes, dataclasses.replace(config, seed=1))
    assert ids_of(other) != together


@pytest.mark.long
def test_one_program_generates_for_all_prefixes_of_a_bucket():
    generate_ids(MODEL, parameters(), [[3]], SAMPLED)
    with count_programs() as programs:
        for length in range(2, 8):
            generate_ids(MODEL, parameters(), [[3] * length], SAMPLED)
    assert programs == []


LONG = np.random.default_rng(0).integers(3, VOCABULARY, 40).tolist()
POSITIONS = MODEL.config.max_positions


@pytest.mark.long
def test_beam_search_keeps_only_the_end_of_a_long_prefix(caplog):
    config = dataclasses.replace(GREEDY, max_tokens=14, beam_size=2)
    with caplog.at_level(logging.WARNING):
        [hypotheses] = generate_ids(MODEL, parameters(), [LONG], config)
    assert "last 10 of 40 tokens" in caplog.text
    for ids, score in hypotheses:
        expected = [log_probabilities([*LONG[-10:], *ids[:i]])[token] for i, token in enumerate(ids)]
        assert score == pytest.approx(sum(expected), abs=1e-4)
    message = r"max_tokens to be below .*\(24\) for a beam search.* got 24. Lower it to at most 23,"
    with pytest.raises(UserError, match=message):
        generate_ids(MODEL, parameters(), [[3]], dataclasses.replace(config, max_tokens=POSITIONS))
    generate_ids(MODEL, parameters(), [[3]], dataclasses.replace(config, max_tokens=POSITIONS - 1))


@pytest.mark.long
def test_no_warning_if_beam_search_cuts_only_the_start_of_the_text(caplog):
    config = dataclasses.replace(GREEDY, max_tokens=14, beam_size=2)
    with caplog.at_level(logging.WARNING):
        generate_ids(MODEL, parameters(), [LONG[: POSITIONS - 14]], config)
    assert not caplog.records


def slide(prefix, ids, max_tokens):
    """Yields the log-probabilities of each next token, under a window with half of it for new tokens."""
    text, half = [BOS_ID, *prefix, *ids], POSITIONS // 2
    for i in range(len(ids)):
        start = min(i, max_tokens - 1) // half * half  # EOS at the limit belongs to the last window
        is_last = start + half >= max_tokens
        context = POSITIONS - min(half, max_tokens - start) + (not is_last)
        end = 1 + len(prefix) + start
        yield log_probabilities(text[max(0, end - context) : end + i - start])


@pytest.mark.long
@pytest.mark.parametrize("config", [GREEDY, dataclasses.replace(SAMPLED, seed=3)])
@pytest.mark.parametrize("max_tokens", [24, 29, 36, 60])
def test_generation_beyond_the_positions_uses_a_sliding_window(config, max_tokens):
    config, prefixes = dataclasses.replace(config, max_tokens=max_tokens), [LONG, [3, 4, 5]]
    generated = generate_ids(MODEL, parameters(), prefixes, config)
    for prefix, hypotheses in zip(prefixes, generated, strict=True):
        assert len(hypotheses) == max(config.samples, 1)
        for ids, score in hypotheses:
            expected = list(slide(prefix, ids, max_tokens))
            assert score == pytest.approx(sum(p[i] for p, i in zip(expected, ids, strict=True)), abs=1e-3)
            assert ids.index(EOS_ID) == len(ids) - 1 <= max_tokens
            if not config.samples:
                for p, token in zip(expected[:max_tokens], ids, strict=False):
                    p[[0, BOS_ID]] = -np.inf
                    assert token == p.argmax()


@pytest.mark.long
def test_each_window_and_each_sample_has_its_own_key(monkeypatch):
    keys, run_batch = [], generate.generate_batch

    def record(*arguments):
        keys.extend(map(tuple, np.asarray(jax.random.key_data(arguments[5]))))
        return run_batch(*arguments)

    monkeypatch.setattr("tfm.decoding.batches.free_memory", lambda: None)  # measures no program
    monkeypatch.setattr(generate, "generate_batch", record)
    config = dataclasses.replace(SAMPLED, samples=2, max_tokens=36, seed=3, batch_size=1)
    generate_ids(MODEL, parameters(), [LONG], config)
    assert len(keys) == len(set(keys)) > config.samples


@pytest.mark.long
def test_continued_texts_are_the_decoded_ids():
    tokenizer = Characters()
    model = DecoderLM(MODEL.config, vocabulary_size=len(tokenizer))
    params = random_parameters(model, np.ones((1, 1), int), deviation=0.02)
    continued = generate_texts(model, params, tokenizer, ["ab", ""], SAMPLED)
    generated = ids_of(generate_ids(model, params, tokenizer.encode(["ab", ""]), SAMPLED))
    expected = [list(map(tokenizer.decode, one)) for one in generated]
    assert [[each.text for each in one] for one in continued] == expected


@pytest.mark.long
def test_nan_parameters_are_an_error():
    broken = jax.tree.map(lambda x: x * np.nan, parameters())
    with pytest.raises(UserError, match="got NaN"):
        generate_ids(MODEL, broken, [[3]], SAMPLED)


@pytest.mark.long
@pytest.mark.parametrize("config", [GREEDY, SAMPLED])
def test_no_ngram_repeats_beyond_the_positions(config):
    config = dataclasses.replace(config, max_tokens=14, no_repeat_ngram=2)
    for ids in ids_of(generate_ids(MODEL, parameters(), [LONG], config))[0]:
        pairs = list(itertools.pairwise(ids))
        assert len(ids) > 5
        assert len(pairs) == len(set(pairs))


def test_repetition_penalty_of_an_ensemble_is_an_error():
    config = dataclasses.replace(GREEDY, repetition_penalty=1.2)
    with pytest.raises(UserError, match=r"repetition_penalty.*--ensemble"):
        generate_ids(MODEL, (parameters(), parameters()), [[3]], config)
