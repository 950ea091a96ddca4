"""Tests of the traced tree of a beam search."""

import jax
import numpy as np
import pytest

from tests.support.automaton import BOS, EOS, begin, next_state, random_table, reorder, step
from tfm import search
from tfm.interpret.beam import Extension, trace_steps


@pytest.mark.long
def test_each_step_extends_hypotheses_of_the_step_before():
    """The log-probability of an extension is the sum over its parent and its token in the table."""
    table = random_table(3, 1)
    options = {"beam_size": 3, "length_penalty": 0.6, "batch_size": 1, "reorder": reorder}
    found, trace = jax.tree.map(
        np.asarray, search.trace_beam_search(step, begin(table, 3), search.Limits(6, BOS, EOS), **options)
    )
    steps = trace_steps(trace, list)
    prefixes = [((), 0.0, 0)]  # tokens, log-probability, state of the automaton
    ended = []
    for extensions in steps:
        following = []
        for each in extensions:
            tokens, log, state = prefixes[each.parent]
            state = next_state(state, tokens[-1] if tokens else BOS)
            logits = table[0, state].astype(np.float64)
            gain = logits[each.label] - np.logaddexp.reduce(logits)
            if each.score is None:
                np.testing.assert_allclose(each.log_probability, log + gain, rtol=1e-4)
                np.testing.assert_allclose(each.probability, np.exp(gain), rtol=1e-4)
                following.append(((*tokens, each.label), log + gain, state))
            else:
                assert (each.label, each.log_probability, each.probability) == (EOS, None, None)
                score = (log + gain) / ((5 + len(tokens) + 1) / 6) ** 0.6
                np.testing.assert_allclose(each.score, score, rtol=1e-4)
                ended.append((*tokens, EOS))
        prefixes = following
    best = [tuple(ids[:length]) for ids, length in zip(found.tokens[0], found.lengths[0], strict=True)]
    assert set(best) <= set(ended)
    assert [each.label for extensions in steps for each in extensions if each.best] == list(best[0])


def test_traced_steps_end_with_the_search():
    tokens = np.array([[[[5, 0, 0]]], [[[5, 6, 0]]], [[[5, 6, 0]]]])
    scores = np.array([[[-1.0]], [[-np.inf]], [[-np.inf]]])
    finished = search.Hypotheses(
        np.array([[[[0, 0, 0]]], [[[5, 2, 0]]], [[[5, 2, 0]]]]),
        np.array([[[-np.inf]], [[-2.0]], [[-2.0]]]),
        np.array([[[0]], [[2]], [[2]]]),
    )
    steps = trace_steps(search.BeamTrace(tokens, scores, finished), list)
    first, last = (
        Extension(5, -1.0, float(np.exp(-1.0)), None, 0, True),
        Extension(2, None, None, -2.0, 0, True),
    )
    assert steps == [[first], [last]]
