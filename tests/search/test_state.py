"""The state that the searches carry: which leaves it may have, and how they follow their hypotheses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.search_reference import (
    BOS,
    EOS,
    assert_found,
    make_table,
    next_hash,
    on_host,
    reference_beam,
)
from tfm import search
from tfm.layers.kv_cache import DecodeCache, LayerCache
from tfm.search.hypotheses import largest


def test_by_default_every_leaf_of_the_state_follows_its_hypothesis():
    table = make_table(7, batch=5)

    def step(tokens, state, position):
        prefix_hash = next_hash(state["nested"][0][..., 0], tokens)
        logits = jax.vmap(lambda table, row: table[row])(jnp.asarray(table), prefix_hash)
        return logits, {"nested": [prefix_hash[..., None]]}

    search_all = functools.partial(search.beam_search, step)
    hypotheses = on_host(search_all, "beam_size", "max_length", "bos_id", "eos_id")(
        {"nested": [jnp.zeros((5, 3, 1), jnp.int32)]},
        beam_size=3,
        length_penalty=0.6,
        max_length=6,
        bos_id=BOS,
        eos_id=EOS,
    )
    for row in range(5):
        assert_found(hypotheses, row, reference_beam(table[row], 3, 3, 0.6, 6)[0])


def step(tokens, state, position):
    return jnp.zeros((*tokens.shape, 4)), state


OPTIONS = {"max_length": 3, "bos_id": BOS, "eos_id": EOS}
SEARCHES = {
    "beam": functools.partial(
        search.beam_search, step, beam_size=3, length_penalty=0.6, reorder=lambda state, _: state, **OPTIONS
    ),
    "greedy": functools.partial(search.greedy_search, step, **OPTIONS),
    "sample": functools.partial(search.sample, step, rng=jax.random.key(0), **OPTIONS),
}


@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 1, 3)])
def test_a_leaf_without_the_beams_axis_needs_its_own_reorder(shape):
    state = {"own": jnp.zeros((2, 3, 4)), "sentence": jnp.zeros(shape)}
    find = functools.partial(search.beam_search, step, state, beam_size=3, length_penalty=0.6, **OPTIONS)
    with pytest.raises(ValueError, match=r"leaves \[B, W, \.\.\.\], B and W \(2, 3\), got one of shape"):
        find()
    assert (find(reorder=lambda state, _: state).lengths > 0).all()


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("shapes", [[], [()], [(2, 3), ()], [(2, 3), (4, 3)]])
def test_a_state_that_tells_no_batch_is_an_error(name, shapes):
    with pytest.raises(ValueError, match="leaves all begin with the axis B, got the shapes"):
        SEARCHES[name](list(map(jnp.zeros, shapes)))


def cache_of(max_length):
    """A cache of two sentences and three hypotheses."""
    features = jnp.zeros((2, 5, 1, 4))
    return DecodeCache(
        layers=[LayerCache.empty(features, features, 3, max_length)],
        memory_mask=jnp.ones((2, 1, 1, 5), bool),
        ancestors=jnp.zeros((2, 3, max_length), jnp.int32),
        attended=jnp.zeros((2, 3, 5)),
    )


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_beyond_its_cache_is_an_error(name):
    assert (SEARCHES[name](cache_of(3)).lengths > 0).all()
    with pytest.raises(ValueError, match=r"max_length must be at most 2, .*DecodeCache.* got 3"):
        SEARCHES[name]({"nested": (cache_of(9), cache_of(2))})


def test_a_known_position_beyond_the_cache_is_an_error():
    cache_of(3).begin(2)
    for position in (3, np.int64(7)):
        with pytest.raises(ValueError, match=rf"below the cache's max_length 3, got {position}"):
            cache_of(3).begin(position)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"constraints": search.Constraints(forbidden=(0, EOS))},
            r"forbidden must not have eos_id 1.*\(0, 1\)",
        ),
        ({"constraints": search.Constraints(np.array([2, 0]))}, "limits must be at least 1, for EOS, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, for EOS, got 0"),
    ],
)
def test_constraints_that_allow_no_output_are_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(functools.partial(SEARCHES[name], **options))(cache_of(3))


@pytest.mark.parametrize("name", SEARCHES)
def test_logits_that_are_no_numbers_give_such_scores(name):
    """So that whoever reads the result can tell it from an empty output."""
    find = functools.partial(
        SEARCHES[name].func, lambda tokens, state, _: (jnp.full((2, *tokens.shape[1:], 4), jnp.nan), state)
    )
    assert np.isnan(find(cache_of(3), **SEARCHES[name].keywords).scores).all()


@pytest.mark.parametrize("length", [7, 12, 330, 1024, 1280])
def test_top_k_in_two_stages_is_top_k(length):
    x = np.random.default_rng(length).permutation(4 * length).reshape(4, length).astype(np.float32)
    for count in (1, 3, 7):
        values, tokens = largest(x, count)
        expected = np.argsort(-x)[:, :count]
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=1))


def test_a_cache_sums_the_attention_of_each_hypothesis():
    weights = np.random.default_rng(0).random((3, 2, 3, 5)).astype(np.float32)
    cache = cache_of(4).attend(weights[0]).attend(weights[1])
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    cache = cache.reorder(parents).attend(weights[2])
    expected = np.take_along_axis(weights[0] + weights[1], parents[..., None], axis=1) + weights[2]
    np.testing.assert_allclose(cache.attended, expected, rtol=1e-6)


def test_an_ensemble_gives_the_log_of_the_mean_probability():
    logits = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)  # models, B, W, V
    steps = [lambda tokens, state, position, one=one: (jnp.asarray(one), state + 1) for one in logits]
    found, states = search.ensemble(*steps)(jnp.zeros((2, 4), int), (0, 10, 20), 0)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.exp(found), probabilities.mean(0), rtol=1e-5)
    assert states == (1, 11, 21)
