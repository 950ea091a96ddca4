"""The language models of Zaremba et al. 2014 and Bengio et al. 2003 in NumPy float64, for one text.

They share no code with `tfm`; only the names of parameters are Flax's.
"""

import numpy as np

from tests.references.numpy_rnn import lstm


def lstm_lm(config, parameters, tokens):
    """Returns the logits [L, V] after each token, from equations 7 to 9 of Zaremba et al. 2014."""
    embedding = parameters["embedding"]
    output = embedding["table"] if config.tied_embeddings else embedding["output"]
    zeros = np.zeros(config.features)
    states = [(zeros, zeros)] * config.layers
    logits = []
    for token in tokens:
        x = embedding["table"][token]
        for layer in range(config.layers):
            states[layer] = lstm(parameters[f"layers_{layer}"]["cell"], states[layer], x, config.forget_bias)
            x = states[layer][1]
        logits.append(output @ x + embedding["bias"])
    return np.array(logits)


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
