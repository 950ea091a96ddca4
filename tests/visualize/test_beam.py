"""The tree of a beam search: each extension is held to the table of its search."""

import jax
import numpy as np
import pytest

from tfm import search
from tfm.testing.automaton import BOS, EOS, begin, next_state, random_table, reorder, step
from tfm.visualize.beam import Extension, trace_steps


@pytest.mark.long
def test_beam_steps_are_those_of_its_hypotheses():
    """Each extension's log-probability is its parent's and that of its token in the table."""
    table = random_table(3, 1)
    found, traced = trace(table, width=3, length=6)
    steps = trace_steps(traced, list)
    prefixes = [((), 0.0, 0)]  # tokens, log-probability, hash
    ended = []
    for extensions in steps:
        following = []
        for each in extensions:
            tokens, log, hashed = prefixes[each.parent]
            hashed = next_state(hashed, tokens[-1] if tokens else BOS)
            logits = table[0, hashed].astype(np.float64)
            log += logits[each.label] - np.logaddexp.reduce(logits)
            if each.score is None:
                np.testing.assert_allclose(each.log_probability, log, rtol=1e-4)
                following.append(((*tokens, each.label), log, hashed))
            else:
                assert each.label == EOS
                np.testing.assert_allclose(each.score, log / ((5 + len(tokens) + 1) / 6) ** 0.6, rtol=1e-4)
                ended.append(((*tokens, EOS), each.score))
        prefixes = following
    best = [tuple(ids[:length]) for ids, length in zip(found.tokens[0], found.lengths[0], strict=True)]
    assert set(best) <= {ids for ids, _ in ended}
    assert [each.label for step in steps for each in step if each.best] == list(best[0])


def trace(table, width, length):
    """Of beam search over a table of logits, as NumPy arrays."""
    options = {"beam_size": width, "length_penalty": 0.6, "batch_size": len(table), "reorder": reorder}
    limits = search.Limits(length, BOS, EOS)
    found = search.trace_beam_search(step, begin(table, width), limits, **options)
    return jax.tree.map(np.asarray, found)


def test_steps_end_with_the_search():
    tokens = np.array([[[[5, 0, 0]]], [[[5, 6, 0]]], [[[5, 6, 0]]]])
    scores = np.array([[[-1.0]], [[-np.inf]], [[-np.inf]]])
    finished = search.Hypotheses(
        np.array([[[[0, 0, 0]]], [[[5, 2, 0]]], [[[5, 2, 0]]]]),
        np.array([[[-np.inf]], [[-2.0]], [[-2.0]]]),
        np.array([[[0]], [[2]], [[2]]]),
    )
    steps = trace_steps(search.BeamTrace(tokens, scores, finished), list)
    assert steps == [[Extension(5, -1.0, None, 0, True)], [Extension(2, None, -2.0, 0, True)]]
