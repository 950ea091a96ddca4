"""The state that the searches carry: which leaves it may have, and how they follow their hypotheses."""

import functools

import jax
import jax.numpy as jnp
import pytest

from tests.search_reference import (
    BOS,
    EOS,
    assert_found,
    make_table,
    next_hash,
    on_host,
    reference_beam,
)
from tfm import search


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
    "beam": functools.partial(search.beam_search, step, beam_size=3, length_penalty=0.6, **OPTIONS),
    "greedy": functools.partial(search.greedy_search, step, **OPTIONS),
    "sample": functools.partial(search.sample, step, rng=jax.random.key(0), **OPTIONS),
}


@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 1, 3)])
def test_a_leaf_without_the_beams_axis_needs_its_own_reorder(shape):
    state = {"own": jnp.zeros((2, 3, 4)), "sentence": jnp.zeros(shape)}
    with pytest.raises(ValueError, match=r"leaves \[B, W, \.\.\.\], B and W \(2, 3\), got one of shape"):
        SEARCHES["beam"](state)
    assert (SEARCHES["beam"](state, reorder=lambda state, _: state).lengths > 0).all()


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("shapes", [[], [()], [(2, 3), ()], [(2, 3), (4, 3)]])
def test_a_state_that_tells_no_batch_is_an_error(name, shapes):
    with pytest.raises(ValueError, match="leaves all begin with the axis B, got the shapes"):
        SEARCHES[name](list(map(jnp.zeros, shapes)))
