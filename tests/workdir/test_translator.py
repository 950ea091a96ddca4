"""Tests of `Translator`: options, pickles and edits."""

import pickle

import jax
import pytest

import tfm
from tfm.errors import UserError
from tfm.interpret import edits

TEXTS = ["red dog", "blue cat"]


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator.load(str(tiny_run))


def test_error_for_an_unknown_option_suggests_the_nearest_option(translator):
    with pytest.raises(UserError, match=r"'beam_siz'.*'beam_size'"):
        translator.translate(TEXTS, beam_siz=2)


@pytest.mark.long
def test_unpickled_translator_translates_like_the_original(translator):
    copied = pickle.loads(pickle.dumps(translator))
    assert copied.translate(TEXTS, beam_size=1) == translator.translate(TEXTS, beam_size=1)
    assert copied.run.steps == translator.run.steps
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), copied.run.params, translator.run.params))


@pytest.mark.long
def test_edits_change_only_the_returned_translator(translator):
    before = translator.score(TEXTS, TEXTS)
    edited = translator.with_edits({"decoder.*.cross_attention.head_outputs": edits.zero_head(0)})
    after = edited.score(TEXTS, TEXTS)
    assert not all((x == y).all() for x, y in zip(before, after, strict=True))
    assert all((x == y).all() for x, y in zip(before, translator.score(TEXTS, TEXTS), strict=True))
