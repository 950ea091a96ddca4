"""Tests of the state of searches, invalid limits and logits of NaN."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import assert_found, make_limits, on_host
from tests.support.automaton import BOS, EOS, Sentence, next_state, random_table
from tests.support.layer_cases import cache_of
from tfm import search


def test_leaves_of_the_state_follow_their_hypothesis():
    table, limit = random_table(7, batch=5), 6

    def step(tokens, state, position):
        current = next_state(state["nested"][0][..., 0], tokens)
        logits = jax.vmap(lambda table, row: table[row])(jnp.asarray(table), current)
        return logits, {"nested": [current[..., None]]}

    options = {"batch_size": 5, "beam_size": 3, "length_penalty": 0.6}
    find = on_host(functools.partial(search.beam_search, step, limits=make_limits(limit), **options))
    hypotheses = find({"nested": [jnp.zeros((5, 3, 1), jnp.int32)]})
    for row in range(5):
        sentence = Sentence(table[row], limit, alpha=0.6)
        best = sentence.best(sentence.beam(3), 3)
        assert_found(hypotheses, row, [(sentence.score(words), words) for words in best])


def flat(tokens, state, position):
    """Returns the same logit for all four tokens."""
    return jnp.zeros((*tokens.shape, 4)), state


def beam(step, state, limits, **options):
    options = {"beam_size": 3, "length_penalty": 0.6} | options
    return search.beam_search(step, state, limits, reorder=lambda state, _: state, **options)


SEARCHES = {
    "beam": beam,
    "greedy": search.greedy_search,
    "sample": functools.partial(search.sample, rng=jax.random.key(0)),
}
every_search = pytest.mark.parametrize("name", SEARCHES)


def run(name, state=(), step=flat, limits=None, **options):
    find = jax.jit(functools.partial(SEARCHES[name], step, **({"batch_size": 2} | options)), static_argnums=1)
    return find(state, limits or make_limits(3))


@every_search
@pytest.mark.parametrize("state", [{}, (), None])
def test_state_may_be_empty(name, state):
    hypotheses = run(name, state)
    assert (hypotheses.lengths[:, 0] > 0).all()


@pytest.mark.long
@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 1, 3)])
def test_state_without_a_beam_axis_requires_reorder(shape):
    state = {"each": jnp.zeros((2, 3, 4)), "row": jnp.zeros(shape)}
    options = {"batch_size": 2, "beam_size": 3, "length_penalty": 0.6}
    with pytest.raises(ValueError, match=rf"\(B, W\) = \(2, 3\), .*{re.escape(str(shape))}"):
        search.beam_search(flat, state, make_limits(3), **options)
    assert (run("beam", state).lengths > 0).all()


@every_search
@pytest.mark.parametrize("shapes", [[()], [(2, 3), ()], [(2, 3), (4, 3)]])
def test_state_without_a_batch_axis_is_an_error(name, shapes):
    with pytest.raises(ValueError, match="axis B = 2"):
        run(name, list(map(jnp.zeros, shapes)))


@pytest.mark.long
@every_search
def test_search_longer_than_its_cache_is_an_error(name):
    assert (run(name, cache_of(3)).lengths > 0).all()
    with pytest.raises(ValueError, match=r"max_length .*at most 2,.*DecodingCache.* 3\b"):
        run(name, {"nested": (cache_of(9), cache_of(2))})


NAN = float("nan")
UNSATISFIABLE = {
    r"constraints\.forbidden .*eos_id 1.*\(0, 1\)": {"forbidden": (0, EOS)},
    r"constraints\.max_lengths .*at least 1.* 0\b": {"max_lengths": np.array([2, 0])},
    r"max_length .*at least 1.* 0\b": {"max_length": 0},
    r"constraints\.forbidden .*\(-1,\)": {"forbidden": (-1,)},
    r"constraints\.allowed .*V 4.*\(1, 5\)": {"allowed": np.ones((1, 5), bool)},
}


@every_search
@pytest.mark.parametrize("message", UNSATISFIABLE)
def test_unsatisfiable_limits_are_errors(name, message):
    limits = make_limits(**({"max_length": 3} | UNSATISFIABLE[message]))
    with pytest.raises(ValueError, match=message):
        SEARCHES[name](flat, (), limits, batch_size=2)


@every_search
@pytest.mark.parametrize(("name_of_id", "token"), [("eos_id", 4), ("eos_id", -1), ("bos_id", 4)])
def test_ids_outside_the_vocabulary_are_errors(name, name_of_id, token):
    """JAX would clamp such an id and silently read another token."""
    limits = make_limits(3)._replace(**{name_of_id: token})
    with pytest.raises(ValueError, match=rf"{name_of_id} .*from 0 to 3.* {token}\b"):
        run(name, limits=limits)


@pytest.mark.parametrize("name", ["beam", "greedy"])
@pytest.mark.parametrize("penalty", [NAN, 1e308])
def test_length_penalty_with_non_finite_scores_is_an_error(name, penalty):
    with pytest.raises(ValueError, match=rf"length_penalty .*{re.escape(str(penalty))}.* 3 tokens"):
        run(name, length_penalty=penalty)


BESIDES_EOS = search.Constraints(min_length=2, forbidden=(0, 3))


@every_search
@pytest.mark.parametrize("constraints", [search.Constraints(), BESIDES_EOS])
@pytest.mark.parametrize("count", [1, 4])
def test_nan_logits_give_nan_scores(name, constraints, count):
    """Callers can tell NaN from an empty output, even if constraints exclude the tokens with NaN."""

    def step(tokens, state, position):
        return jnp.zeros((*tokens.shape, 4)).at[..., :count].set(NAN), state

    found = run(name, step=step, limits=search.Limits(3, BOS, EOS, constraints))
    assert np.isnan(found.scores[:, 0]).all()
