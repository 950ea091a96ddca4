"""The state that the searches carry: which leaves it may have, and how they follow their hypotheses."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.search_reference import IDS, assert_found, on_host
from tests.support.layer_cases import cache_of
from tfm import search
from tfm.testing.automaton import EOS, Sentence, next_state, random_table


def test_state_leaves_follow_their_hypothesis():
    table, limit = random_table(7, batch=5), 6

    def step(tokens, state, position):
        current = next_state(state["nested"][0][..., 0], tokens)
        logits = jax.vmap(lambda table, row: table[row])(jnp.asarray(table), current)
        return logits, {"nested": [current[..., None]]}

    options = {"beam_size": 3, "length_penalty": 0.6, "max_length": limit, **IDS}
    find = on_host(functools.partial(search.beam_search, step, **options))
    hypotheses = find({"nested": [jnp.zeros((5, 3, 1), jnp.int32)]})
    for row in range(5):
        sentence = Sentence(table[row], limit, alpha=0.6)
        best = sentence.best(sentence.beam(3), 3)
        assert_found(hypotheses, row, [(sentence.score(words), words) for words in best])


def step(tokens, state, position):
    return jnp.zeros((*tokens.shape, 4)), state


OPTIONS = {"max_length": 3, **IDS}
SEARCHES = {
    "beam": functools.partial(
        search.beam_search, step, beam_size=3, length_penalty=0.6, reorder=lambda state, _: state, **OPTIONS
    ),
    "greedy": functools.partial(search.greedy_search, step, **OPTIONS),
    "sample": functools.partial(search.sample, step, rng=jax.random.key(0), **OPTIONS),
}


@pytest.mark.long
@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 1, 3)])
def test_leaves_without_a_beam_axis_need_reorder(shape):
    state = {"own": jnp.zeros((2, 3, 4)), "row": jnp.zeros(shape)}
    find = functools.partial(search.beam_search, step, state, beam_size=3, length_penalty=0.6, **OPTIONS)
    with pytest.raises(ValueError, match=rf"B and W \(2, 3\), .*{re.escape(str(shape))}"):
        find()
    assert (find(reorder=lambda state, _: state).lengths > 0).all()


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("shapes", [[], [()], [(2, 3), ()], [(2, 3), (4, 3)]])
def test_states_without_a_batch_axis_are_errors(name, shapes):
    with pytest.raises(ValueError, match="axis B"):
        SEARCHES[name](list(map(jnp.zeros, shapes)))


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_beyond_their_cache_are_errors(name):
    assert (SEARCHES[name](cache_of(3)).lengths > 0).all()
    with pytest.raises(ValueError, match=r"max_length .*at most 2,.*DecodingCache.* 3\b"):
        SEARCHES[name]({"nested": (cache_of(9), cache_of(2))})


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"constraints": search.Constraints(forbidden=(0, EOS))},
            r"constraints\.forbidden .*eos_id 1.*\(0, 1\)",
        ),
        ({"constraints": search.Constraints(np.array([2, 0]))}, r"constraints\.limits .*at least 1.* 0\b"),
        ({"max_length": 0}, r"max_length .*at least 1.* 0\b"),
    ],
)
def test_unsatisfiable_constraints_are_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(functools.partial(SEARCHES[name], **options))(cache_of(3))


@pytest.mark.parametrize("name", SEARCHES)
def test_nan_logits_give_nan_scores(name):
    """So that whoever reads the result can tell it from an empty output."""
    find = functools.partial(
        SEARCHES[name].func, lambda tokens, state, _: (jnp.full((2, *tokens.shape[1:], 4), jnp.nan), state)
    )
    assert np.isnan(find(cache_of(3), **SEARCHES[name].keywords).scores).all()


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos_id": 5}, r"eos_id .*from 0 to 4.* 5\b"),
        ({"eos_id": -1}, r"eos_id .*from 0 to 4.* -1\b"),
        ({"bos_id": 5}, r"bos_id .*from 0 to 4.* 5\b"),
        ({"length_penalty": NAN}, "length_penalty .*nan.* 4 tokens"),
        ({"length_penalty": 1e308}, "length_penalty .*1e.308.* 4 tokens"),
        ({"constraints": search.Constraints(forbidden=(-1,))}, r"constraints\.forbidden .*\(-1,\)"),
    ],
)
def test_ids_and_penalties_have_ranges(options, message):
    """JAX takes the last token for one beyond the vocabulary."""
    options = {"length_penalty": 0.6, "max_length": 4, "bos_id": 1, "eos_id": 2} | options

    def step(tokens, state, position):
        return jnp.zeros((*tokens.shape, 5)), state

    with pytest.raises(ValueError, match=message):
        search.beam_search(step, {"a": jnp.zeros((2, 3))}, beam_size=3, **options)
    with pytest.raises(ValueError, match=message):
        search.greedy_search(step, {"a": jnp.zeros((2, 1))}, **options)
