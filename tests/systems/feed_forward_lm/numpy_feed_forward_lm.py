"""The language model of Bengio et al. 2003 in NumPy float64, for one text.

`drop` is applied to the embeddings and to the hidden layer; any function of an array may stand for it.

It shares no code with `tfm`; only the names of parameters are Flax's.
"""

import numpy as np


def nothing_dropped(x):
    return x


def feed_forward_lm(config, parameters, tokens, drop=nothing_dropped):
    """Returns the logits [L, V] after each token, y = b + W x + U tanh(d + H x)."""
    width = config.embedding_features
    u = parameters["output"][:, : config.hidden_features]
    w = parameters["output"][:, config.hidden_features :]
    logits = []
    for end in range(1, len(tokens) + 1):
        read = tokens[max(end - config.context, 0) : end]
        x = np.zeros(config.context * width)
        x[(config.context - len(read)) * width :] = parameters["embedding"]["table"][read].ravel()
        x = drop(x)
        hidden = np.tanh(x @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
        y = parameters["bias"] + u @ drop(hidden)
        logits.append(y + w @ x if config.direct else y)
    return np.array(logits)
