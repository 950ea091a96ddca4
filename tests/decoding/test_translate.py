"""What joins search, models and texts: limits, forbidden tokens, keys of samples, ensembles, split texts."""

import types

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.tasks.translation.pipeline import translate_texts

PIECES = 12
SEARCHES = {"greedy": {"beam_size": 1}, "beam": {"beam_size": 3}, "samples": {"samples": 3}}


@flax.struct.dataclass
class Nothing:
    """The state of a model that remembers nothing."""

    width: jax.Array

    def reorder(self, parents):
        return self


class Bigrams:
    """A model whose logits depend on the last token alone: params["model"]["table"] is [V, V]."""

    config = types.SimpleNamespace(max_length=None)

    def apply(self, variables, *arguments, method, **options):
        if method == "init_cache":
            return Nothing(jnp.zeros((len(arguments[0]), options["width"])))
        tokens, cache, _ = arguments
        return variables["params"]["model"]["table"][tokens], cache


MODEL = Bigrams()


def bigrams(**logits):
    """Random parameters, with the same logit everywhere for the tokens that are named."""
    table = np.random.default_rng(0).normal(size=(PIECES, PIECES)).astype(np.float32)
    for name, logit in logits.items():
        table[:, {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID}[name]] = logit
    return {"model": {"table": table}}


def inputs_of(*lengths):
    return [[*range(3, 2 + length), EOS_ID] for length in lengths]


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_limits_depend_on_each_own_input(name):
    """Whatever the inputs beside it are: a model that never ends by itself is ended there."""
    config = DecodingConfig(max_extra_tokens=3, **SEARCHES[name])
    found = translate_ids(MODEL, bigrams(eos=-30.0), inputs_of(2, 9, 5), config)
    assert [{len(one.ids) for one in each} for each in found] == [{5}, {12}, {8}]


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_limits_count_the_tokens_of_each_own_prefix(name):
    """Prefixes of 8 and 9 tokens are as long as a bucket, and one longer."""
    inputs, lengths = inputs_of(8, 3, 8, 9), [0, 1, 8, 9]
    config = DecodingConfig(max_extra_tokens=3, **SEARCHES[name])
    prefixes = [[4] * length for length in lengths]
    found = translate_ids(MODEL, bigrams(eos=-60.0), inputs, config, prefixes=prefixes)
    assert [{len(one.ids) for one in each} for each in found] == [{11}, {7}, {19}, {21}]
    for each, length in zip(found, lengths, strict=True):
        assert all(one.ids[:length] == [4] * length for one in each)


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_padding_and_bos_are_never_chosen(name):
    config = DecodingConfig(max_extra_tokens=3, **SEARCHES[name])
    found = translate_ids(MODEL, bigrams(pad=9.0, bos=9.0, eos=-30.0), inputs_of(4, 6), config)
    assert not {PAD_ID, BOS_ID} & {token for each in found for one in each for token in one.ids}


@pytest.mark.parametrize("name", SEARCHES)
def test_config_min_length_holds(name):
    config = DecodingConfig(min_length=4, **SEARCHES[name])
    found = translate_ids(MODEL, bigrams(eos=30.0), inputs_of(4, 6), config)
    assert {len(one.ids) for each in found for one in each[:1]} == {4}


@pytest.mark.long
def test_samples_depend_on_seed_and_input_number():
    inputs, params = inputs_of(3, 9, 4, 8, 5), bigrams()

    def draw(batch_size, seed=0):
        config = DecodingConfig(samples=2, batch_size=batch_size, seed=seed)
        return translate_ids(MODEL, params, inputs, config)

    def ids(found):
        return [[one.ids for one in each] for each in found]

    assert ids(draw(2)) == ids(draw(8)) != ids(draw(8, seed=1))
    equal = translate_ids(MODEL, params, inputs_of(6) * 8, DecodingConfig(samples=1, max_extra_tokens=9))
    assert len({tuple(each[0].ids) for each in equal}) > 4


class Numbers:
    """A tokenizer of texts that are numbers."""

    def encode(self, texts):
        return [list(map(int, text.split())) for text in texts]

    def decode(self, ids):
        return " ".join(str(i) for i in ids if i != EOS_ID)

    def split(self, ids, length):
        return [ids[first : first + length] for first in range(0, len(ids), length)]


def translate(texts, params, **options):
    return translate_texts(MODEL, params, Numbers(), texts, DecodingConfig(**options))


@pytest.mark.long
def test_split_inputs_add_up_their_scores():
    parts, params = ["3 4 5", "6 7 8", "9"], bigrams(eos=-30.0)
    each = translate(parts, params, max_extra_tokens=2)
    (whole,) = translate([" ".join(parts)], params, max_extra_tokens=2, max_input=4)[0]
    assert whole.text == " ".join(found[0].text for found in each)
    assert whole.score == pytest.approx(sum(found[0].score for found in each))
    (cut,) = translate([" ".join(parts)], params, max_extra_tokens=2, max_input=4, overflow="cut")[0]
    assert cut.text == each[0][0].text


def test_samples_are_ordered_by_utility():
    (found,) = translate_texts(
        MODEL, bigrams(), Numbers(), ["3 4 5 6"], DecodingConfig(samples=6, max_extra_tokens=4), n_best=6
    )
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]


@pytest.mark.long
def test_scores_beyond_float32_are_refused():
    DecodingConfig(length_penalty=10, max_input=8_000, max_extra_tokens=8_000)
    with pytest.raises(UserError, match=r"length_penalty 10 .*40,000 tokens"):
        DecodingConfig(length_penalty=10, max_input=20_000, max_extra_tokens=20_000)
