"""Tests of the translation of ids and texts by a bigram model: limits, samples and split texts."""

import types

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.tasks.translation.text_form import TextForm

PIECES = 12
SEARCHES = {"greedy": {"beam_size": 1}, "beam": {"beam_size": 3}, "samples": {"samples": 3}}


@flax.struct.dataclass
class EmptyCache:
    """The cache of a model without memory."""

    width: jax.Array

    def reorder(self, parents):
        return self


class Bigrams:
    """A model whose logits depend only on the last token. params["model"]["table"] is [V, V]."""

    config = types.SimpleNamespace(max_length=None)

    def apply(self, variables, *arguments, method, **options):
        if method == "init_cache":
            return EmptyCache(jnp.zeros((len(arguments[0]), options["width"])))
        tokens, cache, _ = arguments
        return variables["params"]["model"]["table"][tokens], cache


MODEL = Bigrams()


def bigrams(**logits):
    """Returns random parameters. The named tokens have the same logit after every token."""
    table = np.random.default_rng(0).normal(size=(PIECES, PIECES)).astype(np.float32)
    for name, logit in logits.items():
        table[:, {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID}[name]] = logit
    return {"model": {"table": table}}


def inputs_of(*lengths):
    return [[*range(3, 2 + length), EOS_ID] for length in lengths]


@pytest.mark.long
@pytest.mark.parametrize("prefix_lengths", [(0, 0, 0, 0), (0, 1, 8, 9)])  # 8 and 9 are in different buckets
@pytest.mark.parametrize("name", SEARCHES)
def test_output_ends_at_the_limit_of_its_own_input_and_prefix(name, prefix_lengths):
    """Padding and BOS are never chosen, although the model prefers them to EOS."""
    lengths, prefixes = (8, 3, 8, 9), [[4] * length for length in prefix_lengths]
    config, params = DecodingConfig(max_extra_tokens=3, **SEARCHES[name]), bigrams(pad=2, bos=2, eos=-60)
    outputs = translate_ids(MODEL, params, inputs_of(*lengths), config, prefixes=prefixes)
    for hypotheses, length, prefix in zip(outputs, lengths, prefixes, strict=True):
        for ids, _ in hypotheses:
            assert len(ids) == length + len(prefix) + 3
            assert ids[: len(prefix)] == prefix
            assert not {PAD_ID, BOS_ID} & set(ids)


@pytest.mark.parametrize(
    ("no_repeat_ngram", "warning"),
    [pytest.param(0, "", marks=pytest.mark.long), (1, "1 of 2 outputs lack a phrase")],
)
def test_output_without_its_phrase_is_a_warning(no_repeat_ngram, warning, caplog):
    config = DecodingConfig(beam_size=3, max_extra_tokens=3, no_repeat_ngram=no_repeat_ngram)
    phrases = [[[5, 5]], [[6], [7]]]
    outputs = translate_ids(MODEL, bigrams(), inputs_of(3, 3), config, phrases=phrases)
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)
    assert {6, 7} <= set(outputs[1][0].ids)


@pytest.mark.parametrize(("minimum", "warning"), [(6, ""), (7, "1 of 2 outputs"), (8, "2 of 2 outputs")])
def test_limit_below_the_minimum_length_is_a_warning(minimum, warning, caplog):
    """Inputs of 3 and 4 tokens allow outputs of 6 and 7 tokens."""
    config = DecodingConfig(max_extra_tokens=3, min_length=minimum, beam_size=1)
    translate_ids(MODEL, bigrams(), inputs_of(3, 4), config)
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)


@pytest.mark.parametrize("prefixes", [[], [[4]], [[4]] * 3])
def test_prefixes_that_do_not_pair_with_sources_are_an_error(prefixes):
    with pytest.raises(UserError, match=f"each of 2 sources, got {len(prefixes)}"):
        translate_ids(MODEL, bigrams(), inputs_of(3, 4), DecodingConfig(), prefixes=prefixes)


@pytest.mark.long
def test_samples_depend_on_the_seed_and_on_the_number_of_their_input():
    def draw(lengths, **fields):
        outputs = translate_ids(MODEL, bigrams(), inputs_of(*lengths), DecodingConfig(samples=2, **fields))
        return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in outputs]

    lengths = (3, 9, 4, 8, 5)
    assert draw(lengths, batch_size=2) == draw(lengths) != draw(lengths, seed=1)
    assert len({tuple(ids) for one in draw([6] * 4) for ids in one}) > 4


class Numbers:
    """A tokenizer of texts that consist of ids."""

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        return " ".join(str(i) for i in ids if i != EOS_ID)

    def unknown_characters(self, characters):
        return []

    def pieces(self, ids):
        return list(map(str, ids))

    def word_starts(self, ids):
        return [True] * len(ids)


def translate(texts, params, n_best=1, **options):
    task = TextTranslation()
    task.model, task.form = MODEL, TextForm(Numbers())
    return task.hypotheses(params, texts, DecodingConfig(**options), n_best=n_best)


@pytest.mark.long
def test_samples_are_ordered_by_utility():
    (found,) = translate(["3 4 5 6"], bigrams(), n_best=6, samples=6, max_extra_tokens=4)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]


SAMPLING = {"n_best": 4, "samples": 4, "max_extra_tokens": 6, "max_input": 4}


@pytest.mark.long
def test_samples_do_not_depend_on_the_number_of_parts_of_other_texts():
    _, after_a_short_text = translate(["3", "3 4"], bigrams(), **SAMPLING)
    _, after_a_long_text = translate(["3 4 5 6 7 8 9", "3 4"], bigrams(), **SAMPLING)
    assert after_a_long_text == after_a_short_text


def test_equal_parts_of_a_text_have_different_samples():
    (joined,) = translate(["3 4 5 3 4 5"], bigrams(eos=-60), **SAMPLING)
    halves = [one.text.split() for one in joined]
    assert all(half[:9] != half[9:] for half in halves)


@pytest.mark.long
def test_config_whose_scores_exceed_float32_is_an_error():
    DecodingConfig(length_penalty=10, max_input=8_000, max_extra_tokens=8_000)
    with pytest.raises(UserError, match=r"length_penalty 10 .*40,000 tokens. Lower it to at most 9\."):
        DecodingConfig(length_penalty=10, max_input=20_000, max_extra_tokens=20_000)
    DecodingConfig(length_penalty=9.0, max_input=20_000, max_extra_tokens=20_000)
    with pytest.raises(UserError, match=r"length_penalty 10 .*50,000 tokens. Lower it to at most 8\.8\."):
        GenerationConfig(length_penalty=10, max_tokens=50_000)
    GenerationConfig(length_penalty=8.8, max_tokens=50_000)
