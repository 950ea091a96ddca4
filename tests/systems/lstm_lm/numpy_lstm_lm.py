"""The language model of Zaremba et al. 2014 in NumPy float64, for one text.

`drop` is applied where the paper has dropout; any function of an array may stand for it.

It shares no code with `tfm`; only the names of parameters are Flax's.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(parameters, state, x, forget_bias):
    """Zaremba et al. 2014, section 3.1."""
    c, h = state
    gates = x @ parameters["input"]["kernel"] + parameters["input"]["bias"]
    i, f, g, o = np.split(gates + h @ parameters["recurrent"]["kernel"], 4)
    c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def nothing_dropped(x):
    return x


def lstm_lm(config, parameters, tokens, drop=nothing_dropped):
    """Returns the logits [L, V] after each token, from equations 7 to 9 of Zaremba et al. 2014.

    Dropout is on the arrows between layers, from the embeddings and to the logits (Figure 2).
    """
    embedding = parameters["embedding"]
    output = embedding["table"] if config.tied_embeddings else embedding["output"]
    zeros = np.zeros(config.features)
    states = [(zeros, zeros)] * config.layers
    logits = []
    for token in tokens:
        x = embedding["table"][token]
        for layer in range(config.layers):
            cell = parameters[f"layers_{layer}"]["cell"]
            states[layer] = lstm(cell, states[layer], drop(x), config.forget_bias)
            x = states[layer][1]
        logits.append(output @ drop(x) + embedding["bias"])
    return np.array(logits)
