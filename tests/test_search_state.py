"""The state that the searches carry: which leaves it may have, and how they follow their hypotheses."""

import functools

import jax
import jax.numpy as jnp

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
