"""Tests of pairs of decoding features against a plain beam search for one sentence in NumPy float64."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from tests.references import numpy_transformer as numpy64
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.interpret import EditedModel, zero_head
from tfm.layers.observe import read_attention
from tfm.models import Transformer, TransformerConfig
from tfm.testing.parameters import random_parameters

PIECES, EXTRA = 9, 3
CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=12, d_ff=20, heads=3, dropout=0.0)
MODEL = Transformer(CONFIG, vocabulary_size=PIECES)
TOKENS = np.ones((1, 4), int)
MEMBERS = tuple(random_parameters(MODEL, TOKENS, TOKENS, seed=seed, deviation=0.5) for seed in range(2))
SENTENCES = [[5, 6, 7, EOS_ID], [4, EOS_ID], [8, 3, 5, 4, EOS_ID]]
PREFIXES = [[6, 3], [], [4]]
EDITED = EditedModel(MODEL, {"decoder.layers_1.self_attention.weights": zero_head(1)})
BASE = DecodingConfig(beam_size=3, max_extra_tokens=EXTRA, length_penalty=0.6)
# Each feature sets fields of the config, or replaces the model, the prefixes or the parameters.
FEATURES = {
    "ensemble": {"params": MEMBERS},
    "prefixes": {"prefixes": PREFIXES},
    "minimum": {"min_length": 3},
    "coverage": {"coverage_penalty": 0.4},
    "batches": {"batch_size": 2},
    "edits": {"model": EDITED},
    "greedy": {"beam_size": 1},
}
# Greedy search has no coverage penalty, and an edited model raises a UserError for it.
IMPOSSIBLE = {("coverage", "greedy"), ("coverage", "edits")}
PAIRS = [pair for pair in itertools.combinations(FEATURES, 2) if pair not in IMPOSSIBLE]


@functools.cache
def edited_logits(member, source, words):
    """Returns the logits of a forward pass of the edited model."""
    logits = forward(MEMBERS[member], np.array([source]), np.array([[BOS_ID, *words]]))
    return np.asarray(logits, np.float64)[0]


forward = jax.jit(lambda params, *tokens: EDITED.apply({"params": params}, *tokens, train=False))


class Reference:
    """A beam search for one sentence in plain Python."""

    def __init__(self, model, members, source, prefix, config):
        self.model, self.members, self.source, self.prefix = model, members, source, prefix
        self.config, self.limit = config, len(source) + EXTRA + len(prefix)

    def log_probabilities(self, words):
        """Returns log-probabilities [length, V] of the mean probabilities of the members."""
        total = 0.0
        for number, params in enumerate(self.members):
            if self.model is EDITED:
                logits = edited_logits(number, tuple(self.source), words)
            else:
                inputs = np.array([self.source]), np.array([[BOS_ID, *words]])
                logits = numpy64.transformer(params, *inputs)[0]
            exponentials = np.exp(logits - logits.max(-1, keepdims=True))
            total = total + exponentials / exponentials.sum(-1, keepdims=True)
        return np.log(total / len(self.members))

    def extensions(self, words):
        """Returns {token: log-probability} of the tokens that may follow."""
        position = len(words)
        allowed = set(range(PIECES)) - {PAD_ID, BOS_ID}
        if position + 1 >= self.limit:
            allowed = {EOS_ID}
        elif position < len(self.prefix):
            allowed = {self.prefix[position]}
        elif position + 1 < self.config.min_length:
            allowed -= {EOS_ID}
        found = self.log_probabilities(words)[-1]
        return {token: found[token] for token in allowed}

    def score(self, words):
        """Returns the score of Wu et al. 2016, equation 14."""
        found = self.log_probabilities(words[:-1])
        total = sum(found[i, token] for i, token in enumerate(words))
        score = total / ((5 + len(words)) / 6) ** self.config.length_penalty
        if not self.config.coverage_penalty:
            return score
        penalties = []
        for params in self.members:
            (weights,) = attend_pairs(self.model, params, [self.source], [list(words)], BASE)
            penalties.append(np.log(np.minimum(weights.sum(0), 1)).sum())
        return score + self.config.coverage_penalty * np.mean(penalties)

    def search(self):
        """Returns (output, score) of the best hypothesis that a beam finds."""
        live, finished = [(0.0, ())], []
        while live:
            extended = [
                (total + gain, (*words, token))
                for total, words in live
                for token, gain in self.extensions(words).items()
            ]
            finished += [words for _, words in extended if words[-1] == EOS_ID]
            live = sorted((each for each in extended if each[1][-1] != EOS_ID), reverse=True)
            live = live[: self.config.beam_size]
            if self.config.beam_size == 1 and finished:
                best = max(extended)[1]
                if best[-1] == EOS_ID:
                    return best, self.score(best)
                finished = []
        best = max(finished, key=self.score)
        return best, self.score(best)


def decode_with(*features, **fields):
    """Decodes all sentences. Returns (hypotheses, reference) for each sentence."""
    options = {"model": MODEL, "params": MEMBERS[:1], "prefixes": None}
    fields |= {name: value for feature in features for name, value in FEATURES[feature].items()}
    options |= {name: fields.pop(name) for name in options.keys() & fields.keys()}
    config = dataclasses.replace(BASE, **fields)
    model, params, prefixes = options["model"], options["params"], options["prefixes"]
    found = translate_ids(model, params, SENTENCES, config, prefixes=prefixes)
    return [
        (hypotheses, Reference(model, params, source, prefix, config))
        for hypotheses, source, prefix in zip(found, SENTENCES, prefixes or [[]] * 3, strict=True)
    ]


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_each_pair_of_features_equals_a_plain_search_of_each_sentence(pair):
    for (hypothesis,), reference in decode_with(*pair):
        output, score = reference.search()
        assert tuple(hypothesis.ids) == output
        assert hypothesis.score == pytest.approx(score, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("feature", ["ensemble", "prefixes", "minimum", "batches", "edits"])
def test_samples_with_a_feature_have_their_log_probabilities(feature):
    for hypotheses, reference in decode_with(feature, samples=4, temperature=1.5, length_penalty=0.0):
        assert len({tuple(each.ids) for each in hypotheses}) > 1
        for hypothesis in hypotheses:
            ids = tuple(hypothesis.ids)
            assert all(token in reference.extensions(ids[:i]) for i, token in enumerate(ids))
            assert hypothesis.score == pytest.approx(reference.score(ids), rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16"])
@pytest.mark.parametrize("feature", ["ensemble", "edits", "coverage"])
def test_features_in_low_precision_have_nearly_the_same_scores(feature, dtype):
    effects, errors = [], []
    for (hypothesis,), reference in decode_with(feature, dtype=dtype):
        found = reference.score(tuple(hypothesis.ids))
        assert hypothesis.score == pytest.approx(found, rel=0.06)
        without = Reference(MODEL, MEMBERS[:1], reference.source, [], BASE).score(tuple(hypothesis.ids))
        effects.append(abs(without - found))
        errors.append(abs(hypothesis.score - found))
    assert sum(effects) > sum(errors)


TARGETS = [[7, 4, EOS_ID], [5, 6, 8, 3, EOS_ID], [EOS_ID]]
SIBLINGS = {
    # The reference functions receive mean probabilities [length, V] and mean attention [length, source].
    "score": (
        score_pairs,
        lambda probabilities, attention, target: np.log(probabilities[range(len(target)), target]),
    ),
    "attend": (attend_pairs, lambda probabilities, attention, target: attention),
}


def attention_of(params, source, target, layer):
    """Returns the attention [length, source] of a decoder layer to the source, the mean over its heads."""
    inputs = np.array([source]), np.array([[BOS_ID, *target[:-1]]])
    apply = functools.partial(MODEL.apply, {"params": params}, *inputs, train=False)
    _, attention = read_attention(MODEL.attention_points["cross"], apply)
    return np.asarray(attention)[layer][0].mean(0)


@pytest.mark.long
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", SIBLINGS)
def test_scores_and_attention_are_means_over_the_members(name, members):
    function, expect = SIBLINGS[name]
    config = dataclasses.replace(BASE, batch_size=2, attention_layer=0)
    found = function(MODEL, MEMBERS[:members], SENTENCES, TARGETS, config)
    for source, target, values in zip(SENTENCES, TARGETS, found, strict=True):
        reference = Reference(MODEL, MEMBERS[:members], source, [], config)
        probabilities = np.exp(reference.log_probabilities(tuple(target[:-1])))
        attention = np.mean([attention_of(each, source, target, 0) for each in MEMBERS[:members]], axis=0)
        expected = expect(probabilities, attention, target)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), values, expected)


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"beam_size": 1}, {"samples": 2}])
@pytest.mark.parametrize("model", [MODEL, EDITED], ids=["plain", "edited"])
def test_greedy_search_and_samples_ignore_the_coverage_penalty(model, fields):
    """The edited model cannot read the attention, which the penalty needs."""
    found = [
        translate_ids(
            model,
            MEMBERS[0],
            SENTENCES,
            DecodingConfig(coverage_penalty=beta, max_extra_tokens=EXTRA, **fields),
        )
        for beta in (0.0, 0.4)
    ]
    assert found[0] == found[1]
