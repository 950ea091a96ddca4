"""Searches over the model of tests.support.automaton, with any step and length, and slow references."""

import jax
import numpy as np

from tests.support.automaton import BOS, EOS, VOCABULARY, begin, penalty, reorder, step
from tfm import search
from tfm.testing.models import quick_jit


def make_limits(max_length, max_lengths=None, **constraints):
    return search.Limits(max_length, BOS, EOS, search.Constraints(max_lengths, **constraints))


def on_host(function, *static):
    """Returns the compiled function with NumPy arrays as results."""
    jitted = quick_jit(function, static_argnames=static)
    return lambda *args, **kwargs: jax.tree.map(np.asarray, jitted(*args, **kwargs))


def run_beam(table, alpha, beam_size, max_length, limits=None, run=search.beam_search, step=step, **options):
    return run(
        step,
        begin(table, beam_size),
        make_limits(max_length, limits),
        batch_size=len(table),
        beam_size=beam_size,
        length_penalty=alpha,
        reorder=reorder,
        **options,
    )


def run_greedy(table, max_length, limits=None, step=step):
    limits = make_limits(max_length, limits)
    return search.greedy_search(step, begin(table, 1), limits, batch_size=len(table))


def run_sample(table, rng, samples, max_length, step=step, **options):
    options |= {"samples": samples, "rng": rng, "batch_size": len(table)}
    return search.sample(step, begin(table, samples), make_limits(max_length), **options)


beam = on_host(run_beam, "beam_size", "max_length", "n_best", "step", "coverage", "run")
greedy = on_host(run_greedy, "max_length", "step")
sample = on_host(run_sample, "samples", "max_length", "temperature", "top_k", "top_p", "step")


class CountingStep:
    """A step that counts its calls."""

    def __init__(self):
        self._positions = []

    def __call__(self, tokens, state, position):
        jax.debug.callback(lambda at: self._positions.append(int(at)), position)
        return step(tokens, state, position)

    def count(self):
        """Returns the number of calls since the last one of this method, and checks their positions."""
        jax.effects_barrier()
        positions, self._positions = sorted(self._positions), []
        assert positions == list(range(len(positions)))
        return len(positions)


def steps_needed(sentence, width, count):
    """Returns the number of steps after which no live hypothesis can be among the best `count`."""
    live, finished = [(0.0, ())], []
    for length in range(1, sentence.limit + 1):
        extended = [
            (score + gain, (*words, token))
            for score, words in live
            for token, gain in sentence.extensions(words).items()
        ]
        finished = sentence.best([*finished, *(words for _, words in extended if words[-1] == EOS)], count)
        live = sorted((each for each in extended if each[1][-1] != EOS), reverse=True)[:width]
        worst = sentence.score(finished[-1]) if len(finished) == count else -np.inf
        ends = range(length + 1, sentence.limit + 1) if live else ()
        if not any(live[0][0] / penalty(end, sentence.alpha) > worst for end in ends):
            return length
    return sentence.limit


def truncated_probabilities(log_probabilities, temperature=1.0, top_k=0, top_p=1.0):
    """Keeps tokens from the most probable one on, while fewer than `top_k` and less than `top_p` are kept."""
    probabilities = np.exp(log_probabilities / temperature)
    order = np.argsort(-probabilities)
    probabilities[order[top_k or VOCABULARY :]] = 0
    probabilities /= probabilities.sum()
    kept, total = np.zeros(VOCABULARY), 0.0
    for token in order:
        if total < top_p:
            kept[token] = probabilities[token]
        total += probabilities[token]
    return kept / kept.sum()


def sequence_probability(sentence, words, **truncation):
    """Returns the probability of a sample. The token at the limit is always EOS."""
    free = words[: sentence.limit - 1]
    steps = [
        truncated_probabilities(sentence.log_probabilities(words[:i]), **truncation) for i in range(len(free))
    ]
    return np.prod([probabilities[word] for probabilities, word in zip(steps, free, strict=True)])


def assert_found(hypotheses, row, expected, rtol=1e-4):
    """Asserts that a row of the hypotheses has exactly these [(score, output)], the best first."""
    tokens, scores, lengths = (x[row] for x in hypotheses)
    found = [tuple(words[:length].tolist()) for words, length in zip(tokens, lengths, strict=True)]
    best = sorted(expected, reverse=True)
    assert [words for words in found if words] == [words for _, words in best]
    np.testing.assert_allclose(scores[: len(best)], [score for score, _ in best], rtol=rtol, atol=1e-6)
    assert np.isneginf(scores[len(best) :]).all()


def sequences(hypotheses):
    """Returns [(row, score, tokens up to their length)] of all hypotheses."""
    return [
        (row, hypotheses.scores[row, i], tuple(hypotheses.tokens[row, i, :length].tolist()))
        for row, lengths in enumerate(hypotheses.lengths)
        for i, length in enumerate(lengths)
    ]
