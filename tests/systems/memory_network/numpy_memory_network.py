"""The end-to-end memory network in NumPy float64, one sentence and one word at a time, from the equations.

It shares no code with `tfm`; only the names of parameters are the same.
"""

import numpy as np


def encode(config, table, words):
    """Returns the vector [d] of a sentence: the sum of l_j * A x_j (section 4.1)."""
    words = [word for word in words if word]
    total = np.zeros(config.features)
    for j, word in enumerate(words, 1):
        for k in range(1, config.features + 1):
            weight = (1 - j / len(words)) - (k / config.features) * (1 - 2 * j / len(words))
            total[k - 1] += (weight if config.position_encoding else 1) * table[word][k - 1]
    return total


def memory_network(config, parameters, story, question):
    """Returns the logits [V] of the answer, and the weights of the hops [K, S] of the S sentences."""
    sentences = [words for words in story if any(words)][-config.memories :]
    u = encode(config, parameters["words_0"], question)
    hops = []
    for hop in range(config.hops):
        m, c = (
            [
                encode(config, parameters[f"words_{k}"], words)
                + (parameters[f"ages_{k}"][age] if config.temporal_encoding else 0)
                for age, words in reversed(list(enumerate(reversed(sentences))))
            ]
            for k in (hop, hop + 1)
        )
        weights = np.exp([u @ each for each in m])
        weights /= weights.sum()
        hops.append(weights)
        u = u + sum(p * each for p, each in zip(weights, c, strict=True))
    return parameters[f"words_{config.hops}"] @ u, np.array(hops)
