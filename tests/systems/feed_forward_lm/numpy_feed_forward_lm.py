"""The language model of Bengio et al. 2003 in NumPy float64, for one text.

It shares no code with `tfm`; only the names of parameters are Flax's.
"""

import numpy as np


def feed_forward_lm(config, parameters, tokens):
    """Returns the logits [L, V] after each token, y = b + W x + U tanh(d + H x)."""
    width = config.embedding_features
    u = parameters["output"][:, : config.hidden_features]
    w = parameters["output"][:, config.hidden_features :]
    logits = []
    for end in range(1, len(tokens) + 1):
        read = tokens[max(end - config.context, 0) : end]
        x = np.zeros(config.context * width)
        x[(config.context - len(read)) * width :] = parameters["embedding"]["table"][read].ravel()
        hidden = np.tanh(x @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
        y = parameters["bias"] + u @ hidden
        logits.append(y + w @ x if config.direct else y)
    return np.array(logits)
