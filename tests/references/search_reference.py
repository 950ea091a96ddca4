"""What the tests of search share: a small random model, the searches jitted over it, and plain references.

The model takes its logits from a random table by a hash of the whole prefix, kept in the state: a hypothesis
that lost its own state, or its own tokens, gets another one's probabilities.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tfm import search

V, EOS, BOS = 4, 1, 2
HASHES = 997


def make_table(seed, batch, sharpness=2.0, ruled_out=0.0):
    """Logits [B, hashes, V]; a share `ruled_out` of them is -inf."""
    rng = np.random.default_rng(seed)
    table = sharpness * rng.normal(size=(batch, HASHES, V))
    return np.where(rng.random(table.shape) < ruled_out, -np.inf, table).astype(np.float32)


def next_hash(prefix_hash, token):
    return (prefix_hash * 31 + token * 7 + 11) % HASHES


def hash_step(tokens, state, position):
    prefix_hash = next_hash(state["hash"], tokens)
    return jax.vmap(lambda table, row: table[row])(state["table"], prefix_hash), state | {"hash": prefix_hash}


def start(table, width):
    return {"hash": jnp.zeros((len(table), width), jnp.int32), "table": jnp.asarray(table)}


def reorder(state, parents):
    """The table belongs to the row, not to a hypothesis: only the hash is reordered."""
    return state | {"hash": search.gather_beams(state["hash"], parents)}


def on_host(function, *static):
    """Jitted, with NumPy results; hardly optimised, since the tests compile more than they compute."""
    options = {"xla_backend_optimization_level": 0}
    jitted = jax.jit(function, static_argnames=static, compiler_options=options)
    return lambda *args, **kwargs: jax.tree.map(np.asarray, jitted(*args, **kwargs))


def run_beam(
    table,
    alpha,
    beam_size,
    max_length,
    n_best=None,
    limits=None,
    step=hash_step,
    coverage=None,
    run=search.beam_search,
    **others,
):
    return run(
        step,
        start(table, beam_size),
        beam_size=beam_size,
        length_penalty=alpha,
        max_length=max_length,
        bos_id=BOS,
        eos_id=EOS,
        constraints=search.Constraints(limits, **others),
        n_best=n_best,
        reorder=reorder,
        coverage=coverage,
    )


def run_greedy(table, max_length, limits=None, step=hash_step, alpha=0.0, **others):
    return search.greedy_search(
        step,
        start(table, 1),
        length_penalty=alpha,
        max_length=max_length,
        bos_id=BOS,
        eos_id=EOS,
        constraints=search.Constraints(limits, **others),
    )


def run_sample(table, seed, samples, max_length, limits=None, step=hash_step, prefix=None, **options):
    return search.sample(
        step,
        start(table, samples),
        jax.random.key(seed),
        samples=samples,
        max_length=max_length,
        bos_id=BOS,
        eos_id=EOS,
        constraints=search.Constraints(limits, prefix=prefix),
        **options,
    )


beam = on_host(run_beam, "beam_size", "max_length", "n_best", "step", "coverage", "minimum", "forbidden")
greedy = on_host(run_greedy, "max_length", "step", "minimum", "forbidden")
sample = on_host(run_sample, "samples", "max_length", "temperature", "top_k", "top_p", "step")


class CountingStep:
    """The step of these tests that notes at which positions it ran."""

    def __init__(self):
        self._positions = []

    def __call__(self, tokens, state, position):
        jax.debug.callback(lambda at: self._positions.append(int(at)), position)
        return hash_step(tokens, state, position)

    def count(self):
        """Since the last call of this method; checks that the positions were 0, 1, 2, ..."""
        jax.effects_barrier()
        positions, self._positions = sorted(self._positions), []
        assert positions == list(range(len(positions)))
        return len(positions)


# The references: one row, float64, plain Python.


def reference_logits(table, prefix):
    """Of one row's table [hashes, V]; prefix a tuple of tokens without BOS."""
    prefix_hash = functools.reduce(next_hash, (BOS, *prefix), 0)
    return table[prefix_hash].astype(np.float64)


def reference_log_probabilities(table, prefix):
    logits = reference_logits(table, prefix)
    if np.isneginf(logits).all():
        return logits
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def penalized(log_probability, length, alpha):
    return log_probability / ((5 + length) / 6) ** alpha


def log_probability(table, sequence):
    steps = enumerate(sequence)
    return sum(reference_log_probabilities(table, sequence[:position])[token] for position, token in steps)


def every_sequence(limit):
    others = [token for token in range(V) if token != EOS]
    return [
        (*words, EOS)
        for length in range(1, limit + 1)
        for words in itertools.product(others, repeat=length - 1)
    ]


def reference_greedy(table, limit):
    prefix = ()
    while len(prefix) < limit - 1 and EOS not in prefix:
        prefix += (int(reference_log_probabilities(table, prefix).argmax()),)
    return prefix if EOS in prefix else (*prefix, EOS)


def reference_beam(table, width, n_best, alpha, limit):
    """([(score, sequence)] best first, the steps that were needed), found without ever stopping early."""
    live, finished, needed = [(0.0, ())], [], None
    for length in range(1, limit + 1):
        log_probabilities = [reference_log_probabilities(table, prefix) for _, prefix in live]
        extended = [
            (score + log_probabilities[i][token], (*prefix, token))
            for i, (score, prefix) in enumerate(live)
            for token in range(V)
            if log_probabilities[i][token] > -np.inf
        ]
        finished += [
            (penalized(score, length, alpha), words) for score, words in extended if words[-1] == EOS
        ]
        finished = sorted(finished, reverse=True)[:n_best]
        live = sorted((x for x in extended if x[1][-1] != EOS), reverse=True)[:width]
        reachable = [penalized(live[0][0], end, alpha) for end in range(length + 1, limit + 1) if live]
        worst = finished[-1][0] if len(finished) == n_best else -np.inf
        if needed is None and not any(score > worst for score in reachable):
            needed = length
    return finished, needed


def truncated_probabilities(logits, temperature, top_k, top_p):
    """Token by token, from the most probable: kept while fewer than `top_k` and below `top_p` are kept."""
    probabilities = np.exp(logits / temperature)
    order = np.argsort(-probabilities)
    probabilities[order[top_k or V :]] = 0
    probabilities /= probabilities.sum()
    kept, total = np.zeros(V), 0.0
    for token in order:
        if total < top_p:
            kept[token] = probabilities[token]
        total += probabilities[token]
    return kept / kept.sum()


def sequence_probability(table, words, limit, **truncation):
    """Of a sample; the token at the limit is EOS by rule."""
    free = words[: limit - 1]
    chosen = [
        truncated_probabilities(reference_logits(table, words[:i]), **truncation)[word]
        for i, word in enumerate(free)
    ]
    return np.prod(chosen)


# What was found.


def assert_found(hypotheses, row, expected, rtol=1e-5):
    """Row `row` of the hypotheses is exactly the list [(score, sequence)], then nothing."""
    tokens, scores, lengths = (x[row] for x in hypotheses)
    found = [tuple(words[:length].tolist()) for words, length in zip(tokens, lengths, strict=True)]
    assert found[: len(expected)] == [words for _, words in expected]
    np.testing.assert_allclose(
        scores[: len(expected)], [score for score, _ in expected], rtol=rtol, atol=1e-6
    )
    assert (lengths[len(expected) :] == 0).all()
    assert np.isneginf(scores[len(expected) :]).all()


def sequences(hypotheses):
    """[(row, score, tokens up to their length)] of everything found."""
    return [
        (row, hypotheses.scores[row, i], tuple(hypotheses.tokens[row, i, :length].tolist()))
        for row, lengths in enumerate(hypotheses.lengths)
        for i, length in enumerate(lengths)
    ]
